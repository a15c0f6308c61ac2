"""One tab: its DevTools session, its clock, its dialogs."""

from __future__ import annotations

from typing import Any

from envs.actions import CdpDialogs, Interceptor
from envs.cdp import binary
from envs.cdp.client import ATTACHED_AGAIN, CdpError, CdpSession
from envs.cdp.messages import NO_PICTURE, refused_with
from envs.settle import NAVIGATION_BUDGET_MS, Settled, SettleReason, VirtualClock
from envs.signals import SignalReader
from envs.types import BrowserError

JPEG = {"format": "jpeg", "quality": 80, "optimizeForSpeed": True}
"""Screenshots as the policy sees them: the cheapest format to make (benchmarks: half of a PNG's time)."""

LOADS = 4
"""Budgets that a page gets to load; one that asks for more is looked at as it is."""

STATUS_ALONE = "net::ERR_HTTP_RESPONSE_CODE_FAILURE"
"""The site answered with an error's status and nothing else; the browser shows a page of its own for it."""


class Tab:
    """A page of a `BrowserContext`."""

    def __init__(self, cdp: CdpSession, number: int, clock: VirtualClock) -> None:
        self.cdp = cdp
        self.number = number
        """As the policy is told, from 1."""
        self.clock = clock
        cdp.on(ATTACHED_AGAIN, lambda _event: self.clock.attached_again())
        self.dialogs = CdpDialogs(cdp)
        self.intercept = Interceptor(cdp)
        self.signals: SignalReader | None = None
        """Read after each step, when signals are asked for."""

    async def load(self, url: str) -> Settled:
        """Load an address and let the page settle.

        Raises:
            BrowserError: there is no page at the address.
        """
        settled = await self.visit(url)
        status = self.clock.requests.main_status
        if status is not None and not 200 <= status < 400:
            raise BrowserError(f"{url} answered {status}; expected a page")
        return settled

    async def visit(self, url: str) -> Settled:
        """`load`, whatever status the site answers with."""
        await self.clock.begin()
        failed = (await self.cdp.send("Page.navigate", {"url": url})).get("errorText", "")
        if failed and failed != STATUS_ALONE:
            raise BrowserError(f"{url} was not loaded: {failed}")
        settled = await self.clock.settle(NAVIGATION_BUDGET_MS)
        for _ in range(LOADS - 1):
            if settled.reason is not SettleReason.RESTED or await self.evaluate("document.readyState") == "complete":
                break
            settled = await self.clock.settle(NAVIGATION_BUDGET_MS)
        if failed and self.clock.requests.main_status is None:
            raise BrowserError(f"{url} was not loaded: {failed}")
        return settled

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page, as JSON.

        Raises:
            BrowserError: the expression threw.
        """
        params = {"expression": expression, "returnByValue": True, "awaitPromise": False}
        answer = await self.cdp.send("Runtime.evaluate", params)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            cause = details.get("exception", {}).get("description", details.get("text"))
            raise BrowserError(f"script failed in the page: {cause}")
        return answer["result"].get("value")

    async def screenshot(self) -> bytes:
        """JPEG of the viewport."""
        return await self.picture(JPEG)

    async def picture(self, params: dict[str, Any]) -> bytes:
        """A picture with other parameters of ``Page.captureScreenshot``."""
        try:
            answer = await self.cdp.send("Page.captureScreenshot", params)
        except CdpError as error:
            if not refused_with(error, NO_PICTURE):
                raise
            # A fresh page may have no frame yet; the second request waits for one (Chromium 156, about half of fresh
            # contexts).
            answer = await self.cdp.send("Page.captureScreenshot", params)
        return binary(answer["data"])
