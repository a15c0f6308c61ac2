"""Elements of the last observation and tabs of a context, as actions address them.

Elements have a number, a semantic id or a mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envs.browser.context import BrowserContext
from envs.browser.tab import Tab
from envs.observation import Handle, Reading


class ObservedTargets:
    """`envs.actions.Targets` of a reading. Marks are the elements' numbers."""

    def __init__(self, reading: Reading | None) -> None:
        self._all: Mapping[int, Handle] = {} if reading is None else reading.handles

    def by_index(self, index: int) -> Handle | None:
        """The element with this number."""
        return self._all.get(index)

    def by_id(self, name: str) -> Handle | None:
        """The element with this semantic id."""
        return next((handle for handle in self._all.values() if handle.name and handle.name == name), None)

    def handles(self) -> Sequence[Handle]:
        """All of them, in reading order."""
        return tuple(self._all.values())


class ContextTabs:
    """`envs.actions.Tabs` of a context."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context

    def numbers(self) -> tuple[int, ...]:
        """Numbers of the open tabs."""
        return tuple(tab.number for tab in self._context.tabs)

    @property
    def active(self) -> int:
        """Number of the tab that is shown."""
        return self._context.active.number

    async def new(self, url: str | None) -> None:
        """Open a tab and show it."""
        tab = await self._context.new_tab()
        if url is not None:
            await tab.clock.begin()
            await tab.cdp.send("Page.navigate", {"url": url})

    async def switch(self, tab: int) -> None:
        """Show an open tab."""
        await self._context.show(self._tab(tab))

    async def close(self, tab: int) -> None:
        """Close an open tab."""
        await self._context.close_tab(self._tab(tab))

    def _tab(self, number: int) -> Tab:
        return next(tab for tab in self._context.tabs if tab.number == number)
