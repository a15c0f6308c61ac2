"""JavaScript dialogs of a page: alerts, confirms and prompts, and what they mean for an action.

While one is open the page stands still and takes no other input; not even a screenshot is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envs.actions.context import ActionContext, Effect
from envs.actions.errors import ActionError, shorten
from envs.cancel_scope import CancelScope
from envs.types import Action, Dialog, ErrorCode

if TYPE_CHECKING:
    from envs.cdp import Cdp


@dataclass(frozen=True)
class PendingDialog:
    """Dialog that waits for an answer."""

    kind: str
    """``alert``, ``confirm``, ``prompt`` or ``beforeunload``."""
    message: str
    default: str = ""
    """Text that a prompt suggests."""


class Dialogs:
    """Dialogs of a tab, from its protocol session. ``Page`` events must be enabled there."""

    def __init__(self, cdp: Cdp) -> None:
        self._cdp = cdp
        self._pending: PendingDialog | None = None
        self._called: list[Callable[[], None]] = []
        cdp.on("Page.javascriptDialogOpening", self._on_opening)
        cdp.on("Page.javascriptDialogClosed", self._on_closed)

    @property
    def pending(self) -> PendingDialog | None:
        """Open dialog; a page has at most one."""
        return self._pending

    @contextmanager
    def calling(self, opened: Callable[[], None]) -> Iterator[None]:
        """Call ``opened`` whenever a dialog opens, while the context is entered."""
        self._called.append(opened)
        try:
            yield
        finally:
            self._called.remove(opened)

    async def answer(self, accept: bool, text: str | None) -> None:
        """Answer the open dialog; without a text a prompt gets its own suggestion."""
        default = self._pending.default if self._pending else ""
        # Closed from now on: the page may open the next one before our call is answered.
        self._on_closed({})
        params = {"accept": accept, "promptText": default if text is None else text}
        await self._cdp.send("Page.handleJavaScriptDialog", params)

    def _on_opening(self, event: dict[str, Any]) -> None:
        self._pending = PendingDialog(event["type"], event["message"], event.get("defaultPrompt", ""))
        for opened in self._called:
            opened()

    def _on_closed(self, _event: dict[str, Any]) -> None:
        self._pending = None


async def until_dialog(
    context: ActionContext, work: Coroutine[Any, Any, Effect | ActionError], action: Action
) -> Effect | ActionError:
    """Await ``work``, or until a dialog opens; refuse it if one is open.

    An open dialog keeps the page from taking input, so the rest of the gesture is given up.
    """
    pending = context.dialogs.pending
    if pending is not None:
        work.close()
        what = f"the page waits for an answer to its {pending.kind} {shorten(pending.message)!r}"
        return ActionError(ErrorCode.DIALOG_OPEN, what, "use dialog with accept true or false")
    scope = CancelScope(context.deadline)
    try:
        async with scope:
            with context.dialogs.calling(scope.cancel):
                return await work
    except TimeoutError:
        return Effect() if scope.was_cancelled else _not_taken(context, action)


async def answer_dialog(context: ActionContext, action: Dialog) -> Effect | ActionError:
    """Answer the open dialog."""
    pending = context.dialogs.pending
    if pending is None:
        return ActionError(ErrorCode.NO_DIALOG, "no dialog is open")
    if action.text is not None and pending.kind != "prompt":
        return ActionError(ErrorCode.BAD_ACTION, f"the {pending.kind} takes no text", "leave the text out")
    try:
        async with asyncio.timeout(context.deadline):
            await context.dialogs.answer(action.accept, action.text)
    except TimeoutError:
        return _not_taken(context, action)
    return Effect()


def _not_taken(context: ActionContext, action: Action) -> ActionError:
    what = f"the page did not take the {action.type} within {context.deadline:g} s"
    return ActionError(ErrorCode.TIMEOUT, what, "wait, or go somewhere else")
