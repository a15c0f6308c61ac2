"""Lets a page's clock run at the rate of real time, for clients that wait in real time.

A clock without a limit would jump from timer to timer, hours a second; so it gets short spans, and
each lasts as long in real time. Playwright's own waits need that: while a clock stands, its clicks
and screenshots never end.
"""

from __future__ import annotations

import asyncio

from envs.settle.animations import Animations
from envs.settle.constants import SLICE_MS
from envs.settle.virtual_time import VirtualTime


class RealTime:
    """The clock of one page while somebody else uses it; its `VirtualClock` rests meanwhile."""

    def __init__(self, time: VirtualTime, animations: Animations) -> None:
        self._time = time
        self._animations = animations

    async def start(self) -> None:
        """Let animations move by themselves."""
        await self._animations.thaw()

    async def run(self) -> None:
        """Give the page a short span, which takes as long in real time."""
        end = asyncio.get_running_loop().time() + SLICE_MS / 1000
        await self._time.advance(SLICE_MS)
        await asyncio.sleep(max(0.0, end - asyncio.get_running_loop().time()))

    async def stop(self) -> None:
        """Stop the clock and animations; `VirtualClock.settle` then ends what has begun."""
        await self._time.stop()
        await self._animations.freeze()
