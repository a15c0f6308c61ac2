"""Keeps the dates of a live page's documents at the real time, where its held clock falls
behind."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from envs.settle.constants import BEHIND_MS
from envs.settle.determinism import dates_script

if TYPE_CHECKING:
    from envs.cdp import Cdp


class PageDates:
    """The dates that a page's documents read, ahead of its clock. No timer falls due by them."""

    def __init__(self, cdp: Cdp) -> None:
        self.ahead = 0.0
        """Milliseconds by which the documents' dates are ahead of the clock."""
        self._cdp = cdp
        self._scripts: list[str] = []

    async def catch_up(self, now: float) -> None:
        """Set the dates to the real time, where a clock at ``now`` (ms since 1970) is behind."""
        behind = 1000 * time.time() - now
        if behind - self.ahead > BEHIND_MS:
            await self._set_ahead(behind)

    async def _set_ahead(self, milliseconds: float) -> None:
        """Set the dates of present and coming documents ahead of the clock.

        A world of its own, where the page changes nothing, sets those of the present ones; in new
        documents it would run before `document_script`.
        """
        self.ahead, before = milliseconds, self._scripts
        present, coming = {"worldName": "rollwright-dates", "runImmediately": True}, dict[str, Any]()
        add, source = "Page.addScriptToEvaluateOnNewDocument", dates_script(milliseconds)
        added = await asyncio.gather(*(self._cdp.send(add, {"source": source, **how}) for how in (present, coming)))
        self._scripts = [script["identifier"] for script in added]
        for identifier in before:
            await self._cdp.send("Page.removeScriptToEvaluateOnNewDocument", {"identifier": identifier})
