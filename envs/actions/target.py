"""Checks a target against the last observation, and finds a point of it that the mouse reaches.

`check_action` is the one check of an action before it is tried. It is pure: it asks no page.
`locate` asks the page for a point that belongs to the target, and scrolls to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envs.actions.context import ActionContext
from envs.actions.dom_queries import ElementFacts, Hit, Nodes
from envs.actions.errors import ActionError, closest_handles, disabled_error, shorten
from envs.cdp.messages import NO_BOX, NODE_GONE, refused_with
from envs.observation.reach import LABEL_PLACES, MAX_RECTS, PLACES
from envs.types import (
    Action,
    BrowserError,
    Check,
    Clear,
    Click,
    DoubleClick,
    Drag,
    ErrorCode,
    Forget,
    Invalid,
    Remember,
    Select,
    Submit,
    TripleClick,
    Type,
    Upload,
)
from envs.types.actions import GRID, MAX_HTML, ElementAction, MaybeTarget

if TYPE_CHECKING:
    from envs.observation import Handle

Box = tuple[float, float, float, float]

Places = tuple[tuple[float, float], ...]
"""Points of a box, as shares of its width and height."""

NEVER_EDITABLE = frozenset(
    {"button", "link", "checkbox", "radio", "select", "option", "tab", "menuitem", "switch", "treeitem", "shape"}
)
"""Tags that no text can be typed into. For all others the page is asked."""

NEEDS_USE = (Click, DoubleClick, TripleClick, Type, Select, Check, Clear, Upload)
"""Actions that a disabled element refuses."""


@dataclass(frozen=True)
class Spot:
    """Place of an action, with the element and the hit there."""

    point: tuple[float, float]
    """Point in CSS pixels of the viewport."""
    handle: Handle | None
    """Element there; ``None`` for a target by coordinates."""
    hit: Hit | None
    """Innermost node at the point; ``None`` if the page was not asked."""


def check_action(action: Action, handles: Mapping[int, Handle], offers: Sequence[str] = ()) -> ActionError | None:
    """Return the reason why an action cannot be carried out, as far as the observation tells.

    The answer is ``None`` if it may be tried.

    Args:
        offers: Names of actions that the site takes beyond those that every site takes.
    """
    if isinstance(action, Invalid):
        return ActionError(action.code, action.reason)
    if isinstance(action, Remember | Forget):
        return ActionError(ErrorCode.NOT_OFFERED, f"{action.type} is nothing that a page can do", "it needs a memory")
    if isinstance(action, Submit):
        return _unfit_page(action, offers)
    for target in targets_of(action):
        handle = find_handle(target, handles)
        refusal = _unknown(target, handles) if handle is None else _unfit(action, handle)
        if refusal is not None:
            return refusal
    return None


def targets_of(action: Action) -> tuple[MaybeTarget, ...]:
    """Return the targets of an action."""
    if isinstance(action, Drag):
        return (action.start, action.end)
    return (action,) if isinstance(action, ElementAction) else ()


def find_handle(target: MaybeTarget, handles: Mapping[int, Handle]) -> Handle | None:
    """Return the element that a target names; ``None`` if there is none, or it names a point or
    nothing."""
    if isinstance(target.element, str):
        alike = (handle for handle in handles.values() if handle.semantic_id and handle.semantic_id == target.element)
        return next(alike, None)
    number = target.mark if target.element is None else target.element
    return None if number is None else handles.get(number)


def handle_name(handle: Handle) -> str:
    """Return the name of an element in messages."""
    return f"element {handle.index}"


def _unfit(action: Action, handle: Handle) -> ActionError | None:
    tag = f"{handle_name(handle)} is a {handle.tag}"
    if handle.disabled and isinstance(action, NEEDS_USE):
        return disabled_error(handle_name(handle))
    if isinstance(action, Type | Clear) and handle.tag in NEVER_EDITABLE:
        return ActionError(ErrorCode.NOT_EDITABLE, tag, "click it")
    if isinstance(action, Select):
        if handle.options is None and handle.tag == "option":
            return None  # it stands for its list, which the page knows
        if handle.options is None:
            return ActionError(ErrorCode.NOT_A_LIST, tag, "select needs a drop-down list")
    return None


def _unfit_page(action: Submit, offers: Sequence[str]) -> ActionError | None:
    if action.type not in offers:
        return ActionError(
            ErrorCode.NOT_OFFERED, "this site takes no submitted page", "use its own controls, or answer"
        )
    if not action.html.strip():
        return ActionError(ErrorCode.EMPTY_SUBMISSION, "the submitted page is empty", "write the whole page into html")
    if len(action.html) > MAX_HTML:
        message = f"the submitted page has {len(action.html)} characters"
        return ActionError(ErrorCode.SUBMISSION_TOO_LARGE, message, f"write at most {MAX_HTML}")
    return None


def _unknown(target: MaybeTarget, handles: Mapping[int, Handle]) -> ActionError | None:
    """Return the error of a target whose element is not there; ``None`` if it names no element."""
    if isinstance(target.element, str):
        hint = "use an element's number or id" if handles else "the page shows none"
        message = f"there is no element {shorten(target.element)!r}"
        suggestions = closest_handles(target.element, tuple(handles.values()))
        return ActionError(ErrorCode.UNKNOWN_ELEMENT, message, hint, suggestions)
    what, number = ("mark", target.mark) if target.element is None else ("element", target.element)
    if number is None:
        return None
    known = f"choose {min(handles)} to {max(handles)}" if handles else "the page shows none"
    return ActionError(ErrorCode.UNKNOWN_ELEMENT, f"there is no {what} {number}", known)


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
    handle = find_handle(target, context.handles)
    assert handle is not None, "check_action refuses elements that are not there"
    if handle.point is not None:
        hit, is_reached = await nodes.hit_on(handle.backend_node_id, handle.point)
        if is_reached:
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
            hit, is_reached = await nodes.hit_on(handle.backend_node_id, point)
            if is_reached:
                return Spot(point, handle, hit), None
            cover = cover or hit
    return None, cover


async def _try_shape(nodes: Nodes, handle: Handle, boxes: list[Box], frame: str) -> Spot | None:
    """Return a spot in an element that fills little of its rectangle, as a line of a drawing."""
    own = await nodes.object(handle.backend_node_id, frame)
    x, y = ((min(box[axis] for box in boxes) + max(box[axis + 2] for box in boxes)) / 2 for axis in (0, 1))
    for right, down in await nodes.ask(own, "reached") if own else ():
        point = (float(round(x + right)), float(round(y + down)))
        hit, is_reached = await nodes.hit_on(handle.backend_node_id, point)
        if is_reached:
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
