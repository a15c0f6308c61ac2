"""Which of the episodes that wait on a worker is played next, over all its rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

PASSED_OVER = 4
"""Episodes of other pages that may follow their like before the one that waits longest gets its permit."""


class Permits:
    """One for each episode that a worker may play at once. Used from one event loop.

    An episode of the page that the last one has left comes before those that wait longer, `PASSED_OVER` times in a row at most: its page
    is not loaded again. The others get theirs in the order in which they came.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        """None while an episode waits."""
        self._waiting: dict[asyncio.Future[None], Hashable] = {}
        """Pages, those of the episodes that came first in front."""
        self._passed_over = 0
        """Permits that went past the first one since it is the first."""

    @asynccontextmanager
    async def hold(self, page: Hashable) -> AsyncIterator[None]:
        """A permit for an episode of ``page``, ``None`` where a page is loaded for each episode anyway. Waits for it."""
        await self._take(page)
        try:
            yield
        finally:
            self._give(page)

    async def _take(self, page: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = page
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.pop(turn, None)
            else:  # it was given a permit in the same moment
                self._give(page)
            raise

    def _give(self, page: Hashable) -> None:
        first = next((turn for turn in self._waiting if not turn.done()), None)
        if first is None:
            self._free += 1
            return
        chosen = first
        if page is not None and self._passed_over < PASSED_OVER:
            alike = (turn for turn, of in self._waiting.items() if of == page and not turn.done())
            chosen = next(alike, first)
        self._passed_over = 0 if chosen is first else self._passed_over + 1
        del self._waiting[chosen]
        chosen.set_result(None)
