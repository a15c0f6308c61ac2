"""One browser context: storage of its own, the tabs in it, and how its pages look and behave on every machine."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any

from envs.browser.cdp import CdpSession
from envs.browser.connection import Connection
from envs.browser.tab import Tab, script
from envs.types import BrowserError

logger = logging.getLogger(__name__)

BASE_STYLE = """*, *::before, *::after {
  caret-color: transparent !important; transition: none !important; animation: none !important;
}"""
"""A blinking caret or a running transition makes equal pages give unequal screenshots."""

MOST_TABS = 8
"""Tabs of a context; a page that opens more (a storm of popups) has them closed at once."""

CLOSE_SECONDS = 5.0
"""Real seconds that a context may take to close; one that hangs is left to the end of its browser."""


@dataclass(frozen=True)
class Device:
    """What a page is shown on."""

    viewport: tuple[int, int]
    """Width and height in CSS pixels."""
    scale: float = 1.0
    """Device pixels per CSS pixel. Screenshots have the viewport's size times this."""
    mobile: bool = False
    """Meta viewport, overlay scroll bars, touch events."""
    user_agent: str = ""
    """Empty: the browser's own."""


class BrowserContext:
    """Tabs that share storage with each other and with nobody else. Made by `open`, used by one session at a time."""

    def __init__(self, connection: Connection, context_id: str, owner: str, device: Device, style: str) -> None:
        self.owner = owner
        """Name of the site that it was opened for."""
        self.context_id = context_id
        self.path: str | None = None
        """Path that is loaded, ``None`` before the first navigation."""
        self.episodes = 0
        self.broken = False
        self.tabs: list[Tab] = []
        """In the order of their opening; never empty between `open` and the first tab's end."""
        self.popups_refused = 0
        self._active: Tab | None = None
        self._connection = connection
        self._device = device
        self._style = style
        self._setting_up: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls, connection: Connection, *, owner: str, device: Device, style: str, options: dict[str, Any] | None = None
    ) -> BrowserContext:
        """A context with one blank tab. ``options`` are more parameters of ``Target.createBrowserContext``."""
        params = {"disposeOnDetach": False, **(options or {})}  # a dropped socket must not end an episode
        context_id = (await connection.browser.send("Target.createBrowserContext", params))["browserContextId"]
        context = cls(connection, context_id, owner, device, style)
        try:
            await connection.browser.send(
                "Browser.setDownloadBehavior", {"behavior": "deny", "browserContextId": context_id}
            )
            width, height = device.viewport
            await context._add(await connection.open_page(context_id, width, height))
        except BaseException:
            await context.close()
            raise
        return context

    @property
    def active(self) -> Tab:
        """The tab that is looked at and acted on.

        Raises:
            BrowserError: all of them are gone.
        """
        if self._active is None:
            raise BrowserError("the page was closed")
        return self._active

    def fail(self, why: str) -> None:
        """Mark all of it as dead."""
        self.broken = True
        for tab in self.tabs:
            tab.fail(why)

    def tab_gone(self, target: str, why: str) -> bool:
        """A target is not there any more; True if it was one of ours."""
        tab = next((tab for tab in self.tabs if tab.cdp.target_id == target), None)
        if tab is None:
            return False
        tab.fail(why)
        self.tabs.remove(tab)
        if tab is self._active:
            self._active = self.tabs[-1] if self.tabs else None
        self.broken = self.broken or not self.tabs
        return True

    def adopt(self, session: CdpSession) -> None:
        """A page of this context opened another one: it becomes a tab, or is closed if there are too many."""
        work = self._refuse(session) if len(self.tabs) + len(self._setting_up) >= MOST_TABS else self._adopt(session)
        task = asyncio.create_task(work)
        self._setting_up.add(task)
        task.add_done_callback(self._setting_up.discard)

    async def settled(self) -> None:
        """Until all that pages opened is set up."""
        while self._setting_up:
            await asyncio.gather(*self._setting_up)

    async def close(self) -> None:
        """Close its tabs and throw its storage away."""
        self.fail("the context was closed")
        for task in self._setting_up:
            task.cancel()
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

    async def _add(self, session: CdpSession) -> Tab:
        tab = Tab(session)
        await self._set_up(session)
        await session.send("Runtime.runIfWaitingForDebugger")
        self.tabs.append(tab)
        self._active = tab
        return tab

    async def _adopt(self, session: CdpSession) -> None:
        try:
            await self._add(session)
        except BrowserError as error:
            logger.warning("a popup went away before it was set up: %s", error)

    async def _refuse(self, session: CdpSession) -> None:
        self.popups_refused += 1
        try:
            await self._connection.browser.send("Target.closeTarget", {"targetId": session.target_id})
        except BrowserError as error:
            logger.warning("a popup too many was not closed: %s", error)
        self._connection.forget(session)

    async def _set_up(self, session: CdpSession) -> None:
        width, height = self._device.viewport
        sheet = json.dumps(f"{BASE_STYLE}\n{self._style}")
        media = [
            {"name": "prefers-color-scheme", "value": "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        metrics = {
            "width": width,
            "height": height,
            "deviceScaleFactor": self._device.scale,
            "mobile": self._device.mobile,
        }
        calls: list[tuple[str, dict[str, Any]]] = [
            ("Page.enable", {}),
            ("Emulation.setDeviceMetricsOverride", metrics),
            ("Emulation.setLocaleOverride", {"locale": "en-US"}),
            ("Emulation.setTimezoneOverride", {"timezoneId": "UTC"}),
            ("Emulation.setEmulatedMedia", {"features": media}),
            ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            ("Page.addScriptToEvaluateOnNewDocument", {"source": script("init.js").replace("STYLE", sheet)}),
            ("Network.setBypassServiceWorker", {"bypass": True}),  # a worker is not under the page's virtual time
        ]
        if self._device.mobile:
            calls.append(("Emulation.setTouchEmulationEnabled", {"enabled": True}))
        if self._device.user_agent:
            calls.append(("Emulation.setUserAgentOverride", {"userAgent": self._device.user_agent}))
        await asyncio.gather(*(session.enable(method, params) for method, params in calls))
