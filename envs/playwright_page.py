"""Playwright's `Page` on the tab of an episode.

::

    async with open_env("miniwob/enter-text", seed=7) as env:
        await env.reset()
        async with env.page() as page:
            await page.fill("#tt", "Nathalie")
            await page.click("#subbtn")
        step = await env.observe()
        print(step.reward)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from envs.browser.devtools.lent import LentPage
from envs.browser.devtools.server import DevToolsServer
from envs.types import BrowserError

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

CONNECT_MS = 30_000.0
"""Milliseconds for Playwright to connect; it takes 300."""


@asynccontextmanager
async def playwright_page(lending: AbstractAsyncContextManager[LentPage]) -> AsyncIterator[Page]:
    """Give a page that is lent (`WebEpisode.lend`) to Playwright.

    Raises:
        BrowserError: Playwright did not connect, or the browser or the page failed.
    """
    from playwright.async_api import Error, async_playwright  # a process of its own, only where it is used

    async with lending as lent:
        if lent.own is not None:
            yield lent.own
            return
        async with DevToolsServer() as server, server.offer(lent) as address, async_playwright() as playwright:
            target = lent.context.active.cdp.target_id
            try:
                browser = await playwright.chromium.connect_over_cdp(address.cdp_url, timeout=CONNECT_MS)
            except Error as error:
                raise BrowserError(f"Playwright did not connect to the page: {error}") from error
            try:
                yield await _page_of(browser, target)
            finally:
                await browser.close()


async def _page_of(browser: Browser, target: str) -> Page:
    """Return the page of a target."""
    context = browser.contexts[0]
    for page in context.pages:
        cdp = await context.new_cdp_session(page)
        info = await cdp.send("Target.getTargetInfo")
        await cdp.detach()
        if info["targetInfo"]["targetId"] == target:
            return page
    raise BrowserError("the page was closed while Playwright connected")
