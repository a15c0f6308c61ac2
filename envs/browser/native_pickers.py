"""Closes native pickers: lists, calendars and colour choosers, which Chromium opens as windows of
their own.

Pictures show such a window over the page, and no click reaches it: a click on a day presses what
lies below. So none is open when the policy looks.
"""

from __future__ import annotations

from functools import partial

from envs.actions.fields import ESCAPE, MAX_ESCAPES
from envs.actions.keyboard import events
from envs.browser.dispatcher import OperationQueues
from envs.browser.operations import OperationKind
from envs.browser.tab import Tab
from envs.settle import Settled


async def close_native_picker(tab: Tab, queues: OperationQueues) -> tuple[Settled | None, str]:
    """Close what is open, by Escape, which the page does not hear.

    Returns how the page came to rest afterwards, and what to tell of it; ``None`` and nothing if
    none was open.
    """
    settled, kind = None, ""
    for _ in range(MAX_ESCAPES):
        looked = tab.clock.looked
        if looked is None or not looked.picker:
            break
        kind = looked.picker
        for key in events(ESCAPE):
            await queues.run(OperationKind.INPUT, partial(tab.cdp.send, "Input.dispatchKeyEvent", key))
        settled = await queues.run(OperationKind.INPUT, lambda: tab.clock.settle(0.0))
    if not kind:
        return None, ""
    what, use = ("list", "choose with select") if kind.startswith("select") else (f"{kind} picker", "type the value")
    return settled, f"the {what} was closed again: {use}"
