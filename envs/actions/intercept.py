"""Intercepts drags and file choosers that Chromium would hand to the desktop.

One `Interceptor` for each tab.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.cdp import Cdp


DRAG, CHOOSER = "Input.dragIntercepted", "Page.fileChooserOpened"

Caught = asyncio.Future[dict[str, Any]]


class Interceptor:
    """Catches at most one drag and one file chooser at a time."""

    def __init__(self, cdp: Cdp) -> None:
        self._cdp = cdp
        self._waiting: dict[str, Caught] = {}
        for event in (DRAG, CHOOSER):
            cdp.on(event, partial(self._resolve, event))

    def drags(self) -> AbstractAsyncContextManager[Caught]:
        """Give a future that gets ``Input.dragIntercepted`` when the page starts a native drag
        inside."""
        return self._catch(DRAG, "Input.setInterceptDrags")

    def file_choosers(self) -> AbstractAsyncContextManager[Caught]:
        """Give a future that gets ``Page.fileChooserOpened`` when the page opens a file chooser
        inside."""
        return self._catch(CHOOSER, "Page.setInterceptFileChooserDialog")

    @asynccontextmanager
    async def _catch(self, event: str, switch: str) -> AsyncIterator[Caught]:
        self._waiting[event] = caught = asyncio.get_running_loop().create_future()
        await self._cdp.send(switch, {"enabled": True})
        try:
            yield caught
        finally:
            del self._waiting[event]
            await self._cdp.send(switch, {"enabled": False})

    def _resolve(self, event: str, params: dict[str, Any]) -> None:
        caught = self._waiting.get(event)
        if caught is not None and not caught.done():
            caught.set_result(params)
