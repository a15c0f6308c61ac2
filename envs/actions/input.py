"""Trusted mouse and keyboard events through CDP.

The messages of one gesture are sent without waiting for each other: Chromium handles them in order, and one round trip
is paid instead of one per event. A page sees exactly what a person's mouse and keyboard give (``isTrusted`` is true).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from envs.actions.keyboard import KEYS, MODIFIERS, Chord, Key, character, events, stroke

if TYPE_CHECKING:
    from envs.actions.intercept import Interceptor
    from envs.cdp import Cdp

MAX_TYPED = 200
"""Characters typed key by key; a longer text is inserted at once, as a paste, to bound the number of messages."""

DRAG_STEPS = 8
"""Moves between the ends of a drag: pages look at what lies under the mouse on the way (sortable lists, sliders)."""

DRAG_START = 6.0
"""CSS pixels of the first move with the button down; Chromium begins a drag at 3, usual libraries at 1 to 5."""

Place = tuple[float, float]


async def move(cdp: Cdp, x: float, y: float) -> None:
    """Move the mouse to a point of the viewport, in CSS pixels."""
    await cdp.send("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})


async def click(cdp: Cdp, x: float, y: float, times: int = 1) -> None:
    """Move to a point, press and release the left button, ``times`` in a row (2 is a double click)."""
    messages: list[dict[str, Any]] = [{"type": "mouseMoved", "x": x, "y": y}]
    for count in range(1, times + 1):
        press = {"x": x, "y": y, "button": "left", "clickCount": count}
        messages += [
            {"type": "mousePressed", "buttons": 1, **press},
            {"type": "mouseReleased", "buttons": 0, **press},
        ]
    await _all(cdp, "Input.dispatchMouseEvent", *messages)


async def wheel(cdp: Cdp, x: float, y: float, dx: float, dy: float) -> None:
    """Turn the wheel at a point by so many CSS pixels. What it scrolls is shown from the next frame on."""
    await cdp.send("Input.dispatchMouseEvent", {"type": "mouseWheel", "x": x, "y": y, "deltaX": dx, "deltaY": dy})


async def drag(cdp: Cdp, intercept: Interceptor, start: Place, end: Place) -> None:
    """Press at ``start``, move to ``end`` and release. If the page begins a native drag (``draggable``), it is dragged and dropped."""
    held = {"button": "left", "buttons": 1}
    async with intercept.drags() as caught:
        await move(cdp, *start)
        await _mouse(cdp, "mousePressed", start, clickCount=1, **held)
        for place in _first_moves(start, end):
            await _mouse(cdp, "mouseMoved", place, **held)
        # The interception is told before the move that began it is acknowledged, or under load a little later.
        way = _between(start, end, DRAG_STEPS)
        while way and not caught.done():
            await _mouse(cdp, "mouseMoved", way.pop(0), **held)
        if caught.done():
            await _carry(cdp, caught.result()["data"], way or [end])
        await _mouse(cdp, "mouseReleased", end, button="left", buttons=0, clickCount=1)


async def _carry(cdp: Cdp, data: dict[str, Any], way: list[Place]) -> None:
    """Take an intercepted drag over its way and drop it at the end. Whether a drop is welcome is the page's answer to the event before."""
    for kind, (x, y) in [("dragEnter", way[0]), *(("dragOver", place) for place in way), ("drop", way[-1])]:
        await cdp.send("Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data})


async def _mouse(cdp: Cdp, kind: str, place: Place, **more: Any) -> None:
    """One mouse event, awaited: Chromium merges moves that come faster than frames, and how many a page sees would depend on the load."""
    await cdp.send("Input.dispatchMouseEvent", {"type": kind, "x": place[0], "y": place[1], **more})


async def press(cdp: Cdp, chord: Chord) -> None:
    """Press and release a chord."""
    await _all(cdp, "Input.dispatchKeyEvent", *events(chord))


async def replace_text(cdp: Cdp, text: str) -> None:
    """Select everything in the focused field and type ``text`` over it; an empty text clears the field."""
    select = {"key": "a", "code": "KeyA", "windowsVirtualKeyCode": 65, "modifiers": MODIFIERS["Control"]}
    first = [{"type": "rawKeyDown", "commands": ["selectAll"], **select}, {"type": "keyUp", **select}]
    await _write(cdp, first if text else [*first, *stroke(KEYS["Backspace"])], text)


async def append_text(cdp: Cdp, text: str) -> None:
    """Go to the end of the focused field and type ``text``."""
    await _write(cdp, events(Chord((KEYS["Control"],), KEYS["End"])), text)


async def type_keys(cdp: Cdp, text: str) -> None:
    """Type ``text`` key by key into what has the focus, whatever its length."""
    await _all(cdp, "Input.dispatchKeyEvent", *(event for each in text for event in _stroke_of(each)))


async def _write(cdp: Cdp, first: list[dict[str, Any]], text: str) -> None:
    typed = text if len(text) <= MAX_TYPED else ""
    await _all(cdp, "Input.dispatchKeyEvent", *first, *(event for each in typed for event in _stroke_of(each)))
    if not typed and text:
        await cdp.send("Input.insertText", {"text": text})


def _stroke_of(text: str) -> list[dict[str, Any]]:
    key: Key = character(text)
    return stroke(key, MODIFIERS["Shift"] if key.shifted else 0)


def _first_moves(start: Place, end: Place) -> list[Place]:
    """Two small moves towards the end: the first begins a drag, the second lets a page see it."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = max((dx * dx + dy * dy) ** 0.5, DRAG_START)
    step = DRAG_START / length
    return [(start[0] + dx * step * part, start[1] + dy * step * part) for part in (0.7, 1.0)]


def _between(start: Place, end: Place, steps: int) -> list[Place]:
    """``steps`` points on the way, the last one at the end."""
    parts = [(step + 1) / steps for step in range(steps)]
    return [(start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part) for part in parts]


async def _all(cdp: Cdp, method: str, *params: dict[str, Any]) -> None:
    await asyncio.gather(*(cdp.send(method, each) for each in params))
