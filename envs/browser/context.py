"""One browser context: its storage, its tabs, and how its pages look and behave."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from envs.background import start_background
from envs.browser.end_evidence import DownloadFolder
from envs.browser.network_log import NetworkLog
from envs.browser.options import ContextOptions
from envs.browser.origin_stores import restore_stores
from envs.browser.process.connection import Connection
from envs.browser.tab import FirstRequest, Tab, set_up_page, show_blank
from envs.cancel_scope import CancelScope
from envs.cdp.client import CdpSession, RepeatedCalls
from envs.egress import PROXY_BYPASS, harden
from envs.settle import CONTEXT_SECONDS, EPOCH_SECONDS, Looks, VirtualClock
from envs.signals import SignalReader
from envs.types import BrowserError
from envs.types.errors import again

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_TABS = 8
"""Tabs of a context; a page that opens more (a storm of popups) has them closed at once."""

CLOSE_SECONDS = 5.0
"""Real seconds that a context may take to close; one that hangs is left to the end of its
browser."""


class BrowserContext:
    """Tabs that share storage with each other and with no other tab.

    Made by `open`, used by one session at a time. It is the `envs.actions.Tabs` of its actions.
    """

    def __init__(self, connection: Connection, context_id: str, options: ContextOptions) -> None:
        self.owner = options.owner
        """Name of the site that it is used for; empty while it is for none."""
        self.context_id = context_id
        self.path: str | None = None
        """Path that is loaded, ``None`` before the first navigation."""
        self.episodes = 0
        self.broken = False
        self.lent = False
        """A foreign client had it: no other episode gets it."""
        self.on_tab: Callable[[Tab], None] = lambda _tab: None
        """Called with each tab that is set up."""
        self.tabs: list[Tab] = []
        """Tabs in the order of their opening; never empty between `open` and the first tab's
        end."""
        self.popups_refused = 0
        self._date: float | None = EPOCH_SECONDS
        self._opened = time.monotonic()
        self._active: Tab | None = None
        self._connection = connection
        self._options = options
        self.network = NetworkLog() if options.network else None
        """Requests of the present episode; ``None`` if they are not kept."""
        self._numbers = itertools.count(1)
        self._setting_up: set[asyncio.Task[None]] = set()
        self._loading: set[asyncio.Future[dict[str, Any]]] = set()
        """Navigations of windows that were opened, until their sites answer."""
        self._lost: BrowserError | None = None
        self._interrupted: BrowserError | None = None
        self._guarded: CancelScope | None = None

    @classmethod
    async def open(cls, connection: Connection, options: ContextOptions) -> BrowserContext:
        """Open a context with one blank tab."""
        params: dict[str, Any] = {"disposeOnDetach": False}  # a dropped socket must not end an episode
        if options.proxy:
            params |= {"proxyServer": options.proxy, "proxyBypassList": PROXY_BYPASS}
        asked = asyncio.ensure_future(connection.browser.send("Target.createBrowserContext", params))
        try:
            made = await asyncio.shield(asked)
        except asyncio.CancelledError:
            await _dispose_of(connection, asked)
            raise
        context = cls(connection, made["browserContextId"], options)
        try:
            await harden(connection.browser, context.context_id, options.downloads)
            await context.new_tab()
        except OSError as error:
            await context.close()
            raise BrowserError(f"the folder for downloads cannot be used: {error}") from error
        except BaseException:
            await context.close()
            raise
        return context

    def fits(self, options: ContextOptions) -> bool:
        """True if the context was opened with these options, whatever their site and proxy."""
        return replace(self._options, owner="", proxy="") == replace(options, owner="", proxy="")

    @property
    def viewport(self) -> tuple[int, int]:
        """Width and height of its pages, in CSS pixels."""
        return self._options.device.viewport

    @property
    def date(self) -> float | None:
        """Date at which its pages' clock begins (`VirtualClock.date`). May be set before anything
        is loaded."""
        return self._date

    @date.setter
    def date(self, date: float | None) -> None:
        self._date = date
        for tab in self.tabs:
            tab.clock.date = date

    @property
    def now(self) -> float:
        """Date of its pages' clock, in seconds since 1970; 0 where it is not held, or has not
        begun."""
        return max((tab.clock.now for tab in self.tabs), default=0.0) / 1000

    @property
    def _dates_ahead(self) -> float:
        return max((tab.clock.dates.ahead for tab in self.tabs), default=0.0)

    @property
    def looks(self) -> Looks:
        """Looks of its pages."""
        options, device = self._options, self._options.device
        return Looks(
            device.viewport,
            scale=device.scale,
            mobile=device.mobile,
            style=options.style,
            seed=options.seed,
            drawn=options.drawn,
            virtual_time=options.virtual,
            dates_ahead=self._dates_ahead,
        )

    @property
    def active(self) -> Tab:
        """The tab that is looked at and acted on.

        Raises:
            BrowserError: All tabs are gone.
        """
        if self._active is None:
            raise BrowserError("the page was closed")
        return self._active

    @property
    def reusable(self) -> bool:
        """True if another episode may begin on it.

        It works, its clock has room, and the last episode left no window and no dialog open.
        """
        if time.monotonic() - self._opened > CONTEXT_SECONDS:
            return False
        return not (self.broken or self.lent) and len(self.tabs) == 1 and self.tabs[0].dialogs.pending is None

    @property
    def lost(self) -> bool:
        """True if nothing of it can be used any more."""
        return self._lost is not None

    def fail(self, error: BrowserError) -> None:
        """Mark the context as lost; callers that wait get the error."""
        self.broken = True
        self._lost = self._lost or error
        self._cut()

    def interrupt(self, error: BrowserError) -> None:
        """Fail the work under way; the context itself may go on."""
        self._interrupted = error
        self._cut()

    async def guard(self, work: Coroutine[Any, Any, T], deadline: float, what: str) -> T:
        """Await ``work`` until ``deadline`` seconds, or the context or its socket is lost.

        Nothing of it runs on afterwards. If it fails, the context is not used again.

        Raises:
            BrowserError: The deadline passed or the context is lost; with the cause chained.
        """
        self._interrupted, worked = None, False
        try:
            async with CancelScope(deadline) as self._guarded:
                if self._lost is None:
                    result = await work
        except TimeoutError as error:
            raise self._gone or BrowserError(f"{what} took longer than {deadline:g} s") from error
        except Exception as error:
            gone = self._gone
            if gone is not None:
                raise gone from (gone.__cause__ or error)
            raise
        else:
            gone = self._gone
            if gone is not None:
                raise gone
            worked = True
            return result
        finally:
            self.broken = self.broken or not worked
            self._guarded = None
            work.close()

    @property
    def _gone(self) -> BrowserError | None:
        """Error that ended the work under way; ``None`` if nothing did.

        Each caller gets a new exception to raise.
        """
        stored = self._lost or self._interrupted
        return None if stored is None else again(stored)

    def _cut(self) -> None:
        """Cancel the work under way."""
        if self._guarded is not None:
            self._guarded.cancel()

    def tab_gone(self, target: str, error: BrowserError) -> bool:
        """Remove the tab of a target that is gone; return True if it was one of ours.

        The context is lost with its last tab, or if a page crashed.
        """
        tab = next((tab for tab in self.tabs if tab.cdp.target_id == target), None)
        if tab is None:
            return False
        self.tabs.remove(tab)
        tab.clock.fail(error)
        if tab is self._active:
            self._active = self.tabs[-1] if self.tabs else None
        if isinstance(error, PageCrashed) or not self.tabs:
            self.fail(error)
        return True

    def goes_on_without(self, tab: Tab) -> bool:
        """True if a tab was closed (by its page, say) and others are open."""
        return not self.lost and bool(self.tabs) and tab not in self.tabs

    def adopt(self, session: CdpSession, *, has_opener: bool) -> None:
        """Take a window that a page of this context opened.

        It becomes a tab, or is closed if there are too many.

        Args:
            has_opener: True if the page and the new one can reach each other.
        """
        many = len(self.tabs) + len(self._setting_up) >= MAX_TABS
        work = self._refuse(session) if many else self._adopt(session, has_opener)
        start_background(work, self._setting_up, "setting up a window that a page opened")

    async def settled(self) -> None:
        """Wait until all windows that pages opened are set up."""
        while self._setting_up:
            await asyncio.gather(*self._setting_up)

    async def close(self) -> None:
        """Close its tabs and delete its storage."""
        self.fail(BrowserError("the context was closed"))
        for task in self._setting_up:
            task.cancel()
        for loading in self._loading:
            loading.cancel()
        for tab in self.tabs:
            self._connection.forget(tab.cdp)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._connection.browser.send(
                    "Target.disposeBrowserContext", {"browserContextId": self.context_id}
                )
        except (BrowserError, TimeoutError) as error:
            # The browser is gone or hangs; its end takes the context with it.
            logger.warning("a context did not close: %s", error)

    async def log_in(self, cookies: Sequence[Mapping[str, Any]], stores: Sequence[Mapping[str, Any]] = ()) -> None:
        """Put cookies and the stores of origins into its storage."""
        params = {"cookies": list(cookies), "browserContextId": self.context_id}
        await self._connection.browser.send("Storage.setCookies", params)
        if stores:
            await restore_stores(self._connection, self.context_id, stores)

    def download_folder(self, within: Path | None) -> DownloadFolder:
        """Make a download folder for an episode, in ``within`` or the system's temporary folder."""
        return DownloadFolder.make(self._connection.browser, self.context_id, within)

    @property
    def tab_numbers(self) -> tuple[int, ...]:
        """Numbers of the open tabs."""
        return tuple(tab.number for tab in self.tabs)

    @property
    def active_number(self) -> int:
        """Number of the active tab."""
        return self.active.number

    async def new_tab(self, url: str | None = None) -> None:
        """Open a tab, blank or with an address, and make it the active one."""
        tab = await self._open_tab()
        if url is not None:
            await tab.clock.begin()
            await tab.cdp.send("Page.navigate", {"url": url})

    async def switch_tab(self, number: int) -> None:
        """Make an open tab the active one."""
        self._active = tab = self._numbered(number)
        await tab.cdp.send("Page.bringToFront")

    async def close_tab(self, number: int) -> None:
        """Close an open tab; the last opened of the others becomes active."""
        tab = self._numbered(number)
        await self._connection.browser.send("Target.closeTarget", {"targetId": tab.cdp.target_id})
        self._connection.forget(tab.cdp)
        self.tab_gone(tab.cdp.target_id, BrowserError("the tab was closed"))

    def _numbered(self, number: int) -> Tab:
        return next(tab for tab in self.tabs if tab.number == number)

    async def _open_tab(self) -> Tab:
        """Open a blank tab."""
        width, height = self._options.device.viewport
        return await self._add(await self._connection.open_page(self.context_id, width, height), self._connection.child)

    async def _add(self, session: CdpSession, child: Callable[[str], CdpSession] | None) -> Tab:
        """Make a tab of a page; ``child`` gives the sessions of its workers."""
        options = self._options
        clock = VirtualClock(
            session,
            open_session=child,
            background=options.background,
            fields=options.fields,
            virtual=options.virtual,
            date=self._date,
        )
        clock.dates.ahead = self._dates_ahead
        tab = Tab(session, next(self._numbers), clock)
        session.on_fault = lambda why: self.fail(BrowserError(why))
        await set_up_page(session, options.device, self.looks)
        if self.network is not None:
            self.network.watch(session)
        if options.signals:
            tab.signals = await SignalReader.start(session, setup=RepeatedCalls(session))
        await session.send("Runtime.runIfWaitingForDebugger")
        self.tabs.append(tab)
        self._active = tab
        self.on_tab(tab)
        return tab

    async def _adopt(self, session: CdpSession, has_opener: bool) -> None:
        try:
            first = None if has_opener else await FirstRequest.catch(session)
            await self._add(session, self._connection.child)
            if not has_opener:
                await show_blank(session)
            if first is not None:
                loading = await first.repeat()
                self._loading.add(loading)
                loading.add_done_callback(self._loading.discard)
        except BrowserError as error:
            logger.warning("a popup went away before it was set up: %s", error)

    async def _refuse(self, session: CdpSession) -> None:
        self.popups_refused += 1
        try:
            # Its opener waits until it goes on, even to its end.
            await session.send("Runtime.runIfWaitingForDebugger")
            await self._connection.browser.send("Target.closeTarget", {"targetId": session.target_id})
        except BrowserError as error:
            logger.warning("a popup too many was not closed: %s", error)
        self._connection.forget(session)


class PageCrashed(BrowserError):
    """The process of a page died."""


async def _dispose_of(connection: Connection, asked: asyncio.Future[dict[str, Any]]) -> None:
    """Close a context that was asked for, is not wanted any more, and is made all the same."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            made = await asked
            await connection.browser.send("Target.disposeBrowserContext", made)
    except (BrowserError, TimeoutError) as error:
        logger.warning("a context whose caller has given up did not close: %s", error)
