"""Rubrics and instructions written by an LLM.

A model writes rubrics and instructions for tasks that have none. It is asked several times, its
replies are checked by program, and the samples vote.

::

    RubricWriter.write(task, reference) -> Writing     writer.py: samples, asking again, the vote
      the prompts                                      prompts.py (the task is data, fenced)
      the reply's schema                               draft.py
      the flaws of a draft                             checks.py, words.py (no model)
      the agreement of the samples                     agreement.py

The endpoint, its retries, cache, budget and ledger are the judge's (`envs.rewards.judge`). See
docs/task-sets.md.
"""

from envs.tasks.authoring.config import WriterConfig
from envs.tasks.authoring.writer import RubricWriter, Writing

__all__ = ["RubricWriter", "WriterConfig", "Writing"]
