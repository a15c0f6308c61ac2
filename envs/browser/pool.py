"""One long-lived Chromium and its pages, lent to sessions."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import psutil
from playwright.async_api import Browser, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from envs.browser.chromium import LAUNCH_ARGS, find_chromium
from envs.browser.page import BrowserPage
from envs.browser.session import WebSession
from envs.browser.settle import BUDGET_MS
from envs.sites.base import Site
from envs.types import BrowserError, WebTask

logger = logging.getLogger(__name__)

STEP_DEADLINE = 60.0
"""Real seconds for a reset or a step. They take 0.05 s alone; a dozen first page loads on a machine whose file cache was cold took over 20."""

LAUNCH_SECONDS = 30.0
"""Real seconds for Chromium to start (0.13 s when idle)."""

STOP_SECONDS = 5.0
"""Real seconds for Chromium to answer or to stop (0.05 s when idle) before it is killed."""

LOADS_AT_ONCE = max(2, os.cpu_count() or 2)
"""Pages loaded at a time: a load takes about a core, and more of them only make each other miss their deadline."""

RECYCLE_AFTER = 500
"""Episodes after which a page is closed: pages leak slowly, and opening one costs about what four episodes cost."""


@dataclass
class PoolCounters:
    """What a pool has done since it was made."""

    launches: int = 0
    """Chromium processes started; more than one means that it died."""
    disconnects: int = 0
    """Times that Chromium went away by itself."""
    pages_opened: int = 0
    pages_recycled: int = 0
    """Pages closed because they were old."""
    pages_broken: int = 0
    """Pages closed because something failed on them."""
    navigations: int = 0
    episodes: int = 0


class BrowserPool:
    """Lends pages of one Chromium. Made and used in one event loop.

    Example::

        async with BrowserPool() as pool, pool.lease(site) as session:
            frame = await session.reset(task, seed=200_000)
            frame = await session.step(Click(element=1))
    """

    def __init__(
        self,
        *,
        max_sessions: int = 16,
        step_deadline: float = STEP_DEADLINE,
        settle_budget_ms: float = BUDGET_MS,
        recycle_after: int = RECYCLE_AFTER,
        executable: Path | None = None,
    ) -> None:
        """
        Args:
            max_sessions: Leases at a time; more wait.
            step_deadline: Real seconds for each reset and step.
            settle_budget_ms: Virtual milliseconds that a page gets after an action.
            recycle_after: Episodes after which a page is closed and opened anew.
            executable: Chromium; found by `find_chromium` if not given.
        """
        if max_sessions < 1 or recycle_after < 1 or step_deadline <= 0:
            raise BrowserError("max_sessions and recycle_after must be at least 1 and step_deadline above 0")
        self.counters = PoolCounters()
        self._step_deadline = step_deadline
        self._budget = settle_budget_ms
        self._recycle_after = recycle_after
        self._executable = executable
        self._marker = f"--rollwright-pool={uuid4().hex}"  # Chromium ignores it; it tells our process from others
        self._max_sessions = max_sessions
        self._slots = asyncio.Semaphore(max_sessions)
        self.loading = asyncio.Semaphore(LOADS_AT_ONCE)
        """Held by a session while it loads a page."""
        self._launching = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._process: psutil.Process | None = None
        self._suspect = False
        self._gone: asyncio.Future[Any] | None = None  # made by a launch: a pool may be made outside the loop
        self._idle: list[BrowserPage] = []
        self._lent: set[BrowserPage] = set()
        self._closed = False

    async def __aenter__(self) -> BrowserPool:
        await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def lease(self, site: Site) -> AsyncIterator[WebSession]:
        """A session on ``site``, closed at the end. Chromium is started (again) if it is not there.

        Raises:
            BrowserError: Chromium cannot be started, or the pool is closed.
        """
        async with self._slots:
            await self._connected()
            session = WebSession(self, site, step_deadline=self._step_deadline, settle_budget_ms=self._budget)
            try:
                yield session
            finally:
                await session.close()

    def browser_pids(self) -> tuple[int, ...]:
        """Process ids of Chromium, the browser process first; empty when none runs."""
        try:
            if self._process is not None and self._process.is_running():
                return (self._process.pid, *(child.pid for child in self._process.children(recursive=True)))
        except psutil.NoSuchProcess:
            pass  # it ended while we looked
        return ()

    async def close(self) -> None:
        """Stop Chromium. Sessions that are still out fail."""
        self._closed = True
        async with self._launching:
            await self._stop()

    # ------------------------------------------------------------------------------------- used by sessions

    async def acquire(self, site: Site, task: WebTask) -> BrowserPage:
        """A page for an episode: an idle one that already shows the task's page, a new one while there is room, else
        any of the site's."""
        browser = await self._connected()
        page = self._take_idle(site, task) if site.stateless_pages else None
        if page is None:
            page = await self._open(browser, site)
        self._lent.add(page)
        return page

    async def release(self, page: BrowserPage, site: Site) -> None:
        """Take a page back, or close it if it is broken, old, or may not be used again."""
        self._lent.discard(page)
        old = page.episodes >= self._recycle_after
        if not page.broken and not old and site.stateless_pages and not self._closed:
            self._idle.append(page)
            return
        if page.broken:
            self._suspect = True
            self.counters.pages_broken += 1
        elif old:
            self.counters.pages_recycled += 1
        await page.close()

    # ------------------------------------------------------------------------------------------------ inside

    def _take_idle(self, site: Site, task: WebTask) -> BrowserPage | None:
        self._idle = [page for page in self._idle if not page.broken]
        own = [page for page in self._idle if page.owner == site.name]
        same = [page for page in own if page.path == task.path]
        full = len(self._idle) + len(self._lent) >= self._max_sessions
        chosen = same[-1] if same else own[0] if own and full else None
        if chosen is not None:
            self._idle.remove(chosen)
        return chosen

    async def _open(self, browser: Browser, site: Site) -> BrowserPage:
        while self._idle and len(self._idle) + len(self._lent) >= self._max_sessions:
            await self._idle.pop(0).close()  # another site's
        opening = asyncio.ensure_future(
            BrowserPage.open(browser, owner=site.name, viewport=site.viewport, style=site.style)
        )
        try:
            # Playwright leaves the opening of a page unanswered if Chromium dies under it.
            waited: set[asyncio.Future[Any]] = {opening} if self._gone is None else {opening, self._gone}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise BrowserError("Chromium went away while a page was opened")
            page = opening.result()
        except PlaywrightError as error:
            self._suspect = True
            raise BrowserError(f"no page could be opened: {error.message}") from error
        finally:
            opening.cancel()
        self.counters.pages_opened += 1
        return page

    async def _connected(self) -> Browser:
        async with self._launching:  # concurrent leases start one browser, not one each
            if self._closed:
                raise BrowserError("the pool is closed")
            if self._browser is None or not await self._answers(self._browser):
                await self._stop()
                self._browser = await self._launch()
            return self._browser

    async def _answers(self, browser: Browser) -> bool:
        """Whether Chromium is there. Asked only after a failure: Playwright notices a dead Chromium, but not its own dead driver."""
        if not browser.is_connected() or not self._suspect:
            return browser.is_connected()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                cdp = await browser.new_browser_cdp_session()
                await cdp.send("Browser.getVersion")
                await cdp.detach()
        except (PlaywrightError, TimeoutError) as error:
            logger.warning("Chromium does not answer and is started anew: %s", error)
            return False
        self._suspect = False
        return True

    async def _launch(self) -> Browser:
        executable = self._executable or find_chromium()
        try:
            async with asyncio.timeout(LAUNCH_SECONDS):
                # The driver is started anew with its browser: it may be what died.
                self._playwright = await async_playwright().start()
                browser = await self._playwright.chromium.launch(
                    executable_path=executable,
                    headless=True,
                    args=[*LAUNCH_ARGS, self._marker],
                    handle_sigint=False,  # who stops the run closes the pool
                    handle_sigterm=False,
                    handle_sighup=False,
                )
        except (PlaywrightError, TimeoutError, OSError) as error:
            await self._stop()
            raise BrowserError(f"{executable} did not start: {error}") from error
        self._process = _process_with(self._marker)
        self._suspect = False
        self._gone = asyncio.get_running_loop().create_future()
        browser.on("disconnected", self._on_disconnected)
        self.counters.launches += 1
        return browser

    def _on_disconnected(self, browser: Browser) -> None:
        if browser is not self._browser:
            return
        self.counters.disconnects += 1
        self._fail_all("Chromium went away")

    def _fail_all(self, why: str) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        for page in (*self._lent, *self._idle):
            page.fail(why)

    async def _stop(self) -> None:
        browser, playwright = self._browser, self._playwright
        self._browser = self._playwright = None
        self._fail_all("Chromium was stopped")
        self._idle.clear()
        # The driver is Chromium's parent; with both known, nothing is left even if neither answers any more.
        process, self._process = self._process, None
        left = [] if process is None else _family(process)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                if browser is not None and browser.is_connected():
                    await browser.close()
                if playwright is not None:
                    await playwright.stop()
        except (PlaywrightError, TimeoutError) as error:
            logger.warning("Chromium did not stop by itself and is killed: %s", error)
        await asyncio.to_thread(_end, left)


def _process_with(argument: str) -> psutil.Process | None:
    """Our process that was started with this argument."""
    for process in psutil.Process().children(recursive=True):
        try:
            if argument in process.cmdline():
                return process
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # it ended while we looked
    return None


def _family(process: psutil.Process) -> list[psutil.Process]:
    """Chromium, its children and its driver, as far as they are there."""
    try:
        driver = process.parent()
        own = driver is not None and driver.ppid() == os.getpid()
        return [*process.children(recursive=True), process, *([driver] if own and driver else [])]
    except psutil.NoSuchProcess:
        return []


def _end(left: list[psutil.Process]) -> None:
    """Kill what does not end by itself."""
    _, alive = psutil.wait_procs(left, timeout=2)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=2)
