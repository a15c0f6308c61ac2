"""Trusted mouse and keyboard events through CDP.

The messages of one gesture are sent without waiting for each other: Chromium handles them in order, and one round trip
is paid instead of one per event. A page sees exactly what a person's mouse and keyboard give (``isTrusted`` is true).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from envs.actions.keyboard import KEYS, Chord, Key, events, held_down, modifier_bits
from envs.types.actions import MouseButton

if TYPE_CHECKING:
    from envs.actions.context import ActionContext
    from envs.cdp import Cdp

DRAG_STEPS = 8
"""Moves between the ends of a drag: pages look at what lies under the mouse on the way (sortable lists, sliders)."""

VIA_STEPS = 2
"""Moves between two points of a drag that has points on its way: they are near to each other."""

DRAG_START = 6.0
"""CSS pixels of the first move with the button down; Chromium begins a drag at 3, usual libraries at 1 to 5."""

Place = tuple[float, float]

_MOUSE, _KEY = "Input.dispatchMouseEvent", "Input.dispatchKeyEvent"


_FLUSH = {"type": "char", "windowsVirtualKeyCode": 27}
"""A character of Escape, for which no event is dispatched to the page. Chromium puts off moves of the mouse to the next frame (5 to 16 ms),
unless another kind of event waits behind them."""


async def move(cdp: Cdp, x: float, y: float) -> None:
    """Move the mouse to a point of the viewport, in CSS pixels.

    The page hears of it with its next frame.
    """
    await _mouse(cdp, "mouseMoved", (x, y))


async def move_at_once(cdp: Cdp, x: float, y: float) -> None:
    """Move the mouse as `move`, without waiting for a frame."""
    await asyncio.gather(_mouse(cdp, "mouseMoved", (x, y)), cdp.send(_KEY, dict(_FLUSH)))


@dataclass(frozen=True)
class Grip:
    """A mouse button, and the modifier keys that are held while it is used."""

    button: str = "left"
    held: tuple[Key, ...] = ()

    @classmethod
    def of(cls, action: MouseButton) -> Grip:
        """What an action says."""
        return cls(action.button, tuple(KEYS[name] for name in dict.fromkeys(action.modifiers)))

    @property
    def bits(self) -> dict[str, int]:
        """Of the held keys, for a mouse event; none for none, as before."""
        return {"modifiers": modifier_bits(self.held)} if self.held else {}


LEFT = Grip()
_BUTTONS = {"left": 1, "right": 2, "middle": 4}
"""Bits of CDP's ``buttons``."""


async def click(context: ActionContext, x: float, y: float, times: int = 1, grip: Grip = LEFT) -> None:
    """Click where the mouse is, ``times`` in a row (2 is a double click)."""
    down, up = held_down(grip.held)
    messages: list[dict[str, Any]] = []
    for count in range(1, times + 1):
        press = {"x": x, "y": y, "button": grip.button, "clickCount": count, **grip.bits}
        messages += [
            {"type": "mousePressed", "buttons": _BUTTONS[grip.button], **press},
            {"type": "mouseReleased", "buttons": 0, **press},
        ]
    sent = [*_of(_KEY, down), *_of(_MOUSE, messages), *_of(_KEY, up)]
    await asyncio.gather(*(context.cdp.send(method, each) for method, each in sent))


async def wheel(cdp: Cdp, x: float, y: float, dx: float, dy: float) -> None:
    """Turn the wheel at a point by so many CSS pixels.

    What it scrolls is shown from the next frame on.
    """
    await cdp.send("Input.dispatchMouseEvent", {"type": "mouseWheel", "x": x, "y": y, "deltaX": dx, "deltaY": dy})


async def drag(context: ActionContext, way: Sequence[Place], grip: Grip = LEFT) -> None:
    """Press at the first point, move through all others and release at the last one.

    If the page begins a native drag (``draggable``), it is dragged and dropped.
    """
    cdp, start, end = context.cdp, way[0], way[-1]
    held = {"button": grip.button, "buttons": _BUTTONS[grip.button], **grip.bits}
    down, up = held_down(grip.held)
    async with context.intercept.drags() as caught:
        await move(cdp, *start)
        await _all(cdp, _KEY, *down)
        await _mouse(cdp, "mousePressed", start, clickCount=1, **held)
        for place in _first_moves(start, way[1]):
            await _mouse(cdp, "mouseMoved", place, **held)
        # The interception is told before the move that began it is acknowledged, or under load a little later.
        steps = DRAG_STEPS if len(way) == 2 else VIA_STEPS
        left = [place for one, other in pairwise(way) for place in _between(one, other, steps)]
        while left and not caught.done():
            await _mouse(cdp, "mouseMoved", left.pop(0), **held)
        if caught.done():
            await _carry(cdp, caught.result()["data"], left or [end])
        await _mouse(cdp, "mouseReleased", end, button=grip.button, buttons=0, clickCount=1, **grip.bits)
        await _all(cdp, _KEY, *up)


async def _carry(cdp: Cdp, data: dict[str, Any], way: list[Place]) -> None:
    """Take an intercepted drag over its way and drop it at the end.

    Whether a drop is welcome is the page's answer to the event before.
    """
    for kind, (x, y) in [("dragEnter", way[0]), *(("dragOver", place) for place in way), ("drop", way[-1])]:
        await cdp.send("Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data})


async def _mouse(cdp: Cdp, kind: str, place: Place, **more: Any) -> None:
    """One mouse event, awaited.

    Chromium merges moves that come faster than frames, and how many a page sees would depend on the
    load.
    """
    await cdp.send("Input.dispatchMouseEvent", {"type": kind, "x": place[0], "y": place[1], **more})


async def press(context: ActionContext, chord: Chord) -> None:
    """Press and release a chord."""
    await send_keys(context, events(chord))


async def send_keys(context: ActionContext, keys: Sequence[dict[str, Any]]) -> None:
    """Send key events to what has the focus, in order."""
    await _all(context.cdp, _KEY, *keys)


def _first_moves(start: Place, end: Place) -> list[Place]:
    """Two small moves towards the end.

    The first begins a drag, the second lets a page see it.
    """
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = max((dx * dx + dy * dy) ** 0.5, DRAG_START)
    step = DRAG_START / length
    return [(start[0] + dx * step * part, start[1] + dy * step * part) for part in (0.7, 1.0)]


def _between(start: Place, end: Place, steps: int) -> list[Place]:
    """``steps`` points on the way, the last one at the end."""
    parts = [(step + 1) / steps for step in range(steps)]
    return [(start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part) for part in parts]


def _of(method: str, messages: Iterable[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(method, each) for each in messages]


async def _all(cdp: Cdp, method: str, *params: dict[str, Any]) -> None:
    await asyncio.gather(*(cdp.send(method, each) for each in params))
