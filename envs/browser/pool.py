"""Long-lived Chromium processes and their contexts, lent to sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from envs.browser.contexts import ContextLender
from envs.browser.dispatcher import Dispatcher
from envs.browser.options import ContextOptions, Device, Inspect, PoolCounters, PoolOptions
from envs.browser.session import WebSession
from envs.browser.tab import Tab
from envs.cancel_scope import finish_shielded
from envs.egress import AllowList, SiteSecrets
from envs.settle import EPOCH_SECONDS
from envs.sites.base import Site
from envs.types import BrowserError, CapacityError
from envs.types.paths import AnyPath

T = TypeVar("T")

MAX_SCRATCH_TABS = 2
"""Contexts outside of episodes at a time: drawing a page is a core's work, and more of them would
slow the episodes."""
NO_ROUTES: Mapping[tuple[str, int], AnyPath] = MappingProxyType({})


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

        ``secrets`` are added to requests by the proxy; neither page nor policy sees them.

        Raises:
            BrowserError: An option is unknown, or its value is not allowed.
        """
        try:
            self.options = PoolOptions(**{**dict(options or ()), **changes})
        except ValidationError as error:
            raise BrowserError("; ".join(_explain(one) for one in error.errors())) from None
        self.dispatcher = Dispatcher()
        """Queues of all operations on pages."""
        self.contexts = ContextLender(self.options, secrets)
        self._slots = asyncio.Semaphore(self.options.max_sessions)
        self._scratch = asyncio.Semaphore(MAX_SCRATCH_TABS)

    @property
    def counters(self) -> PoolCounters:
        """Counters of the pool since it was made."""
        return self.contexts.counters

    async def __aenter__(self) -> BrowserPool:
        try:
            await self.contexts.browser_set.pick_browser()
        except BaseException:
            await finish_shielded(self.close())  # `__aexit__` is not called
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    @asynccontextmanager
    async def lease(self, site: Site, *, inspect: Inspect | None = None) -> AsyncIterator[WebSession]:
        """Lend a session on ``site``, closed at the end.

        Chromium is started (again) if it does not run.

        Args:
            site: A started site.
            inspect: Takes the place of `PoolOptions.inspect`.

        Raises:
            CapacityError: All sessions are in use, and none became free in ``lease_deadline``.
            BrowserError: Chromium cannot be started, or the pool is closed.
        """
        async with self._slot():
            self.contexts.browser_set.check_open()
            deadline = self.options.step_deadline
            session = WebSession(
                self.contexts,
                self.dispatcher,
                site,
                step_deadline=deadline,
                inspect=inspect,
                lease=partial(self.lease, site, inspect=inspect),
            )
            try:
                yield session
            finally:
                await session.close()

    async def scratch_tab(
        self,
        where: Device | Site,
        work: Callable[[Tab], Coroutine[Any, Any, T]],
        *,
        deadline: float,
        what: str,
        routes: Mapping[tuple[str, int], AnyPath] = NO_ROUTES,
    ) -> T:
        """Run ``work`` on a blank tab in a context of its own, closed afterwards.

        It takes no session's place, so that grading never waits for episodes.

        Args:
            where: A site, whose pages look as in episodes; or a screen for pages of no site, such
                as one that a policy wrote: the tab then reaches nothing.
            deadline: Real seconds for ``work``; opening the tab may take as long as a step.
            what: Name of the work in errors.
            routes: Those of the site's episode (`SiteEpisode.routes`).

        Raises:
            BrowserError: No browser or context, or the work failed or took longer.
        """
        async with self._scratch:
            self.contexts.browser_set.check_open()
            if isinstance(where, Device):
                blocked = (await self.contexts.browser_set.blocked_listener()).address
                options = ContextOptions(
                    "", where, proxy=blocked, seed=self.options.page_seed, virtual=self.options.holds_clocks
                )
                return await self._run_scratch(options, EPOCH_SECONDS, work, deadline, what)
            await self.contexts.egress.start()
            listener = await self.contexts.egress.open(AllowList.of(where.origin, *where.hosts))
            listener.routes = routes
            try:
                options = replace(self.contexts.options_of(where), proxy=listener.address)
                return await self._run_scratch(options, self.contexts.date(where), work, deadline, what)
            finally:
                await listener.close()

    def browser_pids(self) -> tuple[int, ...]:
        """Process ids of the Chromiums that we started, each browser process before its
        children."""
        return tuple(pid for browser in self.contexts.browser_set.browsers for pid in browser.pids)

    def metrics(self) -> dict[str, Any]:
        """Counters of the pool, of each kind of operation, and of each browser."""
        return {
            **asdict(self.counters),
            "requests_refused": {str(reason): count for reason, count in self.contexts.egress.refusals.items()},
            "idle": len(self.contexts.cache.idle),
            "ready": len(self.contexts.cache.ready),
            "lent": len(self.contexts.cache.lent),
            "operations": {str(kind): asdict(done) for kind, done in self.dispatcher.metrics().kinds.items()},
            "disconnects": sum(browser.disconnects for browser in self.contexts.browser_set.browsers),
            "browsers": [
                {
                    "episodes": browser.episodes,
                    "contexts": len(browser.contexts),
                    "priorities_lowered": browser.cpu_guard.lowered,
                    **browser.connection.metrics(),
                }
                for browser in self.contexts.browser_set.browsers
            ],
        }

    async def close(self) -> None:
        """Stop everything. Sessions that are still lent fail."""
        await self.contexts.close()

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Hold the place of one session."""
        try:
            async with asyncio.timeout(self.options.lease_deadline):
                await self._slots.acquire()
        except TimeoutError as error:
            raise CapacityError(
                f"all {self.options.max_sessions} sessions were in use for {self.options.lease_deadline:g} s: "
                "close one, or give a larger max_sessions"
            ) from error
        try:
            yield
        finally:
            self._slots.release()

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
                browser, context = await self.contexts.browser_set.open_context(options)
        except TimeoutError as error:
            raise BrowserError(f"no page for {what} within {self.options.step_deadline:g} s") from error
        context.date = date
        try:
            return await context.guard(work(context.active), deadline, what)
        finally:
            try:
                await browser.close_context(context)
            finally:
                await self.contexts.browser_set.remove_if_over(browser)


def _explain(problem: ErrorDetails) -> str:
    """Explain one problem of pydantic with an option."""
    key, message = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
    return f"{key}: {message} (got {problem['input']!r})" if key else message
