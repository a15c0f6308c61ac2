"""A tab: its DevTools session, its clock, its dialogs; and windows that open without an opener.

Every ordinary link with ``target=_blank`` opens such a window. Chromium 156 opens it with its
navigation under way, and forwards no command to its document until that navigation ends. The
navigation waits for us to resume the window, and our setup waits for the navigation. If we resumed
first, the page's own scripts would run on a tab that is not set up. So we catch the first request
before it leaves, stop the navigation, set up the blank tab, and make the same request again.
"""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any
from urllib.parse import urlsplit

from envs.actions import Dialogs, Interceptor
from envs.background import log_failure
from envs.browser.options import Device
from envs.cdp import Cdp, binary
from envs.cdp.client import ATTACHED_AGAIN, CdpSession, RepeatedCalls
from envs.cdp.messages import NO_PICTURE, send_unless
from envs.egress import harden_page
from envs.settle import NAVIGATION_BUDGET_MS, Looks, Settled, SettleReason, VirtualClock, prepare
from envs.signals import SignalReader
from envs.types import BrowserError

JPEG = {"format": "jpeg", "quality": 80, "optimizeForSpeed": True}
"""Screenshots as the policy sees them: the cheapest format to make (benchmarks: half of a PNG's
time)."""

LOADS = 4
"""Maximum number of navigation budgets of one load. A page that is still loading then is used as it
is."""

STATUS_ALONE = "net::ERR_HTTP_RESPONSE_CODE_FAILURE"
"""The site answered with an error's status and nothing else; the browser shows a page of its own
for it."""

DOCUMENTS = {"patterns": [{"urlPattern": "*", "resourceType": "Document"}]}
"""Parameters with which ``Fetch.enable`` catches the requests of documents."""


