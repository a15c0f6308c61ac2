"""One tab: its context, its CDP connection, its clock, and the future that says that it died."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import Browser, BrowserContext, CDPSession, Page
from playwright.async_api import Error as PlaywrightError

from envs.browser.settle import NAVIGATION_BUDGET_MS, VirtualClock
from envs.types import BrowserError

T = TypeVar("T")

logger = logging.getLogger(__name__)

JPEG = {"format": "jpeg", "quality": 80, "optimizeForSpeed": True}
"""Screenshots as the policy sees them: the cheapest format to make (benchmarks: half of a PNG's time)."""

BASE_STYLE = """*, *::before, *::after {
  caret-color: transparent !important; transition: none !important; animation: none !important;
}"""
"""A blinking caret or a running transition makes equal pages give unequal screenshots."""

CLOSE_SECONDS = 5.0
"""Real seconds that a page may take to close; a tab that hangs is left to the end of its browser."""


@cache
def script(name: str) -> str:
    """Text of a JavaScript file of this package."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


class BrowserPage:
    """A tab in a browser context of its own. Made by `open`, used by one session at a time."""

    def __init__(self, context: BrowserContext, page: Page, cdp: CDPSession, owner: str) -> None:
        self.owner = owner
        """Name of the site that it was opened for."""
        self.path: str | None = None
        """Path that is loaded, ``None`` before the first navigation."""
        self.episodes = 0
        self.broken = False
        self.clock = VirtualClock(cdp)
        self.cdp = cdp
        self._context = context
        self._page = page
        self._died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        page.on("crash", lambda _page: self.fail("the page crashed"))
        page.on("close", lambda _page: self.fail("the page was closed"))

    @classmethod
    async def open(cls, browser: Browser, *, owner: str, viewport: tuple[int, int], style: str) -> BrowserPage:
        """Open a tab that looks and behaves the same on every machine."""
        width, height = viewport
        context = await browser.new_context(
            viewport={"width": width, "height": height},
            device_scale_factor=1,
            locale="en-US",
            timezone_id="UTC",
            color_scheme="light",
            reduced_motion="reduce",
            service_workers="block",  # a worker is not under the page's virtual time
            accept_downloads=False,
        )
        try:
            await context.add_init_script(script("init.js").replace("STYLE", json.dumps(f"{BASE_STYLE}\n{style}")))
            page = await context.new_page()
            return cls(context, page, await context.new_cdp_session(page), owner)
        except BaseException:
            await _close(context)
            raise

    def fail(self, why: str) -> None:
        """Mark the page as dead; whoever waits for it gets a `BrowserError`."""
        self.broken = True
        if not self._died.done():
            self._died.set_exception(BrowserError(why))
            self._died.exception()  # seen: it may be that nobody waits

    async def guard(self, work: Coroutine[Any, Any, T], deadline: float, what: str) -> T:
        """Await ``work``, but no longer than ``deadline`` seconds and not after the page's death.

        Raises:
            BrowserError: with the cause chained. The page is then broken and is not used again.
        """
        task = asyncio.ensure_future(work)
        try:
            async with asyncio.timeout(deadline):
                waited: set[asyncio.Future[Any]] = {task, self._died}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._died.result()
            return task.result()
        except TimeoutError as error:
            self.broken = True
            raise BrowserError(f"{what} took longer than {deadline:g} s") from error
        except PlaywrightError as error:
            self.broken = True
            raise BrowserError(f"{what} failed: {error.message}") from error
        except BaseException:
            self.broken = True
            raise
        finally:
            task.cancel()

    async def goto(self, url: str) -> None:
        """Load a page: its clock runs freely until the navigation is committed, then on a budget until all is loaded."""
        self.path = None
        await self.clock.run_freely()
        response = await self._page.goto(url, wait_until="commit")
        if response is None or not response.ok:
            raise BrowserError(f"{url} answered {response.status if response else 'nothing'}; expected a page")
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
        except PlaywrightError as error:
            if "Unable to capture screenshot" not in error.message:
                raise
            # A fresh page may have no frame yet; the second request waits for one (Chromium 156, about half of fresh
            # contexts).
            answer = await self.cdp.send("Page.captureScreenshot", JPEG)
        return base64.b64decode(answer["data"])

    async def close(self) -> None:
        """Close the tab and its context."""
        await _close(self._context)


async def _close(context: BrowserContext) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await context.close()
    except (PlaywrightError, TimeoutError) as error:
        # The browser is gone or hangs; its end takes the tab with it.
        logger.warning("a tab did not close: %s", error)
