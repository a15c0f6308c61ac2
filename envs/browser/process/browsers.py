"""The Chromium processes of a pool, and their browser contexts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from envs.background import log_failure
from envs.browser.context import BrowserContext
from envs.browser.options import ContextOptions, PoolCounters, PoolOptions
from envs.browser.process.browser import Browser
from envs.browser.process.chromium import find_chromium, launch_args, prompt_frames
from envs.cancel_scope import finish_shielded
from envs.cdp.client import ConnectionLost
from envs.egress import AllowList, EgressProxy, Listener
from envs.egress.certificates import trust_args
from envs.sites.base import Site
from envs.types import BrowserError, WebTask

logger = logging.getLogger(__name__)

WATCH_SECONDS = 10.0
"""Seconds between readings of memory; one costs 10 ms."""


class ContextCache:
    """The browser contexts of a pool: idle, ready (opened beforehand) and lent.

    Those of `BrowserPool.scratch_tab` are not here.
    """

    def __init__(self) -> None:
        self.idle: list[BrowserContext] = []
        """The one that was given back last is the last."""
        self.ready: list[BrowserContext] = []
        """Opened beforehand, for no site yet: they reach nothing. They count beyond the others."""
        self.lent: set[BrowserContext] = set()
        self.browsers: dict[BrowserContext, Browser] = {}
        """The browser of each open context."""
        self.listeners: dict[BrowserContext, Listener] = {}
        """Proxy listener of each open context."""

    @property
    def size(self) -> int:
        """Contexts that are lent or wait, without those that were opened beforehand."""
        return len(self.idle) + len(self.lent)

    def put(self, context: BrowserContext, browser: Browser, listener: Listener) -> None:
        """Add a new context of this browser, with its proxy listener.

        It is neither lent nor idle yet.
        """
        self.browsers[context] = browser
        self.listeners[context] = listener

    def take(self, site: Site, task: WebTask, date: float | None, *, full: bool) -> BrowserContext | None:
        """Take an idle context of this site and date that shows the task's page, if there is one.

        Where there is no room for another context (``full``), take any of this site and date.
        """
        own = [context for context in self.idle if (context.owner, context.date) == (site.name, date)]
        same = [context for context in own if context.path == task.path]
        chosen = same[-1] if same else own[0] if own and full else None
        if chosen is not None:
            self.idle.remove(chosen)
        return chosen

    def take_ready(self, options: ContextOptions, allow: AllowList) -> BrowserContext | None:
        """Take a context that was opened beforehand with these options, if there is one.

        It belongs to that site from now on, and reaches the hosts in ``allow``.
        """
        chosen = next((context for context in self.ready if context.fits(options)), None)
        if chosen is not None:
            self.ready.remove(chosen)
            chosen.owner = options.owner
            self.listeners[chosen].allow = allow
        return chosen

    def withdraw(self, which: Callable[[BrowserContext], bool]) -> list[BrowserContext]:
        """Remove and return waiting contexts, so that no episode gets them.

        The caller closes them, or forgets them with their browser.
        """
        withdrawn = [context for context in (*self.idle, *self.ready) if which(context)]
        self.idle = [context for context in self.idle if context not in withdrawn]
        self.ready = [context for context in self.ready if context not in withdrawn]
        return withdrawn

    async def close(self, context: BrowserContext) -> None:
        """Close a context and its proxy listener.

        Nothing is left to close if its browser or its pool was closed meanwhile.
        """
        browser, listener = self.browsers.pop(context, None), self.listeners.pop(context, None)
        try:
            if browser is not None:
                await browser.close_context(context)
        finally:
            if listener is not None:
                await listener.close()

    async def forget(self, context: BrowserContext) -> None:
        """Forget a context that went with its browser, and close its proxy listener."""
        self.browsers.pop(context, None)
        listener = self.listeners.pop(context, None)
        if listener is not None:
            await listener.close()

    def clear(self) -> None:
        """Forget the waiting contexts and all listeners, as browsers and proxy are being closed.

        Whoever has a context may still give it back.
        """
        self.idle.clear()
        self.ready.clear()
        self.listeners.clear()


class BrowserSet:
    """The browsers of one pool. Made and used in one event loop."""

    def __init__(self, options: PoolOptions, counters: PoolCounters, egress: EgressProxy, cache: ContextCache) -> None:
        """``cache`` has the contexts that end with their browser."""
        self.browsers: list[Browser] = []
        self.closed = False
        self._options = options
        self._counters = counters
        self._egress = egress
        self._cache = cache
        self._blocked_listener: Listener | None = None
        self._opening_blocked = asyncio.Lock()
        self._launching = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None

    def check_open(self) -> None:
        """Raises ``BrowserError`` after `close`."""
        if self.closed:
            raise BrowserError("the pool is closed")

    @property
    def has_one(self) -> bool:
        """True if a browser runs that takes contexts."""
        return any(not (browser.lost or browser.retired) for browser in self.browsers)

    async def pick_browser(self) -> Browser:
        """The browser with the fewest contexts; started if there are too few.

        Concurrent callers start one, not one each.

        Raises:
            BrowserError: it cannot be started, or the pool is closed.
        """
        async with self._launching:
            self.check_open()
            for browser in [browser for browser in self.browsers if browser.lost]:
                if browser in self.browsers:  # it may have been removed during the wait for the one before
                    self._counters.browsers_lost += 1
                    await self.remove(browser)
            fit = [browser for browser in self.browsers if not (browser.retired or browser.single_use)]
            single = bool(self._options.browser_address) or self._options.browser_per_episode
            if len(fit) < (1 if single else self._options.browsers):
                fit.append(await self._start())
            return min(fit, key=lambda browser: browser.load)

    async def open_context(self, options: ContextOptions) -> tuple[Browser, BrowserContext]:
        """Open a context, on another browser if the chosen one turns out to be gone.

        We learn of a browser's death only after a delay.
        """
        while True:
            browser = await self.pick_browser()
            browser.single_use = self._options.browser_per_episode
            try:
                return browser, await browser.open_context(options)
            except BaseException as error:
                if not (isinstance(error, ConnectionLost) and browser.lost):
                    await self.remove_if_over(browser)  # nothing came of it
                    raise
                logger.info("a browser went away before a context was opened on it; another one is taken")

    async def blocked_listener(self) -> Listener:
        """Return the proxy listener that blocks all addresses."""
        await self._egress.start()
        async with self._opening_blocked:
            if self._blocked_listener is None:
                self._blocked_listener = await self._egress.open(AllowList.of())
            return self._blocked_listener

    async def remove_if_over(self, browser: Browser) -> None:
        """End a browser whose last context was closed, if it takes no more."""
        if (browser.retired or self._options.browser_per_episode) and not browser.load:
            await self.remove(browser)

    async def remove(self, browser: Browser) -> None:
        """End a browser.

        The episode on it, the next episode and the watcher may all find that it is over: the first
        of them ends it.
        """
        if browser not in self.browsers:
            return
        self.browsers.remove(browser)
        await finish_shielded(self._end(browser, self._cache.withdraw(lambda context: context in browser.contexts)))

    async def close(self) -> None:
        """End all browsers and their proxy."""
        self.closed = True
        if self._watcher is not None:
            self._watcher.cancel()
        async with self._launching:
            browsers, self.browsers = self.browsers, []
            try:
                ended = await asyncio.gather(*(browser.close() for browser in browsers), return_exceptions=True)
            finally:
                self._cache.clear()
                await self._egress.close()
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _start(self) -> Browser:
        options = self._options
        if options.browser_address:
            await self._egress.start()
            browser = await Browser.connect(options.browser_address, options.times)
        else:
            executable = options.executable or find_chromium()
            prompt = prompt_frames(executable) if options.prompt_frames else ()
            trust = await asyncio.to_thread(trust_args)
            arguments = (*launch_args((await self.blocked_listener()).address), *trust, *prompt)
            browser = await Browser.launch(executable, arguments, options.times)
            self._counters.launches += 1
        self.browsers.append(browser)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch(), name="browser-pool")
            self._watcher.add_done_callback(log_failure)
        return browser

    async def _end(self, browser: Browser, idle: list[BrowserContext]) -> None:
        try:
            await browser.close()
        finally:
            for context in idle:
                await self._cache.forget(context)

    async def _watch(self) -> None:
        """Retire browsers that are old or large.

        The next one is started by who needs it.
        """
        while not self.closed:
            await asyncio.sleep(WATCH_SECONDS)
            for browser in list(self.browsers):
                await self.retire_if_due(browser)

    async def retire_if_due(self, browser: Browser) -> None:
        """Retire a browser that is old or large, and end it once its last context is closed."""
        process, options = browser.process, self._options
        if process is None or browser.lost:
            return
        if not browser.retired:
            memory = await asyncio.to_thread(process.memory_mb)
            if memory < options.most_memory_mb and browser.episodes < options.retire_after:
                return
            logger.info("Chromium %d is replaced after %d episodes at %.0f MB", process.pid, browser.episodes, memory)
            browser.retired = True
            self._counters.browsers_retired += 1
        # At each look: a context that was being opened when it was retired may have come to wait,
        # or have failed, since.
        for context in self._cache.withdraw(lambda context: context in browser.contexts):
            await self._cache.close(context)
        await self.remove_if_over(browser)
