"""A tab's DevTools session that goes through Playwright's own connection."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from playwright.async_api import Error

from envs.cdp import CdpError, ConnectionLost
from envs.cdp.client import CdpSession
from envs.types import BrowserError

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

logger = logging.getLogger(__name__)

LEFT_ALONE = frozenset(
    [
        "Emulation.setFocusEmulationEnabled",
        "Emulation.setLocaleOverride",
        "Emulation.setTimezoneOverride",
        "Emulation.setUserAgentOverride",
        "Page.setFontFamilies",
    ]
)
"""Settings that stay the page owner's. Playwright sets the first and the last itself, and what a
session has set of the others ends with that session, for everybody."""

_REFUSAL = re.compile(r"Protocol error \([\w.]+\): (.*)", re.DOTALL)


class PlaywrightSession(CdpSession):
    """The session of a page that Playwright has. Made by `open`; `detach` ends it."""

    def __init__(self, target_id: str, cdp: CDPSession) -> None:
        super().__init__(target_id)
        self._cdp = cdp

    @classmethod
    async def open(cls, page: Page) -> PlaywrightSession:
        """Open a further session on a page.

        Raises:
            BrowserError: The page is closed, or its browser is no Chromium.
        """
        try:
            cdp = await page.context.new_cdp_session(page)
            info = await cdp.send("Target.getTargetInfo")
        except Error as error:
            raise BrowserError(f"Playwright's page cannot be driven: {error.message}") from error
        return cls(str(info["targetInfo"]["targetId"]), cdp)

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a method of the page; `LEFT_ALONE` does nothing.

        Raises:
            CdpError: The browser refused the call.
            ConnectionLost: The page or the browser is gone.
        """
        if method in LEFT_ALONE:
            return {}
        try:
            result: dict[str, Any] = await self._cdp.send(method, params or {})
        except Error as error:
            refusal = _REFUSAL.search(error.message)
            if refusal is not None:
                raise CdpError(method, refusal[1]) from error
            raise ConnectionLost(f"{method}: {error.message}") from error
        return result

    def on(self, event: Any, f: Callable[..., Any]) -> None:
        """Call ``f`` with the parameters of each such event."""

        name = str(event)
        self._cdp.on(name, lambda params: self.call_handler(f, name, params or {}))

    async def detach(self) -> None:
        """End the session, and with it what it has set on the page."""
        try:
            await self._cdp.detach()
        except Error as error:
            logger.debug("a session had ended with its page: %s", error.message)
