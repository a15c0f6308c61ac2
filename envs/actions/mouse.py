"""Actions of the mouse: click, hover, scroll and drag, as trusted events through CDP.

A page sees the same events as from a person's mouse (``isTrusted`` is true), and its time goes on
meanwhile (`envs.actions.pace`). Events between which the page cannot act are sent without waiting
for each other.

A person's hand takes a moment between the arrival over a target and the press, in which a page
exchanges pictures, opens menus or moves things. The page's clock stands still between steps, so a
page that reacts to the mouse is given that moment here, and its target is located again. If no
script runs and no style changes, the press follows at once. Chromium's own counters tell this
(scripts, styles and layouts of all frames).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import Nodes
from envs.actions.errors import ActionError
from envs.actions.keyboard import KEY_EVENT, KEYS, Key, held_down, modifier_bits, send_keys
from envs.actions.pace import AGAIN_MS, DROP_MS, DROP_SECONDS, HOLD_MS, KEY_MS, MOVE_MS, PRESS_MS, share
from envs.actions.target import Spot, find_handle, handle_name, locate, pixels
from envs.types import Click, DoubleClick, Drag, ErrorCode, Hover, Scroll, TripleClick
from envs.types.actions import MaybeTarget, MouseButton

if TYPE_CHECKING:
    from envs.cdp import Cdp

HOVER_MS = 300.0
"""Virtual milliseconds between the arrival over a target and the press, if the page reacts. Menus
that open on hover wait 100 to 300."""

HOVER_SECONDS = 4.0
"""Real seconds for that wait. With the time to stop a script or a load it ends within the deadline
of an action."""

MAX_ARRIVALS = 3
"""Maximum number of times that the mouse follows a target that moves."""

WORK = ("ScriptDuration", "LayoutCount", "RecalcStyleCount")
"""Counters of ``Performance.getMetrics`` that do not change while a page does nothing."""

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

_MOUSE = "Input.dispatchMouseEvent"

_FLUSH = {"type": "char", "windowsVirtualKeyCode": 27}
"""Character of Escape, for which no event is dispatched to the page. Chromium delays moves of the
mouse to the next frame (5 to 16 ms), unless another kind of event waits behind them."""


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

MIDDLE_PASTES = ActionError(
    ErrorCode.BAD_ACTION, "the middle button pastes there, and the clipboard is not open to this task", "type the text"
)
"""Refusal of a middle click on a field. Chromium on Linux pastes there what was selected last, in
any of its episodes."""

_BUTTONS = {"left": 1, "right": 2, "middle": 4}
"""Bits of CDP's ``buttons``."""

_TIMES = {Click: 1, DoubleClick: 2, TripleClick: 3}


async def point_at(
    context: ActionContext, nodes: Nodes, action: Click | DoubleClick | TripleClick | Hover
) -> Effect | ActionError:
    """Move the mouse over the target, and click there unless the action is `Hover`."""
    spot = await locate(context, nodes, action)
    if isinstance(spot, ActionError):
        return spot
    if isinstance(action, Hover):
        await move_at_once(context.cdp, *spot.point)
        await context.clock.give(HOVER_MS)
    else:
        arrived = await click_spot(context, nodes, action, spot, Grip.of(action), times=_TIMES[type(action)])
        if isinstance(arrived, ActionError):
            return arrived
        spot = arrived
    return Effect(spot.point, spot.handle.backend_node_id if spot.handle is not None else None)


async def click_spot(
    context: ActionContext, nodes: Nodes, target: MaybeTarget, spot: Spot, grip: Grip = LEFT, times: int = 1
) -> Spot | ActionError:
    """Move the mouse to a spot of the target and click there, ``times`` in a row.

    Returns:
        The spot after the page has reacted to the mouse.
    """
    arrived = await _move_to_target(context, nodes, target, spot)
    if isinstance(arrived, ActionError):
        return arrived
    if await _pastes(context, nodes, grip, arrived.point):
        return MIDDLE_PASTES
    await _click(context, arrived.point, grip, times)
    return arrived


async def _pastes(context: ActionContext, nodes: Nodes, grip: Grip, *points: tuple[float, float]) -> bool:
    """Return True if the middle button is pressed or released where text can be typed."""
    if grip.button != "middle" or context.clipboard:
        return False
    for point in points:
        hit = await nodes.hit_at(point)
        own = await nodes.object(hit.node, hit.frame) if hit is not None else None
        if own is not None and (await nodes.facts(own)).editable:
            return True
    return False


