"""A page that is lent to a foreign DevTools client: its time is real until it is given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envs.background import start_background
from envs.browser.process.connection import Connection
from envs.cdp.messages import target_gone
from envs.types import BrowserError

if TYPE_CHECKING:
    from playwright.async_api import Page

    from envs.browser.context import BrowserContext
    from envs.browser.page import TaskPage
    from envs.browser.tab import Tab

STOP_SECONDS = 5.0
"""Real seconds for the last span of time: a page whose script runs on does not end it."""


RETRY_SECONDS = 0.05
"""Real seconds between attempts on a browser that is being connected to again."""


@dataclass(frozen=True, slots=True)
class LentPage:
    """The page of an episode, and the way to its browser. Given by `WebSession.lend`."""

    page: TaskPage
    connection: Connection
    own: Page | None = None
    """Playwright's page, where the episode is played on the caller's own."""
    claimed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a client asked for a new browser context: it was given the episode's own."""

    @property
    def context(self) -> BrowserContext:
        """The browser context, which the client may use as a whole."""
        return self.page.context


@asynccontextmanager
async def real_time(context: BrowserContext) -> AsyncIterator[None]:
    """Let the pages' clock run in real time inside, and stop it after.

    Clocks that are not held are left alone.
    """
    if not context.active.clock.virtual:
        yield
        return
    tasks: set[asyncio.Task[None]] = set()
    over = asyncio.Event()
    running = start_background(_run(context, over), tasks, "the real time of a lent page")
    try:
        yield
    finally:
        over.set()
        _done, late = await asyncio.wait({running}, timeout=STOP_SECONDS)
        for task in late:
            task.cancel()


async def _run(context: BrowserContext, over: asyncio.Event) -> None:
    """Give time to the tab that is shown; its process has one clock for all of them."""
    tab: Tab | None = None
    while not over.is_set() and context.tabs and not context.lost:
        try:
            if tab not in context.tabs:
                tab = context.active
                await tab.clock.begin()
                await tab.clock.real_time.start()
            await tab.clock.real_time.run()
        except BrowserError as error:
            if not target_gone(error) and tab in context.tabs:
                raise
            tab = None
            await asyncio.sleep(RETRY_SECONDS)
    if tab in context.tabs and not context.lost:
        assert tab is not None
        await tab.clock.real_time.stop()
