"""Episodes on a page that the caller opened with Playwright (``open_env(page=…)``).

The page is driven by a DevTools session of ours beside Playwright's, over Playwright's connection.
It is used as it is: its clock runs, its requests go where its browser can go, and its cookies hold.
At an episode's end it has its own size again and stays open.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn
from urllib.parse import urlsplit

from playwright.async_api import Error, Page

from envs.background import start_background
from envs.browser.context import CLOSE_SECONDS, MAX_TABS, BrowserContext, PageCrashed
from envs.browser.contexts import ContextLender
from envs.browser.devtools.lent import LentPage
from envs.browser.options import ContextOptions, Inspect, PoolOptions
from envs.browser.playwright_session import PlaywrightSession
from envs.browser.pool import BrowserPool
from envs.browser.process.connection import Connection
from envs.browser.session import WebSession
from envs.browser.tab import Tab
from envs.cdp.client import ConnectionLost
from envs.egress import AllowList
from envs.sites.base import Site
from envs.types import BrowserError, ConfigError, WebTask, needs
from envs.types.paths import AnyPath

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 5.0
"""Real seconds until Playwright has a window that the page announced; it takes 0.1."""

STORES = "cache_storage,file_systems,indexeddb,local_storage,service_workers"
"""Stores of a site's origin that are emptied around an episode; its cookies are put aside."""

_FIRST_DOCUMENT = "if (window === top && location.origin === %s) { sessionStorage.clear(); window.name = '' }"


def check_user_page(page: object, task: WebTask) -> None:
    """Check that a task can be played on a page of the caller's.

    Raises:
        ConfigError: It is no asynchronous page of a Chromium; or the task needs what only our own
            browsers do.
    """
    if not isinstance(page, Page):
        raise ConfigError(
            f"page: {type(page).__module__}.{type(page).__name__}; expected a page of playwright.async_api"
        )
    browser = page.context.browser
    if browser is not None and browser.browser_type.name != "chromium":
        raise ConfigError(f"page: a page of {browser.browser_type.name}; expected Chromium, which speaks DevTools")
    if page.is_closed():
        raise ConfigError("page: it is closed; open another one")
    if task.date:
        raise ConfigError(
            f"page: {task.task_id} has the date {task.date}, and your page's clock is not held; leave page out"
        )
    if needs(task.rubric).downloads:
        raise ConfigError(f"page: {task.task_id} is graded by its downloads, which your browser keeps; leave page out")


