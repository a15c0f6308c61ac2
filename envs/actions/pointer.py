"""Trusted mouse and keyboard events through CDP.

A page sees the same events as from a person's mouse and keyboard (``isTrusted`` is true), and its
time goes on meanwhile (`envs.actions.pace`). Events between which the page cannot act are sent
without waiting for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from envs.actions.keyboard import KEYS, Chord, Key, events, held_down, modifier_bits, typed
from envs.actions.pace import AGAIN_MS, DROP_MS, DROP_SECONDS, HAND_MS, HOLD_MS, KEY_MS, MOVE_MS, PRESS_MS, share
from envs.types.actions import MouseButton

if TYPE_CHECKING:
    from envs.actions.context import ActionContext
    from envs.cdp import Cdp

SCRIPTS = "ScriptDuration"
"""Counter of ``Performance.getMetrics``: seconds in all callbacks of scripts."""

DRAG_STEPS = 8
"""Number of moves between the ends of a drag. Pages check what lies under the mouse on the way
(sortable lists, sliders)."""

VIA_STEPS = 2
"""Number of moves between two points of a drag that has points on its way: they are near to each
other."""

DRAG_START = 6.0
"""Length in CSS pixels of the first move with the button down. Chromium begins a drag at 3, usual
libraries at 1 to 5."""

Place = tuple[float, float]

_MOUSE, _KEY = "Input.dispatchMouseEvent", "Input.dispatchKeyEvent"


_FLUSH = {"type": "char", "windowsVirtualKeyCode": 27}
"""Character of Escape, for which no event is dispatched to the page. Chromium delays moves of the
mouse to the next frame (5 to 16 ms), unless another kind of event waits behind them."""


async def move_at_once(cdp: Cdp, x: float, y: float, **held: Any) -> None:
    """Move the mouse to a point of the viewport, in CSS pixels.

    Args:
        held: Fields of a pressed button.
    """
    await asyncio.gather(_mouse(cdp, "mouseMoved", (x, y), **held), cdp.send(_KEY, dict(_FLUSH)))


@dataclass(frozen=True)
class Grip:
    """A mouse button, and the modifier keys that are held while it is used."""

    button: str = "left"
    held: tuple[Key, ...] = ()

    @classmethod
    def of(cls, action: MouseButton) -> Grip:
        """Return the grip that an action asks for."""
        return cls(action.button, tuple(KEYS[name] for name in dict.fromkeys(action.modifiers)))

    @property
    def pressed(self) -> dict[str, Any]:
        """Fields of a mouse event while the button is down."""
        return {**self.released, "buttons": _BUTTONS[self.button]}

    @property
    def released(self) -> dict[str, Any]:
        """Fields of the event of its release."""
        return {"button": self.button, "buttons": 0, **({"modifiers": modifier_bits(self.held)} if self.held else {})}


LEFT = Grip()
_BUTTONS = {"left": 1, "right": 2, "middle": 4}
"""Bits of CDP's ``buttons``."""


async def click(context: ActionContext, x: float, y: float, times: int = 1, grip: Grip = LEFT) -> None:
    """Click where the mouse is, ``times`` in a row (2 is a double click)."""
    cdp, give = context.cdp, context.clock.give
    pause = PRESS_MS if times == 1 else AGAIN_MS
    down, up = held_down(grip.held)
    if down:
        await send_keys(context, down)
        await give(KEY_MS)
    for count in range(1, times + 1):
        if count > 1:
            await give(pause)
        await _mouse(cdp, "mousePressed", (x, y), **grip.pressed, clickCount=count)
        await give(pause)
        await _mouse(cdp, "mouseReleased", (x, y), **grip.released, clickCount=count)
    if up:
        await give(KEY_MS)
        await send_keys(context, up)


async def wheel(cdp: Cdp, x: float, y: float, dx: float, dy: float) -> None:
    """Turn the wheel at a point by a distance in CSS pixels.

    The scrolling shows from the next frame on.
    """
    await cdp.send("Input.dispatchMouseEvent", {"type": "mouseWheel", "x": x, "y": y, "deltaX": dx, "deltaY": dy})


async def drag(context: ActionContext, way: Sequence[Place], grip: Grip = LEFT) -> None:
    """Press at the first point, move through all others and release at the last one.

    If the page begins a native drag (``draggable``), it is dragged and dropped. The last move is a
    small one, after a while at the end, like that of a hand: pages that skip moves get it.
    """
    cdp, clock, start, end = context.cdp, context.clock, way[0], way[-1]
    steps = DRAG_STEPS if len(way) == 2 else VIA_STEPS
    places = [*_first_moves(start, way[1]), *(place for pair in pairwise(way) for place in _between(*pair, steps))]
    pause, entered = share(MOVE_MS, len(places)), False
    down, up = held_down(grip.held)
    async with context.intercept.drags() as caught:
        await move_at_once(cdp, *start)
        await send_keys(context, down)
        await _mouse(cdp, "mousePressed", start, clickCount=1, **grip.pressed)
        await clock.give(HOLD_MS)
        for place in [*places[:-1], _beside(end, start), end]:
            if place is end:
                await clock.give(DROP_MS)
                await clock.settle(pause, seconds=DROP_SECONDS)  # drop zones may open slowly
            # The event of the interception comes before the answer to the move that began it, or
            # under load a little later.
            if caught.done():
                entered = await _carry(context, caught.result()["data"], place, entered=entered)
            else:
                await move_at_once(cdp, *place, **grip.pressed)
            await clock.give(pause)
        if caught.done():
            await _carry(context, caught.result()["data"], end, entered=entered)
            await _native(cdp, "drop", caught.result()["data"], end)
        await _mouse(cdp, "mouseReleased", end, clickCount=1, **grip.released)
        await send_keys(context, up)


