"""Rubrics and instructions written by an LLM.

Rubrics and instructions that a model writes, for tasks that come without: asked for several times, checked by program, put to the vote.

::

    RubricWriter.write(task, reference) -> Writing     writer.py: samples, asking again, the vote
      what is asked                                    prompts.py (the task is data, fenced)
      how a reply is read                              draft.py
      what is wrong with it                            checks.py, words.py (no model)
      what the samples agree on                        agree.py

The endpoint, its retries, cache, budget and ledger are the judge's (`envs.rewards.judge`). See docs/written-rubrics.md.
"""

from envs.tasks.authoring.config import WriterConfig
from envs.tasks.authoring.writer import RubricWriter, Writing

__all__ = ["RubricWriter", "WriterConfig", "Writing"]