class UserPageContext(BrowserContext):
    """The caller's page, and the windows that it opens in an episode. Made by `attach`.

    Its connection is never opened: there is no way to the browser as a whole.
    """

    def __init__(self, page: Page, options: ContextOptions) -> None:
        super().__init__(Connection(_no_connection, name="the browser of a Playwright page"), "", options)
        self._page = page
        self._pages: dict[str, Page] = {}
        """Pages by their target ids, the caller's first."""
        self._sessions: list[PlaywrightSession] = []
        self._listeners: list[tuple[Page, Any, Callable[[Any], None]]] = []
        self._announced: list[asyncio.Future[Page]] = []
        """Windows that the page said it opens, until Playwright has them."""
        self._reduced_motion = False
        self._emptied = ""
        self._cookies: list[Any] = []
        """Cookies of the site's host that are put aside."""

    @classmethod
    async def attach(cls, page: Page, options: ContextOptions, *, emptied: str) -> UserPageContext:
        """Take a page for an episode.

        Args:
            emptied: Origin whose stores are emptied before and after; none if empty.

        Raises:
            BrowserError: The page is closed, or its browser is no Chromium.
        """
        context = cls(page, options)
        try:
            await context._begin(emptied)
        except BaseException as error:
            await context.close()
            if isinstance(error, Error):
                raise BrowserError(f"Playwright's page cannot be driven: {error.message}") from error
            raise
        return context

    async def close(self) -> None:
        """Close the episode's windows, and leave the caller's page as it was."""
        self.fail(BrowserError("the context was closed"))
        for task in self._setting_up:
            task.cancel()
        for page, event, listener in self._listeners:
            page.remove_listener(event, listener)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._give_back()
        except (BrowserError, Error, TimeoutError) as error:
            logger.warning("a page was not left as it was: %s", error)

    async def close_tab(self, number: int) -> None:
        """Close a window of the episode; the caller's own page is only left until the next one."""
        target = self._numbered(number).cdp.target_id
        page = self._pages[target]
        self.tab_gone(target, BrowserError("the tab was closed"))
        if page is not self._page:
            await page.close()

    async def _begin(self, emptied: str) -> None:
        motion = "matchMedia('(prefers-reduced-motion: reduce)').matches"
        self._reduced_motion = bool(await self._page.evaluate(motion))
        tab = await self._take(self._page)
        if not emptied:
            return
        host = urlsplit(emptied).hostname or ""
        cookies = [cookie for cookie in await self._page.context.cookies() if cookie["domain"].lstrip(".") == host]
        self._cookies, self._emptied = [*cookies], emptied
        await self._empty(tab.cdp)
        params = {"source": _FIRST_DOCUMENT % json.dumps(emptied)}
        script = await tab.cdp.send("Page.addScriptToEvaluateOnNewDocument", params)

        async def remove() -> None:
            await tab.cdp.send("Page.removeScriptToEvaluateOnNewDocument", script)

        def navigated(event: dict[str, Any]) -> None:
            frame = event["frame"]
            if not removed and "parentId" not in frame and frame["url"].startswith(f"{emptied}/"):
                removed.append(start_background(remove(), self._setting_up, "the end of the first document"))

        removed: list[asyncio.Task[None]] = []
        tab.cdp.on("Page.frameNavigated", navigated)

    async def _give_back(self) -> None:
        for page in list(self._pages.values())[1:]:
            await page.close()
        if self._page.is_closed():
            return
        if self._emptied:
            await self._empty(self._sessions[0])
            await self._page.context.add_cookies(self._cookies)
        for session in self._sessions:
            await session.send("Emulation.clearDeviceMetricsOverride")
            await session.detach()
        size = self._page.viewport_size
        if size is not None:  # Playwright does not send the same size twice
            await self._page.set_viewport_size({"width": size["width"], "height": size["height"] + 1})
            await self._page.set_viewport_size(size)
        await self._page.emulate_media(reduced_motion="reduce" if self._reduced_motion else "no-preference")

    async def _empty(self, cdp: Any) -> None:
        """Empty the stores of the site's origin, and remove its host's cookies."""
        await self._page.context.clear_cookies(domain=urlsplit(self._emptied).hostname or "")
        await cdp.send("Storage.clearDataForOrigin", {"origin": self._emptied, "storageTypes": STORES})

    async def _open_tab(self) -> Tab:
        try:
            return await self._take(await self._page.context.new_page())
        except Error as error:
            raise BrowserError(f"no further page could be opened: {error.message}") from error

    async def _take(self, page: Page) -> Tab:
        """Make a tab of a page."""
        session = await PlaywrightSession.open(page)
        self._pages[session.target_id] = page
        self._sessions.append(session)
        gone = partial(self._on_gone, session.target_id, BrowserError("the page was closed"))
        crashed = partial(self._on_gone, session.target_id, PageCrashed("the page crashed"))
        listeners: dict[Any, Callable[[Any], None]] = {
            "dialog": _keep_open,
            "popup": self._on_popup,
            "close": gone,
            "crash": crashed,
        }
        for event, listener in listeners.items():
            page.on(event, listener)
            self._listeners.append((page, event, listener))
        session.on("Page.windowOpen", self._on_announced)
        tab = await self._add(session, None)
        await session.send("Page.bringToFront")
        return tab

    def _on_gone(self, target: str, error: BrowserError, _page: Page) -> None:
        self.tab_gone(target, error)

    def _on_announced(self, _event: dict[str, Any]) -> None:
        window: asyncio.Future[Page] = asyncio.get_running_loop().create_future()
        self._announced.append(window)
        self._take_window(window)

    def _on_popup(self, page: Page) -> None:
        waiting = [window for window in self._announced if not window.done()]
        if waiting:
            window, *self._announced = waiting
        else:
            window = asyncio.get_running_loop().create_future()
            self._take_window(window)
        window.set_result(page)

    def _take_window(self, window: asyncio.Future[Page]) -> None:
        many = len(self.tabs) + len(self._setting_up) >= MAX_TABS
        work = self._refuse_window(window) if many else self._adopt_window(window)
        start_background(work, self._setting_up, "setting up a window that a page opened")

    async def _adopt_window(self, window: asyncio.Future[Page]) -> None:
        try:
            async with asyncio.timeout(WINDOW_SECONDS):
                await self._take(await window)
        except (BrowserError, TimeoutError) as error:
            logger.warning("a popup went away before it was set up: %s", error)

    async def _refuse_window(self, window: asyncio.Future[Page]) -> None:
        self.popups_refused += 1
        try:
            async with asyncio.timeout(WINDOW_SECONDS):
                await (await window).close()
        except (Error, TimeoutError) as error:
            logger.warning("a popup too many was not closed: %s", error)


