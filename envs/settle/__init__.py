"""Waits until a page has settled, and makes equal episodes look equal.

``VirtualClock`` holds a page's clock and gives it time after each action, ``RequestTracker`` knows
the requests in flight, ``quiescence`` waits where a clock cannot be held, and ``determinism``
prepares a page before its first script. Everything speaks to one DevTools session (`envs.cdp.Cdp`);
nothing here knows a pool, a site or an action.
"""

from envs.settle.clock import VirtualClock
from envs.settle.constants import BUDGET_MS, CONTEXT_SECONDS, EPOCH_SECONDS, NAVIGATION_BUDGET_MS, PROCESS_ARGS
from envs.settle.determinism import BASE_STYLE, FONT_FAMILIES, FONTS_CONF, Looks, drawn_whole, prepare
from envs.settle.page_probe import NO_FIELDS, FieldStates, Look, fields_script
from envs.settle.result import Settled, SettleReason

__all__ = [
    "BASE_STYLE",
    "BUDGET_MS",
    "CONTEXT_SECONDS",
    "EPOCH_SECONDS",
    "FONTS_CONF",
    "FONT_FAMILIES",
    "NAVIGATION_BUDGET_MS",
    "NO_FIELDS",
    "PROCESS_ARGS",
    "FieldStates",
    "Look",
    "Looks",
    "SettleReason",
    "Settled",
    "VirtualClock",
    "drawn_whole",
    "fields_script",
    "prepare",
]
