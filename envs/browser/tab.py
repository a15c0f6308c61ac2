"""One tab: its DevTools session, its clock, and the future that says that it died."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from envs.browser.cdp import CdpError, CdpSession
from envs.browser.settle import NAVIGATION_BUDGET_MS, VirtualClock
from envs.types import BrowserError

T = TypeVar("T")

JPEG = {"format": "jpeg", "quality": 80, "optimizeForSpeed": True}
"""Screenshots as the policy sees them: the cheapest format to make (benchmarks: half of a PNG's time)."""

_STATUS = "(performance.getEntriesByType('navigation')[0] || {}).responseStatus || 0"


@cache
def script(name: str) -> str:
    """Text of a JavaScript file of this package."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


class Tab:
    """A page of a `BrowserContext`."""

    def __init__(self, cdp: CdpSession) -> None:
        self.cdp = cdp
        self.clock = VirtualClock(cdp)
        self._died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._interrupted: asyncio.Future[None] | None = None

    @property
    def dead(self) -> bool:
        return self._died.done()

    def fail(self, why: str) -> None:
        """Mark the tab as dead; whoever waits for it gets a `BrowserError`."""
        if not self._died.done():
            self._died.set_exception(BrowserError(why))
            self._died.exception()  # seen: it may be that nobody waits

    def interrupt(self, why: str) -> None:
        """Fail what is being done on the tab at the moment; the tab itself may go on."""
        if self._interrupted is not None and not self._interrupted.done():
            self._interrupted.set_exception(BrowserError(why))
            self._interrupted.exception()

    async def guard(self, work: Coroutine[Any, Any, T], deadline: float, what: str) -> T:
        """Await ``work``, but no longer than ``deadline`` seconds and not after the tab's death or the loss of its socket.

        Nothing of it runs on afterwards.

        Raises:
            BrowserError: with the cause chained.
        """
        task = asyncio.ensure_future(work)
        self._interrupted = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(deadline):
                waited: set[asyncio.Future[Any]] = {task, self._died, self._interrupted}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._died, self._interrupted):
                if end.done():
                    end.result()
            return task.result()
        except TimeoutError as error:
            raise BrowserError(f"{what} took longer than {deadline:g} s") from error
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def goto(self, url: str) -> None:
        """Load a page: its clock runs freely until the navigation is committed, then on a budget until all is loaded."""
        await self.clock.run_freely()
        answer = await self.cdp.send("Page.navigate", {"url": url})
        if "errorText" in answer:
            raise BrowserError(f"{url} was not loaded: {answer['errorText']}")
        status = await self.evaluate(_STATUS)
        if not 200 <= status < 400:
            raise BrowserError(f"{url} answered {status or 'nothing'}; expected a page")
        await self.clock.settle(NAVIGATION_BUDGET_MS)
        while await self.evaluate("document.readyState") != "complete":
            await self.clock.settle(NAVIGATION_BUDGET_MS)

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page, as JSON.

        Raises:
            BrowserError: the expression threw.
        """
        params = {"expression": expression, "returnByValue": True, "awaitPromise": False}
        answer = await self.cdp.send("Runtime.evaluate", params)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            cause = details.get("exception", {}).get("description", details.get("text"))
            raise BrowserError(f"script failed in the page: {cause}")
        return answer["result"].get("value")

    async def screenshot(self) -> bytes:
        """JPEG of the viewport."""
        try:
            answer = await self.cdp.send("Page.captureScreenshot", JPEG)
        except CdpError as error:
            if "Unable to capture screenshot" not in str(error):
                raise
            # A fresh page may have no frame yet; the second request waits for one (Chromium 156, about half of fresh
            # contexts).
            answer = await self.cdp.send("Page.captureScreenshot", JPEG)
        return base64.b64decode(answer["data"])