async def scroll(context: ActionContext, nodes: Nodes, action: Scroll) -> Effect | ActionError:
    """Turn the wheel over the target, or over the middle of the page."""
    width, height = context.viewport
    x, y = width / 2, height / 2
    if action.is_named:
        spot = await locate(context, nodes, action)
        if isinstance(spot, ActionError):
            return spot
        x, y = spot.point
    sign = 1.0 if action.direction in ("down", "right") else -1.0
    vertical = action.direction in ("up", "down")
    length = sign * action.amount * (height if vertical else width) * context.scale
    async with context.drawn_whole():
        turn = {"deltaX": 0.0, "deltaY": length} if vertical else {"deltaX": length, "deltaY": 0.0}
        await context.cdp.send(_MOUSE, {"type": "mouseWheel", "x": x, "y": y, **turn})
    await nodes.next_frame()  # the scrolling shows from there on
    return Effect((x, y))


async def drag(context: ActionContext, nodes: Nodes, action: Drag) -> Effect | ActionError:
    """Press the mouse on one target and release it on another."""
    start = await locate(context, nodes, action.start)
    if isinstance(start, ActionError):
        return start
    handle = find_handle(action.end, context.handles)
    if handle is not None:
        await nodes.scroll_least(handle.backend_node_id)
    end = await locate(context, nodes, action.end)
    if isinstance(end, ActionError):
        return end
    start = await locate(context, nodes, action.start, scroll=False)  # it may have moved
    if isinstance(start, ActionError):
        what = "the two ends of the drag are not on the screen together"
        return ActionError(ErrorCode.OFF_SCREEN, what, "scroll, or drag in two parts")
    arrived = await _move_to_target(context, nodes, action.start, start)
    if isinstance(arrived, ActionError):
        return arrived
    if arrived is not start:  # the page has reacted, so its end may be elsewhere now
        start, end = arrived, await locate(context, nodes, action.end, scroll=False)
        if isinstance(end, ActionError):
            return end
    way, grip = [start.point, *(pixels(point, context.viewport) for point in action.via), end.point], Grip.of(action)
    if await _pastes(context, nodes, grip, start.point, end.point):
        return MIDDLE_PASTES
    await _drag_along(context, way, grip)
    return Effect(end.point)


async def _move_to_target(context: ActionContext, nodes: Nodes, target: MaybeTarget, spot: Spot) -> Spot | ActionError:
    """Move the mouse to a spot of the target.

    Returns:
        The spot after the page has reacted, with the mouse over it.
    """
    for _ in range(MAX_ARRIVALS):
        if not await _reacts(context, nodes, spot):
            return spot
        settled = await context.clock.settle(HOVER_MS, seconds=HOVER_SECONDS)
        if not settled.complete:
            what = "the page did not come to rest with the mouse over it"
            return ActionError(ErrorCode.TIMEOUT, what, "wait, or use something else")
        if spot.handle is None:
            return replace(spot, hit=None)
        hit, is_reached = await nodes.hit_on(spot.handle.backend_node_id, spot.point)
        if is_reached:
            return replace(spot, hit=hit)
        moved = await locate(context, nodes, target)
        if isinstance(moved, ActionError):
            return moved
        spot = moved
    assert spot.handle is not None
    return ActionError(
        ErrorCode.OFF_SCREEN, f"{handle_name(spot.handle)} moves away from the mouse", "use something else"
    )


async def _reacts(context: ActionContext, nodes: Nodes, spot: Spot) -> bool:
    """Move the mouse, and return True if the page reacts to it."""
    before, changed = await nodes.counters(), False
    await move_at_once(context.cdp, *spot.point)
    if spot.hit is None or not spot.hit.in_own_frame:
        # The event behind the move computes the styles of the page's own frame. Those of another
        # frame come with the next picture, or with a hit test there (Chromium 156).
        hit = await nodes.hit_at(spot.point, spot.hit)
        changed = spot.hit is not None and hit is not None and hit.node != spot.hit.node
    after = await context.clock.activity.read()
    return changed or not before or any(before.get(counter) != after.get(counter) for counter in WORK)


async def move_at_once(cdp: Cdp, x: float, y: float, **held: Any) -> None:
    """Move the mouse to a point of the viewport, in CSS pixels.

    Args:
        held: Fields of a pressed button.
    """
    await asyncio.gather(_mouse(cdp, "mouseMoved", (x, y), **held), cdp.send(KEY_EVENT, dict(_FLUSH)))


async def _click(context: ActionContext, place: Place, grip: Grip, times: int) -> None:
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
        await _mouse(cdp, "mousePressed", place, **grip.pressed, clickCount=count)
        await give(pause)
        await _mouse(cdp, "mouseReleased", place, **grip.released, clickCount=count)
    if up:
        await give(KEY_MS)
        await send_keys(context, up)


async def _drag_along(context: ActionContext, way: Sequence[Place], grip: Grip) -> None:
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
