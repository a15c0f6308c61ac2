"""WebArena's evaluators over its own task files: string_match, url_match, program_html.

``config`` reads the public benchmark's format, ``match`` holds the comparisons (pure), ``program`` looks into pages through a protocol that a
browser session offers, ``helpers`` are the ``func:`` programs, and ``evaluate`` takes it all together. The semantics are the benchmark's; what it
would turn into an exception or a zero (an unreachable judge, an unknown helper, a site that does not answer) is *unavailable* here.
"""

from envs.rewards.webarena.config import (
    EvalType,
    PageCheck,
    ReferenceAnswers,
    WebArenaEval,
    WebArenaTask,
    read_configs,
    read_eval,
    read_task,
)
from envs.rewards.webarena.evaluate import AnswerJudge, Evaluation, Part, evaluate
from envs.rewards.webarena.helpers import HELPERS, Helper
from envs.rewards.webarena.parts import WebArenaParts
from envs.rewards.webarena.program import PageAccess, PageScriptError, look_at_pages

__all__ = [
    "HELPERS",
    "AnswerJudge",
    "EvalType",
    "Evaluation",
    "Helper",
    "PageAccess",
    "PageCheck",
    "PageScriptError",
    "Part",
    "ReferenceAnswers",
    "WebArenaEval",
    "WebArenaParts",
    "WebArenaTask",
    "evaluate",
    "look_at_pages",
    "read_configs",
    "read_eval",
    "read_task",
]
