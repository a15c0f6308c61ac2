"""When a page has settled: CDP virtual time.

The page's clock stands still while the model thinks. After an action it is given a budget of virtual milliseconds;
timers and animations of that span run at full speed, real network is waited for, and then the clock stops again. So the
result of an action does not depend on the load of the machine, and the same seed and actions give the same pages.
"""

from __future__ import annotations

import asyncio
from typing import Any

from envs.browser.cdp import Cdp

EPOCH_SECONDS = 1_700_000_000.0
"""What the page's clock says when it is opened (2023-11-14, UTC). Any fixed date: pages that print it must print the
same one."""

BUDGET_MS = 500.0
"""Virtual milliseconds after an action. jQuery's default animation takes 400 ms; the cost is a few real
milliseconds."""


NAVIGATION_BUDGET_MS = 1000.0
"""Virtual milliseconds for loading a committed page; waiting for its network does not use them up."""


class VirtualClock:
    """The clock of one page. Callers put a real-time deadline around `settle` (a fetch that never ends holds it
    open)."""

    def __init__(self, cdp: Cdp) -> None:
        self._cdp = cdp
        self._expired: asyncio.Future[None] | None = None
        self._set = False
        cdp.on("Emulation.virtualTimeBudgetExpired", self._on_expired)

    def _on_expired(self, _event: object) -> None:
        if self._expired is not None and not self._expired.done():
            self._expired.set_result(None)

    async def run_freely(self) -> None:
        """Let the clock run; needed to begin a navigation, which never commits on a stopped clock.

        Not for longer: a free clock jumps from timer to timer, so that a page with an interval keeps a core busy. Sixteen that loaded that
        way starved each other until nothing loaded any more.
        """
        params: dict[str, Any] = {"policy": "advance"}
        if not self._set:
            params["initialVirtualTime"] = EPOCH_SECONDS
            self._set = True
        await self._cdp.send("Emulation.setVirtualTimePolicy", params)

    async def settle(self, budget_ms: float) -> None:
        """Give the page ``budget_ms`` of virtual time, wait until it is used up and stop the clock."""
        self._expired = asyncio.get_running_loop().create_future()
        params = {"policy": "pauseIfNetworkFetchesPending", "budget": budget_ms}
        await self._cdp.send("Emulation.setVirtualTimePolicy", params)
        await self._expired
