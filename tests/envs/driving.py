"""How tests and benchmarks drive a fixture page without a session: open, load, press its button,
read what it says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from envs.settle import Looks, Settled, VirtualClock, prepare
from tests.envs.devtools import Devtools, Session
from tests.envs.dynamic_site import GO, STATE

VIEWPORT = (800, 600)
PRESS_SECONDS = 3.0
"""Real seconds for a click to be taken; a page that is stuck takes none."""


@dataclass
class Driven:
    """A tab with a clock."""

    browser: Devtools
    cdp: Session
    clock: VirtualClock

    async def load(self, url: str) -> Settled:
        """Go to an address and settle."""
        await self.cdp.send("Page.navigate", {"url": url})
        settled = await self.clock.settle(1000)
        if "shared-worker" in url:
            await self._attach_shared_worker()
        return settled

    async def press(self) -> None:
        """Press the button that makes the fixture act."""
        x, y = GO
        events = [
            {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            for kind in ("mousePressed", "mouseReleased")
        ]
        sends = [asyncio.ensure_future(self.cdp.send("Input.dispatchMouseEvent", event)) for event in events]
        try:
            await asyncio.wait(sends, timeout=PRESS_SECONDS)
        finally:  # also if this is cancelled
            for send in sends:
                send.cancel()

    async def state(self) -> Any:
        """What the fixture says."""
        return await self.cdp.evaluate(STATE)

    async def close(self) -> None:
        """Close the tab."""
        await self.browser.send("Target.closeTarget", {"targetId": self.cdp.target_id})

    async def _attach_shared_worker(self) -> None:
        # The browser's, not the page's: it is the pool that finds them.
        info = (await self.browser.send("Target.getTargetInfo", {"targetId": self.cdp.target_id}))["targetInfo"]
        for target in (await self.browser.send("Target.getTargets"))["targetInfos"]:
            if target["type"] == "shared_worker" and target["browserContextId"] == info["browserContextId"]:
                await self.clock.workers.add(target["targetId"], await self.browser.attach(target["targetId"]))


async def open_driven(
    browser: Devtools, *, seed: int | None = None, virtual: bool = True, background: bool = False
) -> Driven:
    """A tab in a browser context of its own, set up and with its clock stopped."""
    page = await browser.page(width=VIEWPORT[0], height=VIEWPORT[1])
    await prepare(page, Looks(VIEWPORT, seed=seed, virtual_time=virtual))
    clock = VirtualClock(page, virtual=virtual, background=background, open_session=browser.session)
    await clock.begin()
    return Driven(browser, page, clock)