class UserPageLender(ContextLender):
    """Lends the caller's page as the context of each episode."""

    def __init__(self, page: Page) -> None:
        super().__init__(PoolOptions(max_sessions=1), None)
        self._page = page
        self._allow = AllowList.of()

    def allow_of(self, context: BrowserContext) -> AllowList:
        """Return the hosts that actions may go to; the page reaches what its browser does."""
        return self._allow

    async def acquire(self, site: Site, task: WebTask) -> BrowserContext:
        """Take the page.

        Sites that are served here begin with empty stores, as in a new context.
        """
        self._allow = AllowList.of(site.origin, *site.hosts)
        served = not site.foreign and type(site).start is not Site.start
        return await UserPageContext.attach(
            self._page, replace(self.options_of(site), virtual=False), emptied=site.origin if served else ""
        )

    def lead(self, context: BrowserContext, site: Site, routes: Mapping[tuple[str, int], AnyPath]) -> None:
        """Refuse hosts under true names: the caller's browser does not find them.

        Raises:
            BrowserError: There are some.
        """
        if routes:
            raise BrowserError(f"site {site.name} has hosts that only browsers of ours find; leave out page")

    async def release(self, context: BrowserContext, site: Site) -> None:
        """Give the page back to its owner."""
        await context.close()

    def lent_page(self, page: Any) -> LentPage:
        """Return the page for Playwright, which has it already."""
        return LentPage(page, Connection(_no_connection), own=self._page)


class UserPagePool(BrowserPool):
    """A pool of one session, on the caller's page.

    It starts a Chromium only for a grading that draws pages.
    """

    def __init__(self, page: Page) -> None:
        lender = UserPageLender(page)
        super().__init__(lender.options)
        self.contexts = lender

    async def __aenter__(self) -> UserPagePool:
        return self

    @asynccontextmanager
    async def lease(self, site: Site, *, inspect: Inspect | None = None) -> AsyncIterator[WebSession]:
        """Lend the session on the page.

        Raises:
            ConfigError: The site has a log-in, which would replace the caller's own.
            CapacityError: The page is used by another session.
        """
        if site.cookies or site.stores:
            raise ConfigError(f"page: a log-in of {site.name} is named; log in on your page, and leave it out")
        async with super().lease(site, inspect=inspect) as session:
            yield session


def _keep_open(_dialog: object) -> None:
    """Keep Playwright from closing a dialog, which the policy answers."""


async def _no_connection(_timeout: float) -> NoReturn:
    raise ConnectionLost("a page of Playwright's has no connection of ours")