async def _carry(context: ActionContext, data: dict[str, Any], place: Place, *, entered: bool) -> bool:
    """Move an intercepted drag to a place.

    The page's answer to the last event decides if a drop is possible.
    """
    if not entered:
        await _native(context.cdp, "dragEnter", data, place)
    await _native(context.cdp, "dragOver", data, place)
    return True


async def _native(cdp: Cdp, kind: str, data: dict[str, Any], place: Place) -> None:
    await cdp.send("Input.dispatchDragEvent", {"type": kind, "x": place[0], "y": place[1], "data": data})


async def _mouse(cdp: Cdp, kind: str, place: Place, **more: Any) -> None:
    await cdp.send(_MOUSE, {"type": kind, "x": place[0], "y": place[1], **more})


async def press(context: ActionContext, chord: Chord) -> None:
    """Press and release a chord, with a person's time between its keys."""
    await _spaced(context, events(chord), KEY_MS)


async def press_enter(context: ActionContext) -> None:
    """Press Enter after typing, when the page has reacted to the text."""
    await context.clock.give(HAND_MS)
    await press(context, Chord((), KEYS["Enter"]))


async def type_keys(context: ActionContext, text: str) -> None:
    """Type ``text`` into the focused element; each key is held for a moment, as games need it."""
    sent = [event for keys in typed(text) for event in keys]
    await _spaced(context, sent, share(KEY_MS, len(sent)))


async def send_keys(context: ActionContext, keys: Sequence[dict[str, Any]]) -> None:
    """Send key events to the focused element, in order and at once."""
    await asyncio.gather(*(context.cdp.send(_KEY, key) for key in keys))


@dataclass(frozen=True)
class Stroke:
    """Input of one character of a text: key events or an insertion."""

    keys: Sequence[dict[str, Any]] = ()
    """Key events; none for a character that is inserted."""
    text: str = ""
    """Character; empty for one that is never inserted."""


async def type_strokes(context: ActionContext, strokes: Sequence[Stroke]) -> None:
    """Type into a text field, with a person's time between the strokes.

    Giving that time costs a round trip a key, and only code of the page can notice it. So the first
    stroke is sent alone. If no script ran for it, the page is given the time of the whole text. If
    none ran in that either (a timer, an animation frame), nothing listens to keys, input, selection
    or changes, nor will anything before the text is there. Then the rest is inserted at once.
    Chromium counts all callbacks of all frames, so this does not depend on how a page may listen.
    """
    clock, pause, rest = context.clock, share(KEY_MS, len(strokes)), strokes[1:]
    before = await clock.counters()
    await _send(context, strokes[0])
    if not rest:
        return
    quiet = _same(before, await clock.counters())
    await clock.give(pause * len(rest) if quiet else pause)
    if quiet and _same(before, await clock.counters()):
        for inserted, run in groupby(rest, key=lambda stroke: bool(stroke.text)):
            if inserted:
                await _send(context, Stroke(text="".join(stroke.text for stroke in run)))
            else:
                await send_keys(context, [key for stroke in run for key in stroke.keys])
        return
    for number, stroke in enumerate(rest):
        if number:
            await clock.give(pause)
        await _send(context, stroke)


def _same(before: dict[str, float], after: dict[str, float]) -> bool:
    """Return True if no script ran between two readings of the page's counters."""
    return bool(before) and before.get(SCRIPTS) == after.get(SCRIPTS)


async def _send(context: ActionContext, stroke: Stroke) -> None:
    if stroke.keys:
        await send_keys(context, stroke.keys)
    else:
        await context.cdp.send("Input.insertText", {"text": stroke.text})


async def _spaced(context: ActionContext, keys: Sequence[dict[str, Any]], pause: float) -> None:
    """Send key events, with ``pause`` milliseconds of the page's time between each two."""
    for number, key in enumerate(keys):
        if number:
            await context.clock.give(pause)
        await context.cdp.send(_KEY, key)


def _first_moves(start: Place, end: Place) -> list[Place]:
    """Return two small moves towards the end.

    The first begins a drag, the second lets a page notice it.
    """
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = max((dx * dx + dy * dy) ** 0.5, DRAG_START)
    step = DRAG_START / length
    return [(start[0] + dx * step * part, start[1] + dy * step * part) for part in (0.7, 1.0)]


def _beside(end: Place, start: Place) -> Place:
    """Return a point one pixel before the end, or beside it if the drag ends at its start."""
    back = -1.0 if end[0] >= start[0] else 1.0
    return end[0] + back, end[1]


def _between(start: Place, end: Place, steps: int) -> list[Place]:
    """Return ``steps`` points on the way, the last one at the end."""
    parts = [(step + 1) / steps for step in range(steps)]
    return [(start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part) for part in parts]
