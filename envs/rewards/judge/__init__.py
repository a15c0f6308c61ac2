"""The LLM judge: any OpenAI-compatible endpoint says whether an episode did its task. docs/judge.md tells how to use it.

::

    Judge.judge(JudgeEpisode) -> Judgement      judge.py
      the flow of a style                       webgym.py  webjudge.py (and WebVoyager)
        Hearing: votes, samples, records        hearing.py, ruling.py
          questions                             prompts.py, fence.py (page text is data)
          JudgeClient: one question             client.py: cache.py, budget.py, wire.py (HTTP), forms.py, verdict.py (replies)
          Ledger: the budget of a run           ledger.py: what all of its judges have spent; holder.py: who has its lock

Only ``client``, ``cache``, ``ledger`` and ``holder`` touch a network or a disk. What an endpoint, a page or a policy does never becomes an
exception: a question without a readable answer is an abstention, written down with its cause, and never a zero.
"""

from envs.rewards.judge.config import JudgeConfig, JudgeModels, JudgeStyle, Structured
from envs.rewards.judge.judge import Judge
from envs.rewards.judge.ledger import DamagedLedger, Ledger, Limits, Spent
from envs.rewards.judge.records import (
    CallError,
    CallRecord,
    Check,
    JudgeEpisode,
    JudgeFact,
    Judgement,
    JudgeStep,
    Purpose,
    cost_of,
)

__all__ = [
    "CallError",
    "CallRecord",
    "Check",
    "DamagedLedger",
    "Judge",
    "JudgeConfig",
    "JudgeEpisode",
    "JudgeFact",
    "JudgeModels",
    "JudgeStep",
    "JudgeStyle",
    "Judgement",
    "Ledger",
    "Limits",
    "Purpose",
    "Spent",
    "Structured",
    "cost_of",
]
