"""Executes an `Action` as trusted input events, or returns a coded error.

`check_action` is the one check, which needs no page. `execute` carries out what it did not refuse:
it takes an `ActionContext` (a tab, the last observation's elements, its tabs and dialogs) and
returns an `Effect` or an `ActionError`. The road of a click goes down: ``execute``, ``mouse``,
``target`` (the point), ``dom_queries``. Nothing here waits for a page to settle, makes an
observation, or knows a task: the session does that.
"""

from typing import TYPE_CHECKING

from envs.actions.context import ActionContext, Effect, LastLook
from envs.actions.dialogs import Dialogs
from envs.actions.errors import ActionError
from envs.actions.execute import execute
from envs.actions.intercept import Interceptor
from envs.actions.target import check_action
from envs.lazy import lazy_names

if TYPE_CHECKING:
    from envs.actions.parsing import format_action, parse
    from envs.actions.parsing.extensions import Reader, as_parsed


__all__ = [
    "ActionContext",
    "ActionError",
    "Dialogs",
    "Effect",
    "Interceptor",
    "LastLook",
    "Reader",
    "as_parsed",
    "check_action",
    "execute",
    "format_action",
    "parse",
]

__getattr__ = lazy_names(
    __name__,
    {
        "envs.actions.parsing": ("format_action", "parse"),
        "envs.actions.parsing.extensions": ("Reader", "as_parsed"),
    },
)
