"""Work that somebody else may cut short, and work that a cancellation may not stop half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self


class Scope:
    """What is inside ends with a `TimeoutError` after so many seconds, or as soon as it is `cut`. It runs in its caller's own task.

    Example::

        async with Scope(30) as scope:
            page.on_close(scope.cut)
            await page.read()
    """

    def __init__(self, seconds: float) -> None:
        self.was_cut = False
        """Somebody cut it, which what was inside may have come before."""
        self._timeout = asyncio.timeout(seconds)
        self._open = False

    @property
    def expired(self) -> bool:
        """It was ended, by its deadline or because it was cut."""
        return self._timeout.expired()

    def cut(self) -> None:
        """End what is inside; nothing where it has ended."""
        if self._open and not self._timeout.expired():
            self.was_cut = True
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        await self._timeout.__aexit__(kind, error, trace)


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` until it is over, also when the caller is cancelled meanwhile; the cancellation follows then. The work has its own bounds."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    task.result()
