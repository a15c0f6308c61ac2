"""Context of an action: one tab as its session knows it now.

The session owns the tabs, the clock and the last observation, and makes an `ActionContext` of them
for each action. Nothing here belongs to a site, a task or a policy.
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
"""Real seconds for the input events of one action (they take 0.03 s). A page that is busy for
longer gets a ``timeout``."""


class Tabs(Protocol):
    """Tabs of the episode, by the numbers that the observation shows."""

    @property
    def tab_numbers(self) -> tuple[int, ...]:
        """Numbers of the open tabs."""
        ...

    @property
    def active_number(self) -> int:
        """Number of the tab that is shown."""
        ...

    async def new_tab(self, url: str | None) -> None:
        """Open a tab with an allowed address, and show it.

        An address that does not answer gives the browser's own page for it.
        """
        ...

    async def switch_tab(self, number: int) -> None:
        """Show an open tab."""
        ...

    async def close_tab(self, number: int) -> None:
        """Close an open tab; if it was shown, another one is shown then."""
        ...


@dataclass(frozen=True)
class LastLook:
    """Knowledge from the last look at a page, so that it need not be asked."""

    scroll: tuple[float, float]
    """Scroll position of the page, in CSS pixels."""
    holds: Callable[[int, int], bool]
    """True for an element and a node in it (both by backend node id). If it is False the page is
    asked, as the node may be in a label."""
    frame: str
    """Id of the page's own frame."""


@dataclass(frozen=True)
class ActionContext:
    """One tab and the parts that act on it."""

    cdp: Cdp
    viewport: tuple[float, float]
    """Width and height of the visible part of the page, in CSS pixels of the page. Points are in
    the same pixels, from its top left."""
    handles: Mapping[int, Handle]
    """Elements of the last observation by their numbers, which are also their marks."""
    tabs: Tabs
    dialogs: Dialogs
    intercept: Interceptor
    clock: VirtualClock
    allowed: Callable[[str], bool]
    """True for http(s) addresses that the task may load; the egress proxy has the last word."""
    files: Path | None = None
    """Folder of the task, the only one that uploads come from."""
    clipboard: bool = False
    """True when pasting is allowed. A Chromium has one clipboard for all its episodes, so only an
    episode with a browser of its own may use it."""
    seen: LastLook | None = None
    """Knowledge from the last look, if nothing can have changed since."""
    drawn_whole: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Context in which the whole page is drawn, where else only a corner is: a wheel needs it to
    find its target."""
    scale: float = 1.0
    """Number of CSS pixels of the picture for each of the page. The wheel takes those of the
    picture, all other input those of the page."""
    deadline: float = ACTION_SECONDS


@dataclass(frozen=True)
class Effect:
    """Result of an action. The session then settles the page and looks."""

    point: tuple[float, float] | None = None
    """Place of the mouse, in CSS pixels."""
    node: int | None = None
    """Element under the mouse (backendNodeId), if one was named."""
    wait_ms: float = 0.0
    """Virtual milliseconds that the page gets on top of the usual ones."""
    stop: StopReason | None = None
    """Reason if the policy ended the episode."""
    said: str = ""
    """Answer or status of the policy at its end."""
    notice: str = ""
    """Notice about the action in the next observation."""
