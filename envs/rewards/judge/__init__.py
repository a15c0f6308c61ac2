"""The LLM judge: an OpenAI-compatible endpoint says whether an episode did its task.

::

    Judge.judge(JudgeCase) -> Judgement      judge.py
      questions of a style, in order     webgym.py, webjudge.py (and WebVoyager)
        votes and their decision         votes.py, decision.py
          prompts                        prompts.py, prompt_fencing.py (page text is data)
          JudgeClient: one question      client.py, cache.py, payloads.py (HTTP), schemas.py,
                                         verdict.py (replies)
          Ledger: the budget of a run    ledger.py

Only ``client``, ``cache`` and ``ledger`` use a network or a disk. Faults of an endpoint, a page or
a policy are never raised: a question without a readable answer is an abstention, recorded with its
cause, and never a zero. docs/rewards.md says how to use the judge.
"""

from envs.rewards.judge.client import MAX_ANSWER, endpoint_client, try_models
from envs.rewards.judge.config import (
    JudgeConfig,
    JudgeModels,
    JudgeStyle,
    Structured,
    endpoint_address,
    endpoint_key,
)
from envs.rewards.judge.judge import Judge
from envs.rewards.judge.ledger import Budget, DamagedLedger, Ledger, SpendingLimits, Spent
from envs.rewards.judge.payloads import (
    CallFailed,
    check_error,
    check_status,
    content_text,
    refused_parameter,
    without_parameters,
)
from envs.rewards.judge.records import (
    CallError,
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
    "MAX_ANSWER",
    "Budget",
    "CallError",
    "CallFailed",
    "CallRecord",
    "DamagedLedger",
    "Judge",
    "JudgeCase",
    "JudgeCheck",
    "JudgeConfig",
    "JudgeModels",
    "JudgeStep",
    "JudgeStyle",
    "JudgedFact",
    "Judgement",
    "Ledger",
    "Purpose",
    "SpendingLimits",
    "Spent",
    "Structured",
    "check_error",
    "check_status",
    "content_text",
    "cost_of",
    "data_url",
    "endpoint_address",
    "endpoint_client",
    "endpoint_key",
    "refused_parameter",
    "try_models",
    "without_parameters",
]
