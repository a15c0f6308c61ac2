"""The contexts of a pool: which browser each is on, its way out, and those that wait for their next episode."""

from __future__ import annotations

from collections.abc import Callable

from envs.browser.browser import Browser
from envs.browser.context import BrowserContext, ContextOptions
from envs.egress import AllowList, Listener
from envs.sites.base import Site
from envs.types import WebTask


class Shelf:
    """Where a pool keeps its contexts. Those that are outside of episodes (`BrowserPool.apart`) are not here."""

    def __init__(self) -> None:
        self.idle: list[BrowserContext] = []
        """The one that was given back last is the last."""
        self.ready: list[BrowserContext] = []
        """Opened beforehand, for no site yet: they reach nothing. They count beyond the others."""
        self.lent: set[BrowserContext] = set()
        self._of: dict[BrowserContext, Browser] = {}
        self._listeners: dict[BrowserContext, Listener] = {}

    @property
    def size(self) -> int:
        """Contexts that are lent or wait, without those that were opened beforehand."""
        return len(self.idle) + len(self.lent)

    def put(self, context: BrowserContext, browser: Browser, listener: Listener) -> None:
        """A new context of this browser, with its way out; it is neither lent nor idle yet."""
        self._of[context] = browser
        self._listeners[context] = listener

    def browser_of(self, context: BrowserContext) -> Browser:
        """The browser that a context is on."""
        return self._of[context]

    def allowed(self, context: BrowserContext) -> AllowList:
        """Where a context gets out to."""
        return self._listeners[context].allow

    def take(self, site: Site, task: WebTask, *, full: bool) -> BrowserContext | None:
        """An idle context for an episode: one that already shows the task's page; where there is no room for another one (``full``), any of the
        site's."""
        own = [context for context in self.idle if context.owner == site.name]
        same = [context for context in own if context.path == task.path]
        chosen = same[-1] if same else own[0] if own and full else None
        if chosen is not None:
            self.idle.remove(chosen)
        return chosen

    def take_ready(self, options: ContextOptions, allow: AllowList) -> BrowserContext | None:
        """A context that was opened beforehand as ``options`` want it; it is that site's from now on, and gets out as the site may."""
        chosen = next((context for context in self.ready if context.fits(options)), None)
        if chosen is not None:
            self.ready.remove(chosen)
            chosen.owner = options.owner
            self._listeners[chosen].allow = allow
        return chosen

    def withdraw(self, which: Callable[[BrowserContext], bool]) -> list[BrowserContext]:
        """Take contexts that wait away, so that nobody gets them; they are to be closed, or forgotten with their browser."""
        found = [context for context in (*self.idle, *self.ready) if which(context)]
        self.idle = [context for context in self.idle if context not in found]
        self.ready = [context for context in self.ready if context not in found]
        return found

    async def close(self, context: BrowserContext) -> None:
        """Close a context and its way out; one that was closed with its browser or its pool meanwhile is closed."""
        browser, listener = self._of.pop(context, None), self._listeners.pop(context, None)
        try:
            if browser is not None:
                await browser.close_context(context)
        finally:
            if listener is not None:
                await listener.close()

    async def forget(self, context: BrowserContext) -> None:
        """A context went with its browser: its way out is closed."""
        self._of.pop(context, None)
        listener = self._listeners.pop(context, None)
        if listener is not None:
            await listener.close()

    def clear(self) -> None:
        """All browsers are ended, and the proxy with all ways out. Who has a context may still give it back."""
        self.idle.clear()
        self.ready.clear()
        self._listeners.clear()
