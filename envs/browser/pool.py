"""Long-lived Chromium processes and their contexts, lent to sessions."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, TypeVar

from envs.browser.browser import Browser
from envs.browser.cdp import ConnectionLost
from envs.browser.chromium import find_chromium, launch_args
from envs.browser.context import BrowserContext, ContextOptions, Device
from envs.browser.dispatcher import Dispatcher
from envs.browser.episode import EpisodePage
from envs.browser.options import PoolCounters, PoolOptions
from envs.browser.session import WebSession
from envs.browser.tab import Tab
from envs.browser.to_the_end import to_the_end
from envs.egress import AllowList, EgressProxy, Listener, SiteSecrets
from envs.sites.base import Site
from envs.types import BrowserError, WebTask

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_APART = 2
"""Contexts outside of episodes at a time: drawing a page is a core's work, and more of them would slow the episodes."""

WATCH_SECONDS = 10.0
"""Between looks at memory; a look costs 10 ms."""


class BrowserPool:
    """Lends sessions on pages of its browsers. Made and used in one event loop.

    Example::

        async with BrowserPool() as pool, pool.lease(site) as session:
            frame = await session.reset(task, seed=200_000)
            frame = await session.step(Click(element=1))
    """

    def __init__(
        self, options: PoolOptions | None = None, *, secrets: SiteSecrets | None = None, **changes: Any
    ) -> None:
        """``changes`` are fields of `PoolOptions`, laid over ``options``; ``secrets`` are added to requests by the proxy and seen by nobody."""
        given = {name: getattr(options, name) for name in PoolOptions.__dataclass_fields__} if options else {}
        self.options = PoolOptions(**{**given, **changes})
        self.counters = PoolCounters()
        self.dispatcher = Dispatcher()
        """Queues of all operations on pages."""
        self.egress = EgressProxy(secrets=secrets)
        """The way out of all pages."""
        self._numbers = itertools.count()
        self._listeners: dict[BrowserContext, Listener] = {}
        self._no_way_out: Listener | None = None
        self._making_nowhere = asyncio.Lock()
        self._slots = asyncio.Semaphore(self.options.max_sessions)
        self._apart = asyncio.Semaphore(MOST_APART)
        self._launching = asyncio.Lock()
        self._browsers: list[Browser] = []
        self._of: dict[BrowserContext, Browser] = {}
        self._idle: list[BrowserContext] = []
        self._lent: set[BrowserContext] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def __aenter__(self) -> BrowserPool:
        await self._browser()
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
            self._check_open()
            session = WebSession(self, site, step_deadline=self.options.step_deadline)
            try:
                yield session
            finally:
                await session.close()

    async def apart(
        self, where: Device | Site, work: Callable[[Tab], Coroutine[Any, Any, T]], *, deadline: float, what: str
    ) -> T:
        """What ``work`` makes of a blank tab in a context of its own, which is closed afterwards. It takes no place of a session, so that
        grading never waits for episodes.

        Args:
            where: A site, whose pages look as in episodes; or what to show pages on that are not of a site, such as what a policy wrote: then
                the tab reaches nothing at all.
            deadline: Real seconds for ``work``; to get the tab may take as long as a step.
            what: Names it in errors.

        Raises:
            BrowserError: no browser or context, or the work failed or took longer.
        """
        async with self._apart:
            self._check_open()
            if isinstance(where, Device):
                return await self._apart_with(await self._device_options(where), work, deadline, what)
            await self.egress.start()
            listener = await self.egress.open(AllowList.of(where.origin, *where.hosts), label=where.name)
            try:
                return await self._apart_with(self._context_options(where, listener), work, deadline, what)
            finally:
                await listener.close()

    def browser_pids(self) -> tuple[int, ...]:
        """Process ids of the Chromiums that we started, each browser process before its children."""
        return tuple(pid for browser in self._browsers for pid in browser.pids)

    def metrics(self) -> dict[str, Any]:
        """Counters, and the state of each browser's connection."""
        return {
            **asdict(self.counters),
            "requests_refused": {str(reason): count for reason, count in self.egress.refusals.items()},
            "idle": len(self._idle),
            "lent": len(self._lent),
            "disconnects": sum(browser.disconnects for browser in self._browsers),
            "browsers": [
                {
                    "episodes": browser.episodes,
                    "contexts": len(browser.contexts),
                    "greedy_pages": browser.greed.lowered,
                    **browser.connection.metrics(),
                }
                for browser in self._browsers
            ],
        }

    async def close(self) -> None:
        """Stop everything. Sessions that are still out fail."""
        self._closed = True
        for task in (*self._background, *([self._watcher] if self._watcher else [])):
            task.cancel()
        async with self._launching:
            self._idle.clear()
            browsers, self._browsers = self._browsers, []
            await asyncio.gather(*(browser.close() for browser in browsers))
            self._listeners.clear()
            await self.egress.close()

    # ------------------------------------------------------------------------------------- used by sessions

    async def acquire(self, site: Site, task: WebTask) -> BrowserContext:
        """A context for an episode: an idle one that already shows the task's page, a new one while there is room, else
        any of the site's."""
        context = self._take_idle(site, task)
        if context is None:
            context = await self._open(site)
        self._lent.add(context)
        if self.options.prewarm and not site.stateless_pages:
            self._in_background(self._prewarm(site))
        return context

    def episode_page(self, context: BrowserContext, site: Site, task: WebTask) -> EpisodePage:
        """The page of a new episode, with its queues."""
        return EpisodePage(
            context=context,
            environment=self.dispatcher.environment(f"{task.task_id} #{next(self._numbers)}"),
            site=site,
            task=task,
            budget_ms=self.options.settle_budget_ms,
            allow=self._listeners[context].allow,
            marks=self.options.marks,
            screenshots=self.options.screenshots,
            clipboard=self.options.process_per_episode,
            files=self.options.files,
            inspect=self.options.inspect,
        )

    def count_episode(self, loaded: bool) -> None:
        """An episode has begun; its page was loaded for it or was there."""
        self.counters.episodes += 1
        self.counters.navigations += loaded

    async def release(self, context: BrowserContext, site: Site) -> None:
        """Take a context back, or close it if it is broken, old, or may not be used again."""
        self._lent.discard(context)
        browser = self._of[context]
        browser.episodes += 1
        old = context.episodes >= self.options.recycle_after
        keep = site.stateless_pages and not self.options.process_per_episode and not self._closed
        if keep and context.reusable and not (old or browser.retired or browser.lost):
            self._idle.append(context)
            return
        if context.broken:
            self.counters.contexts_broken += 1
        elif old:
            self.counters.contexts_recycled += 1
        try:
            await self._close_context(context)
        finally:
            await self._remove_if_over(browser)

    # ------------------------------------------------------------------------------------------------ contexts

    def _take_idle(self, site: Site, task: WebTask) -> BrowserContext | None:
        for context in [context for context in self._idle if context.broken]:
            self._idle.remove(context)
            self._in_background(self._close_context(context))
        own = [context for context in self._idle if context.owner == site.name]
        if not site.stateless_pages:
            chosen = own[0] if own else None  # opened beforehand, not used yet
        else:
            same = [context for context in own if context.path == task.path]
            full = len(self._idle) + len(self._lent) >= self.options.max_sessions
            chosen = same[-1] if same else own[0] if own and full else None
        if chosen is not None:
            self._idle.remove(chosen)
        return chosen

    async def _open(self, site: Site) -> BrowserContext:
        while self._idle and len(self._idle) + len(self._lent) >= self.options.max_sessions:
            await self._close_context(self._idle.pop(0))  # another site's
        await self.egress.start()
        listener = await self.egress.open(AllowList.of(site.origin, *site.hosts), label=site.name)
        try:
            browser, context = await self._open_on_a_browser(self._context_options(site, listener))
        except BaseException:
            await listener.close()
            raise
        self._of[context] = browser
        self._listeners[context] = listener
        self.counters.contexts_opened += 1
        return context

    async def _open_on_a_browser(self, options: ContextOptions) -> tuple[Browser, BrowserContext]:
        """A new context, on another browser if the chosen one turns out to be gone: that it died is known a moment after it did."""
        while True:
            browser = await self._browser()
            try:
                return browser, await browser.open_context(options)
            except ConnectionLost:
                if not browser.lost:
                    raise
                logger.info("a browser went away before a context was opened on it; another one is taken")

    def _context_options(self, site: Site, listener: Listener) -> ContextOptions:
        options = self.options
        return ContextOptions(
            owner=site.name,
            device=options.device or Device(site.viewport),
            style=site.style,
            proxy=listener.address,
            downloads=options.downloads,
            seed=options.random_seed,
            signals=options.signals,
            background=site.background,
            drawn=options.screenshots,
            virtual=self._virtual_time,
        )

    @property
    def _virtual_time(self) -> bool:
        options = self.options
        return not options.external if options.virtual_time is None else options.virtual_time

    async def _close_context(self, context: BrowserContext) -> None:
        """Close a context and its way out; one that was closed with its browser or its pool meanwhile is closed."""
        browser, listener = self._of.pop(context, None), self._listeners.pop(context, None)
        try:
            if browser is not None:
                await browser.close_context(context)
        finally:
            if listener is not None:
                await listener.close()

    async def _device_options(self, device: Device) -> ContextOptions:
        """Of a context that reaches nothing."""
        return ContextOptions(
            owner="",
            device=device,
            proxy=(await self._nowhere()).address,
            seed=self.options.random_seed,
            virtual=self._virtual_time,
        )

    async def _apart_with(
        self, options: ContextOptions, work: Callable[[Tab], Coroutine[Any, Any, T]], deadline: float, what: str
    ) -> T:
        try:
            async with asyncio.timeout(self.options.step_deadline):
                browser, context = await self._open_on_a_browser(options)
        except TimeoutError as error:
            raise BrowserError(f"no page for {what} within {self.options.step_deadline:g} s") from error
        try:
            return await context.guard(work(context.active), deadline, what)
        finally:
            try:
                await browser.close_context(context)
            finally:
                await self._remove_if_over(browser)

    async def _prewarm(self, site: Site) -> None:
        ready = sum(context.owner == site.name for context in self._idle)
        if ready < self.options.prewarm and len(self._idle) + len(self._lent) < self.options.max_sessions:
            try:
                self._idle.append(await self._open(site))
            except BrowserError as error:
                logger.warning("no context could be opened beforehand: %s", error)  # the episode will try, and say so

    # ------------------------------------------------------------------------------------------------ browsers

    async def _browser(self) -> Browser:
        """The browser with the fewest contexts; started if there are too few. Concurrent callers start one, not one each."""
        async with self._launching:
            self._check_open()
            for browser in [browser for browser in self._browsers if browser.lost]:
                if browser in self._browsers:  # nobody else has removed it while we waited for the one before
                    self.counters.browsers_lost += 1
                    await self._remove(browser)
            fit = [browser for browser in self._browsers if not browser.retired]
            wanted = 1 if self.options.external else self.options.processes
            if self.options.process_per_episode:
                fit = [browser for browser in fit if not browser.load]
                wanted = 1
            if len(fit) < wanted:
                fit.append(await self._start())
            return min(fit, key=lambda browser: browser.load)

    async def _start(self) -> Browser:
        options = self.options
        if options.external:
            await self.egress.start()
            browser = await Browser.connect(options.external, options.times)
        else:
            arguments = launch_args((await self._nowhere()).address)
            browser = await Browser.launch(options.executable or find_chromium(), arguments, options.times)
            self.counters.launches += 1
        self._browsers.append(browser)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch(), name="browser-pool")
        return browser

    async def _nowhere(self) -> Listener:
        """The way out of what may not get out."""
        await self.egress.start()
        async with self._making_nowhere:
            if self._no_way_out is None:
                self._no_way_out = await self.egress.open(AllowList.of(), label="no context")
            return self._no_way_out

    async def _remove_if_over(self, browser: Browser) -> None:
        """After one of its contexts was closed."""
        if self.options.process_per_episode or (browser.retired and not browser.contexts):
            await self._remove(browser)

    async def _remove(self, browser: Browser) -> None:
        """End a browser. The episode on it, the next episode and the watcher may all find that it is over: the first of them ends it."""
        if browser not in self._browsers:
            return
        self._browsers.remove(browser)
        idle = [context for context in self._idle if context in browser.contexts]
        self._idle = [context for context in self._idle if context not in idle]
        await to_the_end(self._end(browser, idle))

    async def _end(self, browser: Browser, idle: list[BrowserContext]) -> None:
        try:
            await browser.close()
        finally:
            for context in idle:
                self._of.pop(context, None)
                listener = self._listeners.pop(context, None)
                if listener is not None:
                    await listener.close()

    async def _watch(self) -> None:
        """Retire browsers that are old or large; the next one is started by who needs it."""
        while not self._closed:
            await asyncio.sleep(WATCH_SECONDS)
            for browser in list(self._browsers):
                await self._look_at(browser)

    async def _look_at(self, browser: Browser) -> None:
        process, options = browser.process, self.options
        if process is None or browser.retired or browser.lost:
            return
        memory = await asyncio.to_thread(process.memory_mb)
        if memory < options.most_memory_mb and browser.episodes < options.retire_after:
            return
        logger.info("Chromium %d is replaced after %d episodes at %.0f MB", process.pid, browser.episodes, memory)
        browser.retired = True
        self.counters.browsers_retired += 1
        for context in [context for context in self._idle if context in browser.contexts]:
            self._idle.remove(context)
            await self._close_context(context)
        if not browser.contexts:
            await self._remove(browser)

    def _check_open(self) -> None:
        if self._closed:
            raise BrowserError("the pool is closed")

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
