"""WebArena's evaluators over its own task files, and those of VisualWebArena and REAL.

``config`` reads the public benchmark's format, ``match`` holds the comparisons (pure), ``program``
looks into pages through a protocol that a browser session offers, ``page_images`` at their
pictures, ``state`` reads the state that REAL's sites show, ``state_scripts`` runs its scripts,
``helpers`` reads the ``func:`` programs, of which ``shop`` and ``members`` ask sites,
``page_helpers`` read pages, and ``site_helpers`` has all, and ``evaluate`` takes it all together.
The semantics are the benchmark's; what it would turn into an exception or a zero (an unreachable
judge, an unknown helper, a site that does not answer) is *unavailable* here.
"""

from envs.rewards.webarena.config import read_eval
from envs.rewards.webarena.evaluate import EvaluatorResult, Part, evaluate
from envs.rewards.webarena.helpers import HELPERS, Helper
from envs.rewards.webarena.page_images import read_images
from envs.rewards.webarena.parts import WebArenaParts
from envs.rewards.webarena.program import PageScriptError, read_pages
from envs.rewards.webarena.shop import ADMIN, read_account
from envs.rewards.webarena.site_helpers import KNOWN, lacking, site_helpers
from envs.rewards.webarena.state import lacking_state, read_state
from envs.types.webarena import NOT_ACHIEVABLE, PLACEHOLDER, SITES, EvalType, PageCheck, WebArenaEval, placed

__all__ = [
    "ADMIN",
    "HELPERS",
    "KNOWN",
    "NOT_ACHIEVABLE",
    "PLACEHOLDER",
    "SITES",
    "EvalType",
    "EvaluatorResult",
    "Helper",
    "PageCheck",
    "PageScriptError",
    "Part",
    "WebArenaEval",
    "WebArenaParts",
    "evaluate",
    "lacking",
    "lacking_state",
    "placed",
    "read_account",
    "read_eval",
    "read_images",
    "read_pages",
    "read_state",
    "site_helpers",
]
