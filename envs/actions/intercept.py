"""Intercepts drags and file choosers that Chromium would hand to the desktop.

One `Interceptor` for each tab.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.cdp import Cdp


class Interceptor:
    """Catches at most one drag and one file chooser at a time."""

    def __init__(self, cdp: Cdp) -> None:
        self._cdp = cdp
        self._drag: asyncio.Future[dict[str, Any]] | None = None
        self._chooser: asyncio.Future[dict[str, Any]] | None = None
        cdp.on("Input.dragIntercepted", lambda event: _resolve(self._drag, event))
        cdp.on("Page.fileChooserOpened", lambda event: _resolve(self._chooser, event))

    @asynccontextmanager
    async def drags(self) -> AsyncIterator[asyncio.Future[dict[str, Any]]]:
        """While inside, a native drag that a page starts gives the future its ``Input.dragIntercepted``."""
        self._drag = caught = asyncio.get_running_loop().create_future()
        await self._cdp.send("Input.setInterceptDrags", {"enabled": True})
        try:
            yield caught
        finally:
            self._drag = None
            await self._cdp.send("Input.setInterceptDrags", {"enabled": False})

    @asynccontextmanager
    async def file_choosers(self) -> AsyncIterator[asyncio.Future[dict[str, Any]]]:
        """While inside, a file chooser that a page opens gives the future its ``Page.fileChooserOpened``."""
        self._chooser = caught = asyncio.get_running_loop().create_future()
        await self._cdp.send("Page.setInterceptFileChooserDialog", {"enabled": True})
        try:
            yield caught
        finally:
            self._chooser = None
            await self._cdp.send("Page.setInterceptFileChooserDialog", {"enabled": False})


def _resolve(future: asyncio.Future[dict[str, Any]] | None, event: dict[str, Any]) -> None:
    if future is not None and not future.done():
        future.set_result(event)
