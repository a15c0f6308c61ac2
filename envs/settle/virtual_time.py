"""Chromium's virtual time of one page: stopped, or running for a span.

Facts about Chromium 156 (headless shell), found by trying:

- A renderer process has one clock. Frames of any origin (site isolation is off), windows that a
  page opens, and its workers' ``Date`` and ``performance`` are on it. With
  ``--renderer-process-limit=1`` (`PROCESS_ARGS`) a browser context has one process, and so one
  clock, also for windows without an opener and for navigations to other sites; without it these
  begin on real time. Error pages are in a process of their own.
- While a site has not answered a navigation, the page answers no call: only ``Page.stopLoading``
  ends that.
- A navigation commits on a stopped clock (``Page.navigate`` answers; Playwright's ``goto`` does
  not, it waits for a script context). A clock that runs freely jumps to the next timer of the
  browser's own, by hours: that is why `begin` stops it before anything is loaded.
- Frames, and so screenshots, come only while the virtual clock is ahead of the real one: the
  compositor reads the virtual clock, and waits for the deadline of a frame, which is real. Hence
  `LEAD_MS`. Frames, scroll events and size observers then come while the clock stands; intersection
  observers need a frame and after it some time.
- Requests hold a ``pauseIfNetworkFetchesPending`` clock, event streams and long polls too, for
  ever; sockets do not hold it. Messages on sockets and streams arrive while the clock stands, and
  are handed to the page when it goes on.
- A worker's timer fires when both the virtual and the real time have passed, its requests are seen
  on its own session only. So pages with workers are waited for in real time as well
  (`PageWorkers`).
- IndexedDB, caches and service workers answer in real time and do not hold the clock:
  ``background=True`` for sites that use them.
- A loop of messages without a timer starves the clock unless ``maxVirtualTimeTaskStarvationCount``
  is given. A script that never ends lets no command through, only ``Runtime.terminateExecution``;
  afterwards the page is usable.
- A session that goes away leaves the clock as it was; a new session of the same page goes on with
  it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from envs.settle.constants import SAME_MS, SLICE_MS, STARVATION_TASKS
from envs.settle.page_probe import PageProbe
from envs.settle.requests import RequestTracker
from envs.types import BrowserError
from envs.types.errors import again

if TYPE_CHECKING:
    from envs.cdp import Cdp


class VirtualTime:
    """Not safe for concurrent calls."""

    def __init__(self, cdp: Cdp, probe: PageProbe, requests: RequestTracker) -> None:
        """``probe`` reads the page's clock; ``requests`` are waited for while time is given."""
        self.now = 0.0
        """Milliseconds since 1970 by the page's clock; 0 until it was stopped."""
        self._cdp = cdp
        self._probe = probe
        self._requests = requests
        self._expired: asyncio.Future[None] | None = None
        cdp.on("Emulation.virtualTimeBudgetExpired", self._on_expired)

    async def stop_at(self, seconds: float) -> bool:
        """Stop the clock.

        Returns whether it is a new one, which then stands at ``seconds`` since 1970.

        Raises:
            BrowserError: the browser cannot (`UNKNOWN_METHOD`), or is gone.
        """
        await self._policy({"policy": "pause", "initialVirtualTime": seconds})
        self.now = await self._probe.clock()
        return abs(self.now - 1000 * seconds) < SAME_MS

    async def stop(self) -> None:
        """Stop the clock where it is."""
        await self._policy({"policy": "pause"})

    async def read(self) -> None:
        """Take over what the clock says, if it has gone on."""
        self.now = max(self.now, await self._probe.clock())

    async def advance(self, milliseconds: float) -> None:
        """Let the clock run for a span, whatever is requested meanwhile."""
        await (await self._allow("advance", milliseconds))
        self.now += milliseconds

    async def give(self, milliseconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Let the clock run for a span, and stand while a request is waited for.

        Once ``until`` is true nothing is waited for: what is left of the span is used up later.
        """
        left = milliseconds
        while left > 0 and not until():
            if self._only_endless():
                given = min(SLICE_MS, left)
                await self.advance(given)
                left -= given
            else:
                left = await self._run(left, until)

    def fail(self, error: BrowserError) -> None:
        """The page is gone: whoever waits for its clock gets the error."""
        if self._expired is not None and not self._expired.done():
            self._expired.set_exception(again(error))
            self._expired.exception()  # marked as retrieved: there may be no waiting call
            self._requests.changed.set()

    def _only_endless(self) -> bool:
        """Requests hold the clock, and none of them is waited for."""
        return self._requests.endless() and not self._requests.waiting()

    async def _run(self, milliseconds: float, until: Callable[[], bool]) -> float:
        """Let the clock run while no request is waited for.

        Returns what is left of the span when only such are open that never end.
        """
        expired = await self._allow("pauseIfNetworkFetchesPending", milliseconds)
        while not expired.done():
            if until():
                return 0.0
            if self._only_endless():
                return await self._held(milliseconds)
            await self._requests.wait_event(self._requests.patience())  # or of the end of the span
            self._requests.expire_stalled()
        expired.result()
        self.now += milliseconds
        return 0.0

    async def _held(self, milliseconds: float) -> float:
        """Stop a clock that requests hold anyway; what is left of its span."""
        await self.stop()
        before = self.now
        await self.read()
        return max(0.0, milliseconds - (self.now - before))

    async def _allow(self, policy: str, milliseconds: float) -> asyncio.Future[None]:
        """Start the clock; done when the span is over and the clock stands."""
        self._expired = expired = asyncio.get_running_loop().create_future()
        limits = {"budget": milliseconds, "maxVirtualTimeTaskStarvationCount": STARVATION_TASKS}
        await self._policy({"policy": policy, **limits})
        return expired

    async def _policy(self, params: dict[str, Any]) -> None:
        await self._cdp.send("Emulation.setVirtualTimePolicy", params)

    def _on_expired(self, _event: object) -> None:
        if self._expired is not None and not self._expired.done():
            self._expired.set_result(None)
            self._requests.changed.set()
