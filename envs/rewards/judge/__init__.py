"""The LLM judge: an OpenAI-compatible endpoint says whether an episode did its task.

::

    Judge.judge(JudgeCase) -> Judgement      judge.py
      questions of a style, in order     webgym.py, webjudge.py (and WebVoyager)
        votes and their decision         votes.py, decision.py
          prompts                        prompts.py, prompt_fencing.py (page text is data)
          JudgeClient: one question      client.py, cache.py, payloads.py, schemas.py,
                                         verdict.py (replies)

Only ``client`` (by `envs.chat`) and ``cache`` use a network or a disk. Faults of an endpoint, a
page or a policy are never raised: a question without a readable answer is an abstention, recorded
with its cause, and never a zero. docs/rewards.md says how to use the judge.
"""

from envs.rewards.judge.client import try_models
from envs.rewards.judge.config import (
    JudgeConfig,
    JudgeModels,
    JudgeStyle,
    Structured,
    endpoint_address,
    endpoint_key,
)
from envs.rewards.judge.judge import Judge
from envs.rewards.judge.records import (
    CallRecord,
    JudgeCase,
    JudgeCheck,
    JudgedFact,
    Judgement,
    JudgeStep,
    Purpose,
    cost_of,
    data_url,
)

__all__ = [
    "CallRecord",
    "Judge",
    "JudgeCase",
    "JudgeCheck",
    "JudgeConfig",
    "JudgeModels",
    "JudgeStep",
    "JudgeStyle",
    "JudgedFact",
    "Judgement",
    "Purpose",
    "Structured",
    "cost_of",
    "data_url",
    "endpoint_address",
    "endpoint_key",
    "try_models",
]
