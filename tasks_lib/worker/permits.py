"""Permits that decide which waiting episode a worker plays next, over all its rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

PASSED_OVER = 4
"""Times in a row that an episode of the page just left may overtake the longest waiting one."""


class Permits:
    """Permits to play an episode, one for each that a worker may play at once.

    An episode of the page that the last one has left overtakes those that wait longer, at most
    `PASSED_OVER` times in a row, because its page need not be loaded again. The others get their
    permits in order of arrival. Used from one event loop.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        """Free permits; 0 while an episode waits."""
        self._waiting: dict[asyncio.Future[None], Hashable] = {}
        """Pages of the waiting episodes, in order of arrival."""
        self._passed_over = 0
        """Episodes that overtook the longest waiting one since it became that."""

    @asynccontextmanager
    async def hold(self, page: Hashable) -> AsyncIterator[None]:
        """Wait for a permit for an episode of ``page``, and hold it inside.

        ``page`` is ``None`` where each episode loads its page anyway.
        """
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
            else:  # it got a permit at the same moment
                self._give(page)
            raise

    def _give(self, page: Hashable) -> None:
        first = next((turn for turn in self._waiting if not turn.done()), None)
        if first is None:
            self._free += 1
            return
        chosen = first
        if page is not None and self._passed_over < PASSED_OVER:
            same_page = (turn for turn, waiting in self._waiting.items() if waiting == page and not turn.done())
            chosen = next(same_page, first)
        self._passed_over = 0 if chosen is first else self._passed_over + 1
        del self._waiting[chosen]
        chosen.set_result(None)
