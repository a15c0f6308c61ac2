"""JavaScript dialogs of a page: alerts, confirms and prompts.

While one is open the page stands still and takes no other input; not even a screenshot is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
