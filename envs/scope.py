"""Work that somebody else may cut short, in its caller's own task: no task is made for it, and nothing of it runs on."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Scope:
    """What is inside ends with a `TimeoutError` after so many seconds, or as soon as it is `cut`.

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
