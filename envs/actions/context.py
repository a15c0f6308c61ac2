"""What an action acts on: one tab as its session knows it now.

The session owns the tabs, the clock and the last observation, and makes an `ActionContext` of them for each action. Nothing here is a site's, a
task's or a policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from envs.types import StopReason

if TYPE_CHECKING:
    from envs.actions.dialogs import Dialogs
    from envs.actions.intercept import Interceptor
    from envs.cdp import Cdp
    from envs.observation import Handle
    from envs.settle import VirtualClock

ACTION_SECONDS = 10.0
"""Real seconds for the input events of one action (they take 0.03 s); a page that is busy for longer gets a ``timeout``."""


class Tabs(Protocol):
    """The tabs of the episode, by the numbers that the observation shows."""

    def numbers(self) -> tuple[int, ...]:
        """Numbers of the open tabs."""
        ...

    @property
    def active(self) -> int:
        """Number of the tab that is shown."""
        ...

    async def new(self, url: str | None) -> None:
        """Open a tab, with an address that was found allowed, and show it.

        One that does not answer gives the browser's own page for it.
        """
        ...

    async def switch(self, tab: int) -> None:
        """Show an open tab."""
        ...

    async def close(self, tab: int) -> None:
        """Close an open tab; of several, another is shown then."""
        ...


@dataclass(frozen=True)
class LastLook:
    """What the last look tells of a page, so it need not be asked."""

    scroll: tuple[float, float]
    """How far it is scrolled, in CSS pixels."""
    holds: Callable[[int, int], bool]
    """Whether an element has a node in it (both by backend node id). What it denies the page is asked: a label may do."""
    frame: str
    """Id of the page's own frame."""


@dataclass(frozen=True)
class ActionContext:
    """One tab and what belongs to it."""

    cdp: Cdp
    viewport: tuple[float, float]
    """width, height of what is seen of the page, in CSS pixels of the page; points are those from where it begins."""
    handles: Mapping[int, Handle]
    """The elements of the last observation by their numbers, which are also their marks."""
    tabs: Tabs
    dialogs: Dialogs
    intercept: Interceptor
    clock: VirtualClock
    allowed: Callable[[str], bool]
    """Whether the task may load this http(s) address; the egress proxy has the last word."""
    files: Path | None = None
    """The task's own folder, the only one that uploads come from."""
    clipboard: bool = False
    """Pasting is open. A Chromium has one clipboard for all its episodes: only for one that has a browser of its own."""
    offers: tuple[str, ...] = ()
    """Names of actions that the site takes beyond those that every site does."""
    seen: LastLook | None = None
    """What the last look tells of the page, if nothing can have changed since."""
    drawn_whole: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Has the whole page drawn meanwhile, where else only a corner is: a wheel needs it to find what it is turned over."""
    scale: float = 1.0
    """CSS pixels of the picture for each of the page. The wheel is turned by those of the picture, all else that is sent is of the page."""
    deadline: float = ACTION_SECONDS


@dataclass(frozen=True)
class Effect:
    """What an action did. The session settles the page and looks."""

    point: tuple[float, float] | None = None
    """Where the mouse went, in CSS pixels."""
    node: int | None = None
    """The element that it went to (backendNodeId), where one was named."""
    wait_ms: float = 0.0
    """Virtual milliseconds that the page is to get on top of the usual ones."""
    stop: StopReason | None = None
    """The policy ended the episode."""
    said: str = ""
    """Its answer, or its status."""
    notice: str = ""
    """What the next observation says of it."""
