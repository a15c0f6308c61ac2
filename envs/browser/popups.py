"""Windows that are opened without an opener: by every ordinary link with ``target=_blank``.

Chromium 156 opens them with their navigation under way, and passes nothing on to their document until that is over: it waits for whoever attached
to let it go, and what would set the tab up waits for it. Let go first, the page's own scripts would run on a tab that is not set up. So the first
request is caught before it leaves, the navigation is stopped, the blank tab is set up, and the same request is made again.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from envs.background import log_failure
from envs.cdp import Cdp, binary

DOCUMENTS = {"patterns": [{"urlPattern": "*", "resourceType": "Document"}]}


class FirstRequest:
    """The request that a window was opened with. Made by `catch`."""

    def __init__(self, cdp: Cdp) -> None:
        self._cdp = cdp
        self._paused: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._request: dict[str, Any] = {}
        cdp.on("Fetch.requestPaused", self._paused.put_nowait)

    @classmethod
    async def catch(cls, cdp: Cdp) -> FirstRequest | None:
        """Let a new window go as far as its first request, and stop it there.

        Returns ``None`` if it makes none (an empty window). It can be set up then.
        """
        first = cls(cdp)
        await cdp.send("Fetch.enable", DOCUMENTS)
        # Takes effect at once, and is answered by the document: when no navigation is under way any more.
        blank = asyncio.ensure_future(cdp.send("Runtime.runIfWaitingForDebugger"))
        blank.add_done_callback(log_failure)
        try:
            event = await first._pauses(blank)
            if event is None:
                await cdp.send("Fetch.disable")
                return None
            first._request = event["request"]
            await cdp.send("Page.stopLoading")
            await blank
            return first
        finally:
            blank.cancel()

    async def repeat(self) -> asyncio.Future[dict[str, Any]]:
        """Make the request again, and return when it is on its way.

        The future is the navigation's.
        """
        request = self._request
        params = {"url": request["url"], "transitionType": "link", "referrer": request["headers"].get("Referer", "")}
        going = asyncio.ensure_future(self._cdp.send("Page.navigate", params))
        going.add_done_callback(log_failure)
        try:
            event = await self._pauses(going)
            if event is not None:
                await self._cdp.send("Fetch.continueRequest", {"requestId": event["requestId"], **_body(request)})
            await self._cdp.send("Fetch.disable")
        except BaseException:
            going.cancel()
            raise
        return going

    async def _pauses(self, otherwise: asyncio.Future[Any]) -> dict[str, Any] | None:
        """The next request that is paused; ``None`` if something else is done first."""
        paused = asyncio.ensure_future(self._paused.get())
        try:
            await asyncio.wait({paused, otherwise}, return_when=asyncio.FIRST_COMPLETED)
            if paused.done():
                return paused.result()
            otherwise.result()
            return None
        finally:
            paused.cancel()


async def show_blank(cdp: Cdp) -> None:
    """Give a window that shows nothing yet an empty page.

    No picture can be made of it, and it may stay so (a download, a mail address).
    """
    history = await cdp.send("Page.getNavigationHistory")
    if not history["entries"][history["currentIndex"]]["url"]:
        await cdp.send("Page.navigate", {"url": "about:blank"})
        await cdp.send("Page.getFrameTree")  # answered by the new document: what is loaded next is not taken for it


def _body(request: dict[str, Any]) -> dict[str, Any]:
    """What a form sent; nothing for a plain address."""
    if request["method"] == "GET":
        return {}
    parts = [binary(entry.get("bytes", "")) for entry in request.get("postDataEntries", ())]
    headers = [{"name": name, "value": value} for name, value in request["headers"].items()]
    return {"method": request["method"], "headers": headers, "postData": base64.b64encode(b"".join(parts)).decode()}
