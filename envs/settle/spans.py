"""Gives a page spans of time inside an action: between two keys, moves, press and release."""

from __future__ import annotations

import asyncio
import time

from envs.settle.activity import SCRIPTS, ActivityProbe
from envs.settle.requests import RequestTracker
from envs.settle.virtual_time import VirtualTime

ACTION_SECONDS = 5.0
"""Real seconds that the spans of one action may wait for requests, or for the time itself where the
clock is not held."""


class Spans:
    """The spans of one page. Not safe for concurrent calls."""

    def __init__(self, clock: VirtualTime, requests: RequestTracker, activity: ActivityProbe) -> None:
        self._time = clock
        self._requests = requests
        self._activity = activity
        self._seconds_left = ACTION_SECONDS
        self._counted: dict[str, float] = {}
        """The page's counters when it was last asked to `sleep` in this action."""

    def begin(self) -> None:
        """An action is over: the next one may wait as long again."""
        self._seconds_left, self._counted = ACTION_SECONDS, {}

    async def give(self, milliseconds: float) -> None:
        """Let the held clock run for a span.

        Requests that begin are waited for with the clock stopped, as long as the action may; later
        ones are answered when they are. A document that gives way to another one gets no more time.
        Otherwise it costs about one real millisecond: no frame is drawn, nothing is looked at.
        """
        started, events = time.perf_counter(), self._requests.events_seen
        try:
            async with asyncio.timeout(max(self._seconds_left, 0.0)):
                await self._time.give(milliseconds, until=self._requests.navigating)
        except TimeoutError:
            await self._time.advance(milliseconds)
        if events != self._requests.events_seen:
            self._seconds_left -= time.perf_counter() - started

    async def sleep(self, milliseconds: float) -> None:
        """Let real time pass, if a script has run since the span before began or the page's
        counters were read."""
        before = self._counted or self._activity.last
        now = self._counted = await self._activity.read()
        if self._seconds_left > 0 and not (before and now and before[SCRIPTS] == now[SCRIPTS]):
            self._seconds_left -= milliseconds / 1000
            await asyncio.sleep(milliseconds / 1000)
