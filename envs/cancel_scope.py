"""Cancel scopes with a deadline, and cleanup shielded from cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self


class CancelScope:
    """Ends what is inside with a `TimeoutError`, at its deadline or on `cancel`.

    The deadline is so many seconds after its beginning. What is inside runs in its caller's own
    task.

    Example::

        async with CancelScope(30) as scope:
            page.on_close(scope.cancel)
            await page.read()
    """

    def __init__(self, seconds: float) -> None:
        self.was_cancelled = False
        """`cancel` was called, though what was inside may have ended before."""
        self._timeout = asyncio.timeout(seconds)
        self._open = False

    @property
    def expired(self) -> bool:
        """It was ended, by its deadline or by `cancel`."""
        return self._timeout.expired()

    def extend(self, seconds: float) -> None:
        """Move its deadline by so many seconds; nothing where it was ended or has ended."""
        if self._open and not self.was_cancelled and not self._timeout.expired():
            self._timeout.reschedule((self._timeout.when() or 0.0) + seconds)

    def cancel(self) -> None:
        """End what is inside; nothing where it has ended."""
        if self._open and not self._timeout.expired():
            self.was_cancelled = True
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


async def finish_shielded(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end, even if the caller is cancelled meanwhile.

    The cancellation follows then. The work has its own bounds.
    """
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    task.result()
