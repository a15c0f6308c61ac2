"""The DevTools protocol as everything that reads or drives a page sees it. What connects to a browser is in ``envs.browser``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Cdp(Protocol):
    """One session of the DevTools protocol: a tab, a frame of another process, a worker, or the browser itself."""

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a CDP method and return its result.

        Raises:
            BrowserError: the browser refused it, with the browser's words in the message, or cannot be reached.
        """
        ...

    def on(self, event: Any, f: Callable[..., Any]) -> None:
        """Call ``f`` with the parameters of each such event."""
        ...


async def main_frame(cdp: Cdp) -> str:
    """Id of a tab's own frame."""
    return str((await cdp.send("Page.getFrameTree"))["frameTree"]["frame"]["id"])


async def isolated_world(cdp: Cdp, name: str, frame: str) -> int:
    """Execution context of a JavaScript world that shares a frame's document with the page and nothing else: the page neither sees it nor can
    change what is in it. Chromium gives the same one for the same name and frame, until the frame has another document."""
    made = await cdp.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": name})
    return int(made["executionContextId"])
