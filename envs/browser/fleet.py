"""The Chromium processes of a pool: started when there are too few, replaced when they are lost, old or large."""

from __future__ import annotations

import asyncio
import logging

from envs.background import report
from envs.browser.browser import Browser
from envs.browser.chromium import find_chromium, launch_args, prompt_frames
from envs.browser.context import BrowserContext, ContextOptions
from envs.browser.options import PoolCounters, PoolOptions
from envs.browser.shelf import Shelf
from envs.cancel_scope import to_the_end
from envs.cdp.client import ConnectionLost
from envs.egress import AllowList, EgressProxy, Listener
from envs.types import BrowserError

logger = logging.getLogger(__name__)

WATCH_SECONDS = 10.0
"""Between looks at memory; a look costs 10 ms."""


class Fleet:
    """The browsers of one pool. Made and used in one event loop."""

    def __init__(self, options: PoolOptions, counters: PoolCounters, egress: EgressProxy, shelf: Shelf) -> None:
        """``shelf`` has the contexts that end with their browser."""
        self.browsers: list[Browser] = []
        self.closed = False
        self._options = options
        self._counters = counters
        self._egress = egress
        self._shelf = shelf
        self._no_way_out: Listener | None = None
        self._making_nowhere = asyncio.Lock()
        self._launching = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None

    def check_open(self) -> None:
        """Raises ``BrowserError`` after `close`."""
        if self.closed:
            raise BrowserError("the pool is closed")

    async def browser(self) -> Browser:
        """The browser with the fewest contexts; started if there are too few. Concurrent callers start one, not one each.

        Raises:
            BrowserError: it cannot be started, or the pool is closed.
        """
        async with self._launching:
            self.check_open()
            for browser in [browser for browser in self.browsers if browser.lost]:
                if browser in self.browsers:  # nobody else has removed it while we waited for the one before
                    self._counters.browsers_lost += 1
                    await self.remove(browser)
            fit = [browser for browser in self.browsers if not (browser.retired or browser.single_use)]
            one = self._options.external or self._options.process_per_episode
            if len(fit) < (1 if one else self._options.processes):
                fit.append(await self._start())
            return min(fit, key=lambda browser: browser.load)

    async def open_context(self, options: ContextOptions) -> tuple[Browser, BrowserContext]:
        """A new context, on another browser if the chosen one turns out to be gone: that it died is known a moment after it did."""
        while True:
            browser = await self.browser()
            browser.single_use = self._options.process_per_episode
            try:
                return browser, await browser.open_context(options)
            except BaseException as error:
                if not (isinstance(error, ConnectionLost) and browser.lost):
                    await self.remove_if_over(browser)  # nothing came of it
                    raise
                logger.info("a browser went away before a context was opened on it; another one is taken")

    async def nowhere(self) -> Listener:
        """The way out of what may not get out."""
        await self._egress.start()
        async with self._making_nowhere:
            if self._no_way_out is None:
                self._no_way_out = await self._egress.open(AllowList.of())
            return self._no_way_out

    async def remove_if_over(self, browser: Browser) -> None:
        """End a browser after one of its contexts was closed, if nothing more is to come on it."""
        if (browser.retired or self._options.process_per_episode) and not browser.load:
            await self.remove(browser)

    async def remove(self, browser: Browser) -> None:
        """End a browser. The episode on it, the next episode and the watcher may all find that it is over: the first of them ends it."""
        if browser not in self.browsers:
            return
        self.browsers.remove(browser)
        await to_the_end(self._end(browser, self._shelf.withdraw(lambda context: context in browser.contexts)))

    async def close(self) -> None:
        """End all browsers, and the proxy that is their way out."""
        self.closed = True
        if self._watcher is not None:
            self._watcher.cancel()
        async with self._launching:
            browsers, self.browsers = self.browsers, []
            try:
                ended = await asyncio.gather(*(browser.close() for browser in browsers), return_exceptions=True)
            finally:
                self._shelf.clear()
                await self._egress.close()
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _start(self) -> Browser:
        options = self._options
        if options.external:
            await self._egress.start()
            browser = await Browser.connect(options.external, options.times)
        else:
            executable = options.executable or find_chromium()
            prompt = prompt_frames(executable) if options.prompt_frames else ()
            arguments = (*launch_args((await self.nowhere()).address), *prompt)
            browser = await Browser.launch(executable, arguments, options.times)
            self._counters.launches += 1
        self.browsers.append(browser)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch(), name="browser-pool")
            self._watcher.add_done_callback(report)
        return browser

    async def _end(self, browser: Browser, idle: list[BrowserContext]) -> None:
        try:
            await browser.close()
        finally:
            for context in idle:
                await self._shelf.forget(context)

    async def _watch(self) -> None:
        """Retire browsers that are old or large; the next one is started by who needs it."""
        while not self.closed:
            await asyncio.sleep(WATCH_SECONDS)
            for browser in list(self.browsers):
                await self._look_at(browser)

    async def _look_at(self, browser: Browser) -> None:
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
        # At each look: a context that was being opened when it was retired may have come to wait, or have failed, since.
        for context in self._shelf.withdraw(lambda context: context in browser.contexts):
            await self._shelf.close(context)
        await self.remove_if_over(browser)