class Tab:
    """A page of a `BrowserContext`."""

    def __init__(self, cdp: CdpSession, number: int, clock: VirtualClock) -> None:
        self.cdp = cdp
        self.number = number
        """Number that the policy sees, from 1."""
        self.clock = clock
        cdp.on(ATTACHED_AGAIN, lambda _event: self.clock.attached_again())
        self.dialogs = Dialogs(cdp)
        self.intercept = Interceptor(cdp)
        self.signals: SignalReader | None = None
        """Reader of the signals of each step, when they are asked for."""

    async def load(self, url: str) -> Settled:
        """Load an address and let the page settle.

        Raises:
            BrowserError: There is no page at the address.
        """
        settled = await self.visit(url)
        status = self.clock.requests.main_status
        if status is not None and self.clock.requests.main_unreachable:
            raise BrowserError(
                f"{url}: nothing answers at {urlsplit(url).netloc}; start the site, or correct its address"
            )
        if status is not None and not 200 <= status < 400:
            why = self.clock.requests.main_problem
            raise BrowserError(f"{url} answered {status}; expected a page" + f": {why}" * bool(why))
        return settled

    async def visit(self, url: str) -> Settled:
        """Load an address, whatever status the site answers with."""
        await self.clock.begin()
        failed = (await self.cdp.send("Page.navigate", {"url": url})).get("errorText", "")
        if failed and failed != STATUS_ALONE:
            raise BrowserError(f"{url} was not loaded: {failed}")
        settled = await self.clock.settle(NAVIGATION_BUDGET_MS)
        for _ in range(LOADS - 1):
            if settled.reason is not SettleReason.RESTED or await self.evaluate("document.readyState") == "complete":
                break
            settled = await self.clock.settle(NAVIGATION_BUDGET_MS)
        if failed and self.clock.requests.main_status is None:
            raise BrowserError(f"{url} was not loaded: {failed}")
        return settled

    async def evaluate(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page; return its JSON value.

        Raises:
            BrowserError: The expression threw.
        """
        params = {"expression": expression, "returnByValue": True, "awaitPromise": False}
        answer = await self.cdp.send("Runtime.evaluate", params)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            cause = details.get("exception", {}).get("description", details.get("text"))
            raise BrowserError(f"script failed in the page: {cause}")
        return answer["result"].get("value")

    async def screenshot(self) -> bytes:
        """Take a JPEG of the viewport."""
        return await self.picture(JPEG)

    async def picture(self, params: dict[str, Any]) -> bytes:
        """Take a picture with other parameters of ``Page.captureScreenshot``."""
        answer = await send_unless(NO_PICTURE, self.cdp, "Page.captureScreenshot", params)
        # A fresh page may have no frame yet; the second request waits for one (Chromium 156, about
        # half of fresh contexts).
        answer = answer or await self.cdp.send("Page.captureScreenshot", params)
        return binary(answer["data"])


class FirstRequest:
    """The first request of a new window. Made by `catch`."""

    def __init__(self, cdp: Cdp) -> None:
        self._cdp = cdp
        self._paused: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._request: dict[str, Any] = {}
        cdp.on("Fetch.requestPaused", self._paused.put_nowait)

    @classmethod
    async def catch(cls, cdp: Cdp) -> FirstRequest | None:
        """Let a new window run up to its first request, and stop it there.

        Returns ``None`` for an empty window, which makes none; it can then be set up.
        """
        first = cls(cdp)
        await cdp.send("Fetch.enable", DOCUMENTS)
        # Chromium resumes the window at once. The document answers when no navigation is under way
        # any more.
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
        """Return the next paused request; ``None`` if ``otherwise`` is done first."""
        paused = asyncio.ensure_future(self._paused.get())
        try:
            await asyncio.wait({paused, otherwise}, return_when=asyncio.FIRST_COMPLETED)
            if paused.done():
                return paused.result()
            otherwise.result()
            return None
        finally:
            paused.cancel()


async def set_up_page(session: CdpSession, device: Device, looks: Looks) -> None:
    """Set a page up before it loads anything.

    The session repeats all of it on a new socket.
    """
    kept = RepeatedCalls(session)
    domains = ("Page", "Network", "Animation", "DOM")
    await asyncio.gather(*(session.enable(f"{domain}.enable") for domain in domains))
    await asyncio.gather(
        prepare(kept, looks),
        harden_page(kept),
        # Pages of one context may all be looked at; only one of them would have the focus.
        session.enable("Emulation.setFocusEmulationEnabled", {"enabled": True}),
    )
    if device.mobile:
        await session.enable("Emulation.setTouchEmulationEnabled", {"enabled": True})
    if device.user_agent:
        await session.enable("Emulation.setUserAgentOverride", {"userAgent": device.user_agent})


async def shown_address(cdp: Cdp) -> str:
    """Return the address in a tab's history, which works where the page does not answer."""
    history = await cdp.send("Page.getNavigationHistory")
    return str(history["entries"][history["currentIndex"]]["url"])


def white_picture(looks: Looks) -> bytes:
    """Return the JPEG of an empty page."""
    from PIL import Image  # slow to import, and seldom needed

    picture = io.BytesIO()
    size = (round(looks.viewport[0] * looks.scale), round(looks.viewport[1] * looks.scale))
    Image.new("RGB", size, "white").save(picture, "JPEG")
    return picture.getvalue()


async def show_blank(cdp: Cdp) -> None:
    """Give a window that shows nothing yet an empty page.

    Chromium takes no picture of such a window, and it may stay so (a download, a mail address).
    """
    if not await shown_address(cdp):
        await cdp.send("Page.navigate", {"url": "about:blank"})
        # The new document answers this call, so a later load is not mistaken for the blank page.
        await cdp.send("Page.getFrameTree")


def _body(request: dict[str, Any]) -> dict[str, Any]:
    """Return the body and headers of a form's request; nothing for a GET."""
    if request["method"] == "GET":
        return {}
    parts = [binary(entry.get("bytes", "")) for entry in request.get("postDataEntries", ())]
    headers = [{"name": name, "value": value} for name, value in request["headers"].items()]
    return {"method": request["method"], "headers": headers, "postData": base64.b64encode(b"".join(parts)).decode()}
