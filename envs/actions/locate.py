"""Finds a point of a target that the mouse reaches, and scrolls to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from envs.actions.context import ActionContext
from envs.actions.dom_queries import ElementFacts, Hit, Nodes
from envs.actions.errors import ActionError
from envs.actions.validate import find_target, handle_name
from envs.cdp.messages import NO_BOX, NODE_GONE, refused_with
from envs.observation.reach import LABEL_PLACES, MAX_RECTS, PLACES
from envs.types import BrowserError, ErrorCode
from envs.types.actions import GRID, MaybeTarget

if TYPE_CHECKING:
    from envs.observation import Handle

Box = tuple[float, float, float, float]

Places = tuple[tuple[float, float], ...]
"""Points of a box, as shares of its width and height."""


@dataclass(frozen=True)
class Spot:
    """Place of an action, with the element and the hit there."""

    point: tuple[float, float]
    """Point in CSS pixels of the viewport."""
    handle: Handle | None
    """Element there; ``None`` for a target by coordinates."""
    hit: Hit | None
    """Innermost node at the point; ``None`` if the page was not asked."""


def pixels(point: tuple[float, float], viewport: tuple[float, float]) -> tuple[float, float]:
    """Return a normalised point (0..1000) in CSS pixels, inside of the viewport."""
    return tuple(min(share / GRID * size, size - 1.0) for share, size in zip(point, viewport, strict=True))  # type: ignore[return-value]


def in_view(box: Box, viewport: tuple[float, float]) -> Box | None:
    """Return the part of a box that the viewport shows.

    The answer is ``None`` if it is less than a pixel.
    """
    left, top = max(box[0], 0.0), max(box[1], 0.0)
    right, bottom = min(box[2], float(viewport[0])), min(box[3], float(viewport[1]))
    return (left, top, right, bottom) if right - left >= 1 and bottom - top >= 1 else None


async def locate(
    context: ActionContext, nodes: Nodes, target: MaybeTarget, *, scroll: bool = True
) -> Spot | ActionError:
    """Return a place that belongs to the target.

    The page is scrolled to it if need be. A target by coordinates is its own place.
    """
    if target.at is not None:
        return Spot(pixels(target.at, context.viewport), None, None)
    handle = find_target(target, context.handles)
    if handle is None or isinstance(handle, ActionError):
        return handle or ActionError(ErrorCode.BAD_ACTION, "no target is named", "name an element, a mark or a point")
    if handle.point is not None:
        hit = await nodes.hit_at(handle.point)
        if hit is not None and await nodes.is_hit(handle.backend_node_id, hit):
            return Spot(handle.point, handle, hit)
    return await _search(context, nodes, handle, scroll)


async def find_control(nodes: Nodes, spot: Spot) -> tuple[str, ElementFacts] | ActionError:
    """Return the field at a spot, or the one its label names; with its facts."""
    hit = spot.hit or await nodes.hit_at(spot.point)
    if hit is None:
        return ActionError(ErrorCode.OFF_SCREEN, "there is nothing at that point")
    node = hit.node if spot.handle is None else spot.handle.backend_node_id
    own = await nodes.object(node, hit.frame)
    field = own and await nodes.follow(own, "control")
    if not field:
        return _stale_element_error(spot.handle)
    return field, await nodes.facts(field)


async def _search(context: ActionContext, nodes: Nodes, handle: Handle, scroll: bool) -> Spot | ActionError:
    """Search a spot of an element after scrolling to it: in its boxes, then in its label's."""
    node = handle.backend_node_id
    try:
        if scroll:
            await nodes.scroll_to(backendNodeId=node)
        boxes = await nodes.boxes(backendNodeId=node)
    except BrowserError as error:
        if refused_with(error, NODE_GONE):
            return _stale_element_error(handle)
        if not refused_with(error, NO_BOX):
            raise
        boxes = []
    spot, cover = await _try(context, nodes, handle, boxes)
    if spot is None and cover is not None:
        spot = await _try_shape(nodes, handle, boxes, cover.frame)
    if spot is None:
        spot = await _try_labels(context, nodes, handle)
    if spot is not None:
        return spot
    if cover is not None:
        return await _occluded(nodes, handle, cover)
    return ActionError(
        ErrorCode.OFF_SCREEN,
        f"{handle_name(handle)} has no place on the screen",
        "it is hidden or outside of what can be scrolled to",
    )


async def _try(
    context: ActionContext, nodes: Nodes, handle: Handle, boxes: list[Box], places: Places = PLACES
) -> tuple[Spot | None, Hit | None]:
    """Return the first spot that belongs to the element, else the node that lies over it."""
    cover: Hit | None = None
    for whole in boxes[:MAX_RECTS]:
        box = in_view(whole, context.viewport)
        for across, down in places if box else ():
            assert box is not None
            point = (box[0] + (box[2] - box[0]) * across, box[1] + (box[3] - box[1]) * down)
            hit = await nodes.hit_at(point)
            if hit is not None and await nodes.is_hit(handle.backend_node_id, hit):
                return Spot(point, handle, hit), None
            cover = cover or hit
    return None, cover


async def _try_shape(nodes: Nodes, handle: Handle, boxes: list[Box], frame: str) -> Spot | None:
    """Return a spot in an element that fills little of its rectangle, as a line of a drawing."""
    own = await nodes.object(handle.backend_node_id, frame)
    x, y = ((min(box[axis] for box in boxes) + max(box[axis + 2] for box in boxes)) / 2 for axis in (0, 1))
    for right, down in await nodes.ask(own, "reached") if own else ():
        point = (float(round(x + right)), float(round(y + down)))
        hit = await nodes.hit_at(point)
        if hit is not None and await nodes.is_hit(handle.backend_node_id, hit):
            return Spot(point, handle, hit)
    return None


async def _try_labels(context: ActionContext, nodes: Nodes, handle: Handle) -> Spot | None:
    """Return a spot on a visible label of a field without a place of its own.

    Pages draw their own checkboxes.
    """
    own = await nodes.object(handle.backend_node_id, await nodes.main_frame())
    for place in range(MAX_RECTS if own else 0):
        label = await nodes.follow(own or "", "label", place)
        if not label:
            break
        await nodes.scroll_to(objectId=label)
        spot, _ = await _try(context, nodes, handle, await nodes.boxes(objectId=label), LABEL_PLACES)
        if spot is not None:
            return spot
    return None


async def _occluded(nodes: Nodes, handle: Handle, cover: Hit) -> ActionError:
    over = await nodes.object(cover.node, cover.frame)
    element = over and await nodes.follow(over, "element")
    facts = await nodes.facts(element) if element else None
    what = f'a {facts.tag} "{facts.text}"' if facts else "something else"
    return ActionError(
        ErrorCode.OCCLUDED, f"{handle_name(handle)} is covered by {what}", "close or move what covers it"
    )


def _stale_element_error(handle: Handle | None) -> ActionError:
    what = handle_name(handle) if handle else "what was at that point"
    return ActionError(ErrorCode.STALE_ELEMENT, f"{what} is not in the page any more", "look at the page as it is now")
