"""Screenshots begun while a page settles, with the frame drawn for it anyway.

A picture forces a frame, waits until it is shown, and is copied and encoded by other processes than
the page's: 60 ms in which the page can get its time and be read. It holds if nothing has run since
its frame (`VirtualClock.still`); else another one is made. On a page that always does something it
never would, so after a miss the next steps do without, twice as many after each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from envs.browser.tab import Tab
from envs.cdp.client import CdpError

MAX_WITHOUT = 15
"""Steps without a try after several misses in a row."""


class SpeculativeScreenshots:
    """The speculative screenshots of one episode, one at a time."""

    def __init__(self, take: Callable[[Tab], Awaitable[bytes]]) -> None:
        """``take`` makes a screenshot of a tab."""
        self.used = 0
        """Screenshots that held."""
        self.discarded = 0
        """Screenshots of a frame after which something ran."""
        self._take = take
        self._misses = 0
        """Number of misses in a row."""
        self._without = 0
        """Steps that are not to be tried."""
        self._tab: Tab | None = None
        self._taking: asyncio.Task[bytes] | None = None

    @asynccontextmanager
    async def during(self, tab: Tab, *, worth: bool) -> AsyncIterator[Callable[[], None] | None]:
        """Yield what begins a step's picture; ``None`` if it is not worth it.

        A picture whose `result` was not asked for is cancelled at the end.
        """
        if not worth or self._without:
            self._without -= worth
            yield None
            return
        try:
            yield lambda: self._begin(tab)
        finally:
            await self._cancel()

    async def result(self, tab: Tab) -> bytes | None:
        """The picture of this tab that was begun in this step.

        Returns ``None`` if there is none, it failed, or it does not hold.

        Raises:
            BrowserError: the browser is gone, or the deadline.
        """
        if self._taking is None:
            return None
        if tab is not self._tab or not tab.clock.still:
            self.discarded += 1
            self._without = min(2**self._misses, MAX_WITHOUT)
            self._misses += 1
            await self._cancel()
            return None
        self.used += 1
        self._misses = 0
        taking, self._taking = self._taking, None
        try:
            return await taking
        except CdpError:
            return None  # one of the page as it is now may do better

    def _begin(self, tab: Tab) -> None:
        self._tab = tab
        self._taking = asyncio.ensure_future(self._take(tab))

    async def _cancel(self) -> None:
        taking, self._taking = self._taking, None
        if taking is not None:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
