"""Long-lived Chromium processes and their contexts, lent to sessions."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, TypeVar

from envs.background import start_background
from envs.browser.browsers import BrowserSet, ContextCache
from envs.browser.context import BrowserContext
from envs.browser.dispatcher import Dispatcher
from envs.browser.episode import EpisodePage
from envs.browser.options import ContextOptions, Device, PoolCounters, PoolOptions
from envs.browser.session import WebSession
from envs.browser.tab import Tab
from envs.cancel_scope import finish_shielded
from envs.egress import AllowList, EgressProxy, SiteSecrets
from envs.settle import EPOCH_SECONDS
from envs.sites.base import Site
from envs.types import BrowserError, WebTask, read_date

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_SCRATCH_TABS = 2
"""Contexts outside of episodes at a time: drawing a page is a core's work, and more of them would slow the episodes."""


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
        """``changes`` are fields of `PoolOptions`, laid over ``options``.

        ``secrets`` are added to requests by the proxy and seen by nobody.
        """
        self.options = replace(options or PoolOptions(), **changes)
        self.counters = PoolCounters()
        self.dispatcher = Dispatcher()
        """Queues of all operations on pages."""
        self.egress = EgressProxy(secrets=secrets)
        """The proxy of all pages."""
        self._numbers = itertools.count()
        self._cache = ContextCache()
        self._browser_set = BrowserSet(self.options, self.counters, self.egress, self._cache)
        self._slots = asyncio.Semaphore(self.options.max_sessions)
        self._scratch = asyncio.Semaphore(MAX_SCRATCH_TABS)
        self._background: set[asyncio.Task[None]] = set()
        self._opening = 0
        """Contexts that are being opened for episodes: each has its place already."""
        self._prewarming = 0
        """Contexts that are being opened beforehand."""
        self._leaving: set[asyncio.Task[None]] = set()
        """Close contexts that waited and are not used again: each keeps its place until it is gone."""

    async def __aenter__(self) -> BrowserPool:
        try:
            await self._browser_set.pick_browser()
        except BaseException:
            await finish_shielded(self.close())  # `__aexit__` is not called
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def lease(self, site: Site) -> AsyncIterator[WebSession]:
        """Lend a session on ``site``, closed at the end.

        Chromium is started (again) if it does not run.

        Raises:
            BrowserError: Chromium cannot be started, or the pool is closed.
        """
        async with self._slots:
            self._browser_set.check_open()
            session = WebSession(self, site, step_deadline=self.options.step_deadline)
            try:
                yield session
            finally:
                await session.close()

    async def scratch_tab(
        self, where: Device | Site, work: Callable[[Tab], Coroutine[Any, Any, T]], *, deadline: float, what: str
    ) -> T:
        """Run ``work`` on a blank tab in a context of its own, closed afterwards.

        It takes no session's place, so that grading never waits for episodes.

        Args:
            where: A site, whose pages look as in episodes; or a screen for pages of no site, such as one that a policy wrote: the tab then
                reaches nothing.
            deadline: Real seconds for ``work``; opening the tab may take as long as a step.
            what: Name of the work in errors.

        Raises:
            BrowserError: No browser or context, or the work failed or took longer.
        """
        async with self._scratch:
            self._browser_set.check_open()
            if isinstance(where, Device):
                blocked = (await self._browser_set.blocked_listener()).address
                options = ContextOptions(
                    "", where, proxy=blocked, seed=self.options.random_seed, virtual=self.options.holds_clocks
                )
                return await self._run_scratch(options, EPOCH_SECONDS, work, deadline, what)
            await self.egress.start()
            listener = await self.egress.open(AllowList.of(where.origin, *where.hosts))
            try:
                options = replace(self._context_options(where), proxy=listener.address)
                return await self._run_scratch(options, self._date(where), work, deadline, what)
            finally:
                await listener.close()

    def browser_pids(self) -> tuple[int, ...]:
        """Process ids of the Chromiums that we started, each browser process before its children."""
        return tuple(pid for browser in self._browser_set.browsers for pid in browser.pids)

    def metrics(self) -> dict[str, Any]:
        """Counters of the pool, of each kind of operation, and of each browser."""
        return {
            **asdict(self.counters),
            "requests_refused": {str(reason): count for reason, count in self.egress.refusals.items()},
            "idle": len(self._cache.idle),
            "ready": len(self._cache.ready),
            "lent": len(self._cache.lent),
            "operations": {str(kind): asdict(done) for kind, done in self.dispatcher.metrics().kinds.items()},
            "disconnects": sum(browser.disconnects for browser in self._browser_set.browsers),
            "browsers": [
                {
                    "episodes": browser.episodes,
                    "contexts": len(browser.contexts),
                    "priorities_lowered": browser.cpu_guard.lowered,
                    **browser.connection.metrics(),
                }
                for browser in self._browser_set.browsers
            ],
        }

    async def close(self) -> None:
        """Stop everything. Sessions that are still lent fail."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)  # their errors are logged by `start_background`
        await self._browser_set.close()

    # ------------------------------------------------------------------------------------- used by sessions

    async def acquire(self, site: Site, task: WebTask) -> BrowserContext:
        """Return a context for an episode.

        That is an idle one which shows the task's page, a new one while there is room, else any of
        the site's.
        """
        cache, again = self._cache, site.stateless_pages
        for gone in cache.withdraw(lambda context: not context.reusable):
            self._leaving.add(start_background(self._close(gone), self._background, "closing a context"))
        date = self._date(site, task.date)
        full = self._places_taken >= self.options.max_sessions
        context = cache.take(site, task, date, full=full) if again else None
        if context is not None:
            cache.lent.add(context)
            return context
        self._opening += 1
        try:
            await self._make_room()
            options, allow = self._context_options(site), AllowList.of(site.origin, *site.hosts)
            ready = None if again else cache.take_ready(options, allow)
            context = ready or await self._open(options, allow)
            context.date = date
            if not site.foreign:  # its server's dates are the page's
                cache.listener_of(context).now = lambda: context.now
            cache.lent.add(context)
            return context
        finally:
            self._opening -= 1

    def episode_page(self, context: BrowserContext, site: Site, task: WebTask) -> EpisodePage:
        """Make the page of a new episode, with its queues."""
        return EpisodePage(
            context=context,
            queues=self.dispatcher.open_queues(f"{task.task_id} #{next(self._numbers)}"),
            site=site,
            task=task,
            budget_ms=self.options.settle_budget_ms,
            allow=self._cache.listener_of(context).allow,
            marks=self.options.marks,
            screenshots=self.options.screenshots,
            clipboard=self.options.process_per_episode,
            files=self.options.files / task.files if self.options.files and task.files else None,
            inspect=self.options.inspect,
        )

    def record_episode(self, site: Site, *, loaded: bool) -> None:
        """Count an episode that has begun, and open a context for the next one.

        ``loaded`` is True if its page was loaded for it. Opened earlier, the next context would slow this episode's first observation.
        """
        self.counters.episodes += 1
        self.counters.navigations += loaded
        if self.options.prewarm and not site.stateless_pages:
            options = replace(self._context_options(site), owner="")
            start_background(self._prewarm(options), self._background, "opening a context beforehand")

    async def release(self, context: BrowserContext, site: Site) -> None:
        """Take a context back, or close it if it is broken, old or single-use."""
        browser = self._cache.browser_of(context)
        browser.episodes += 1
        old = context.episodes >= self.options.recycle_after
        keep = site.stateless_pages and not self.options.process_per_episode and not self._browser_set.closed
        if keep and context.reusable and not (old or browser.retired or browser.lost):
            self._cache.lent.discard(context)
            self._cache.idle.append(context)
            return
        if context.broken:
            self.counters.contexts_broken += 1
        elif old:
            self.counters.contexts_recycled += 1
        try:
            await self._close(context)
        finally:
            self._cache.lent.discard(context)  # not before it is gone: its place would be given away

    # ------------------------------------------------------------------------------------------------ contexts

    @property
    def _places_taken(self) -> int:
        """Number of contexts that are open or being opened, without those opened beforehand."""
        return self._cache.size + self._opening + len(self._leaving)

    async def _make_room(self) -> None:
        """Close contexts that wait, until all that are being opened have a place."""
        while self._places_taken > self.options.max_sessions:
            if self._leaving:
                await asyncio.wait(self._leaving, return_when=asyncio.FIRST_COMPLETED)
                self._leaving = {task for task in self._leaving if not task.done()}
            elif self._cache.idle:
                await self._close(self._cache.idle.pop(0))  # its place is the one that was made
            else:
                return

    async def _open(self, options: ContextOptions, allow: AllowList) -> BrowserContext:
        await self.egress.start()
        listener = await self.egress.open(allow)
        try:
            browser, context = await self._browser_set.open_context(replace(options, proxy=listener.address))
        except BaseException:
            await listener.close()
            raise
        self._cache.put(context, browser, listener)
        self.counters.contexts_opened += 1
        return context

    async def _close(self, context: BrowserContext) -> None:
        """Close a context, and its browser if nothing more is to come on that."""
        browser = self._cache.browser_of(context)
        try:
            await self._cache.close(context)
        finally:
            await self._browser_set.remove_if_over(browser)

    def _date(self, site: Site, given: str = "") -> float | None:
        """Return the date at which the clock of a site's pages begins; ``None`` for the real time.

        ``given`` is the task's date.
        """
        if chosen := given or self.options.page_date:
            return read_date(chosen)
        return None if site.foreign else EPOCH_SECONDS

    def _context_options(self, site: Site) -> ContextOptions:
        """Return the context options of a site, without the proxy."""
        options = self.options
        return ContextOptions(
            owner=site.name,
            device=options.device or Device(site.viewport),
            style=site.style,
            downloads=options.downloads,
            seed=options.random_seed,
            signals=options.signals,
            background=site.background,
            fields=site.observation.rules != "small",  # which shows none of them
            drawn=options.screenshots,
            virtual=options.holds_clocks,
        )

    async def _run_scratch(
        self,
        options: ContextOptions,
        date: float | None,
        work: Callable[[Tab], Coroutine[Any, Any, T]],
        deadline: float,
        what: str,
    ) -> T:
        try:
            async with asyncio.timeout(self.options.step_deadline):
                browser, context = await self._browser_set.open_context(options)
        except TimeoutError as error:
            raise BrowserError(f"no page for {what} within {self.options.step_deadline:g} s") from error
        context.date = date
        try:
            return await context.guard(work(context.active), deadline, what)
        finally:
            try:
                await browser.close_context(context)
            finally:
                await self._browser_set.remove_if_over(browser)

    async def _prewarm(self, options: ContextOptions) -> None:
        """Open contexts with these options for the next episodes; close ready ones of another kind."""
        cache = self._cache
        while sum(context.fits(options) for context in cache.ready) + self._prewarming < self.options.prewarm:
            self._prewarming += 1
            try:
                for other in cache.withdraw(lambda context: not context.owner and not context.fits(options)):
                    await self._close(other)
                context = await self._open(options, AllowList.of())
                cache.ready.append(context)  # the list may have become another one meanwhile
            except BrowserError as error:
                logger.warning("no context could be opened beforehand: %s", error)  # the episode will try, and say so
                return
            finally:
                self._prewarming -= 1
