"""The browser contexts of a pool: opened, lent to episodes, taken back, replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from envs.background import start_background
from envs.browser.context import CLOSE_SECONDS, BrowserContext
from envs.browser.devtools.lent import LentPage
from envs.browser.end_evidence import DownloadFolder
from envs.browser.options import ContextOptions, Device, PoolCounters, PoolOptions
from envs.browser.process.browsers import BrowserSet, ContextCache
from envs.egress import AllowList, EgressProxy, SiteSecrets
from envs.settle import EPOCH_SECONDS
from envs.sites.base import Site, SiteEpisode
from envs.types import BrowserError, WebTask, read_date
from envs.types.paths import AnyPath

if TYPE_CHECKING:
    from envs.browser.page import TaskPage

logger = logging.getLogger(__name__)


class ContextLender:
    """Lends the browser contexts of one pool to its sessions. Made and used in one event loop."""

    def __init__(self, options: PoolOptions, secrets: SiteSecrets | None) -> None:
        self.options = options
        self.counters = PoolCounters()
        self.egress = EgressProxy(secrets=secrets)
        """The proxy of all pages."""
        self.cache = ContextCache()
        self.browser_set = BrowserSet(options, self.counters, self.egress, self.cache)
        self._background: set[asyncio.Task[None]] = set()
        self._opening = 0
        """Contexts that are being opened for episodes: each has its place already."""
        self._prewarming = 0
        """Contexts that are being opened beforehand."""
        self._leaving: set[asyncio.Task[None]] = set()
        """Close contexts that waited and are not used again: each keeps its place until it is
        gone."""

    async def close(self) -> None:
        """Stop the browsers and all background work. Contexts that are still lent fail."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)  # their errors are logged by `start_background`
        await self.browser_set.close()

    def allow_of(self, context: BrowserContext) -> AllowList:
        """Return the hosts that a context may reach."""
        return self.cache.listeners[context].allow

    async def acquire(self, site: Site, task: WebTask) -> BrowserContext:
        """Return a context for an episode.

        That is an idle one which shows the task's page, a new one while there is room, else any of
        the site's.
        """
        cache, again = self.cache, site.stateless_pages
        for gone in cache.withdraw(lambda context: not context.reusable):
            self._leaving.add(start_background(self._close(gone), self._background, "closing a context"))
        date = self.date(site, task.date)
        full = self._places_taken >= self.options.max_sessions
        context = cache.take(site, task, date, full=full) if again else None
        if context is not None:
            cache.lent.add(context)
            return context
        self._opening += 1
        try:
            await self._make_room()
            options, allow = self.options_of(site), AllowList.of(site.origin, *site.hosts)
            ready = None if again else cache.take_ready(options, allow)
            context = ready or await self._open(options, allow)
            context.date = date
            if not site.foreign:  # its server's dates are the page's
                cache.listeners[context].now = lambda: context.now
            cache.lent.add(context)
            return context
        finally:
            self._opening -= 1

    def lead(self, context: BrowserContext, site: Site, routes: Mapping[tuple[str, int], AnyPath]) -> None:
        """Lead a context's connections to hosts that are served here under their true names.

        Raises:
            BrowserError: The browser was not started here, so it does not trust our certificates.
        """
        if routes and self.options.browser_address:
            raise BrowserError(
                f"site {site.name} is served over HTTPS by certificates that only browsers of ours trust; "
                "leave out browser_address"
            )
        self.cache.listeners[context].routes = routes

    def lent_page(self, page: TaskPage) -> LentPage:
        """Return the page of an episode as a foreign DevTools client gets it."""
        return LentPage(page, self.cache.browsers[page.context].connection)

    def record_episode(self, site: Site, *, loaded: bool) -> None:
        """Count an episode that has begun, and open a context for the next one.

        ``loaded`` is True if its page was loaded for it. Opened earlier, the next context would
        slow this episode's first observation.
        """
        self.counters.episodes += 1
        self.counters.navigations += loaded
        if self.options.prewarm and not site.stateless_pages:
            options = replace(self.options_of(site), owner="")
            start_background(self._prewarm(options), self._background, "opening a context beforehand")

    async def release(self, context: BrowserContext, site: Site) -> None:
        """Take a context back, or close it if it is broken, old or single-use."""
        browser = self.cache.browsers[context]
        browser.episodes += 1
        old = context.episodes >= self.options.recycle_after
        keep = site.stateless_pages and not self.options.browser_per_episode and not self.browser_set.closed
        if keep and context.reusable and not (old or browser.retired or browser.lost):
            self.cache.lent.discard(context)
            self.cache.idle.append(context)
            return
        if context.broken:
            self.counters.contexts_broken += 1
        elif old:
            self.counters.contexts_recycled += 1
        try:
            await self._close(context)
        finally:
            self.cache.lent.discard(context)  # not before it is gone: its place would be given away

    def date(self, site: Site, given: str = "") -> float | None:
        """Return the date at which the clock of a site's pages begins; ``None`` for the real time.

        ``given`` is the task's date.
        """
        if chosen := given or self.options.page_date:
            return read_date(chosen)
        return None if site.foreign else EPOCH_SECONDS

    def options_of(self, site: Site) -> ContextOptions:
        """Return the context options of a site, without the proxy."""
        options = self.options
        width, height = site.viewport  # has no bounds
        return ContextOptions(
            owner=site.name,
            device=options.device or Device.model_construct(width=width, height=height),
            style=site.style,
            downloads=options.downloads,
            seed=options.page_seed,
            signals=options.signals,
            network=options.record_network,
            background=site.background,
            fields=site.observation.rules != "small",  # which shows none of them
            drawn=options.screenshots,
            virtual=options.holds_clocks,
        )

    @property
    def _places_taken(self) -> int:
        """Number of contexts that are open or being opened, without those opened beforehand."""
        return self.cache.size + self._opening + len(self._leaving)

    async def _make_room(self) -> None:
        """Close contexts that wait, until all that are being opened have a place."""
        while self._places_taken > self.options.max_sessions:
            if self._leaving:
                await asyncio.wait(self._leaving, return_when=asyncio.FIRST_COMPLETED)
                self._leaving = {task for task in self._leaving if not task.done()}
            elif self.cache.idle:
                await self._close(self.cache.idle.pop(0))  # its place is the one that was made
            else:
                return

    async def _open(self, options: ContextOptions, allow: AllowList) -> BrowserContext:
        await self.egress.start()
        listener = await self.egress.open(allow)
        try:
            browser, context = await self.browser_set.open_context(replace(options, proxy=listener.address))
        except BaseException:
            await listener.close()
            raise
        self.cache.put(context, browser, listener)
        self.counters.contexts_opened += 1
        return context

    async def _close(self, context: BrowserContext) -> None:
        """Close a context, and its browser if nothing more is to come on that."""
        browser = self.cache.browsers[context]
        try:
            await self.cache.close(context)
        finally:
            await self.browser_set.remove_if_over(browser)

    async def _prewarm(self, options: ContextOptions) -> None:
        """Open contexts with these options for the next episodes; close ready ones of another
        kind."""
        cache = self.cache
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


async def end_episode(
    contexts: ContextLender,
    site: Site,
    context: BrowserContext | None,
    page: TaskPage | None,
    site_episode: SiteEpisode | None,
) -> None:
    """Release the context, the downloads and the site's episode, each even if one before fails.

    The context goes first: its pages may still write files and ask their server.
    """
    folder = page.downloads if page is not None else None
    async with AsyncExitStack() as ends:  # the last one first
        if site_episode is not None:
            ends.push_async_callback(site_episode.close)
        if folder is not None:
            ends.push_async_callback(folder.remove)
        if context is not None:
            ends.push_async_callback(contexts.release, context, site)
        if page is not None:
            page.queues.close(BrowserError("the episode is over"))
        if context is not None and folder is not None and site.stateless_pages and context.reusable:
            await _deny_downloads(context, folder)


async def _deny_downloads(context: BrowserContext, folder: DownloadFolder) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await folder.deny()
    except (BrowserError, TimeoutError) as error:
        logger.warning("downloads of a context could not be denied again: %s", error)
        context.broken = True
