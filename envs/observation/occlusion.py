"""Which node a click on a point reaches, from paint order, rectangles, clips and ``pointer-events``.

The engine's hit test takes what is painted last under the point. Here the boxes are put into paint order once (by paint layer; within a
layer blocks, floats and inline content as CSS 2.1 appendix E has them; then document order) and each is cut to what its scroll containers,
frames and the viewport leave of it. The topmost box with the point inside is hit. Two shapes need more: text that wraps is hit on its lines
only, and SVG circles, ellipses and polygons on their inside only.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from envs.observation.dom import (
    BACKGROUND,
    DISPLAY,
    DOCUMENT,
    FILL,
    FLOAT,
    LEFT,
    OPACITY,
    OVERFLOW,
    POINTER_EVENTS,
    POSITION,
    TEXT,
    TOP,
    VISIBILITY,
    Dom,
    Flags,
    Rects,
    pixels,
)

Points = NDArray[np.float64]
"""(n, 2): x, y in CSS pixels of the main viewport."""

REPLACED = frozenset({"IMG", "CANVAS", "VIDEO", "IFRAME", "EMBED", "OBJECT"})
"""Elements that cover what is below them without a background."""

SHAPES = frozenset({"circle", "ellipse", "polygon"})
"""SVG elements whose inside is computed; others are hit on their whole rectangle."""

Clip = tuple[float, float, float, float]
"""Left, top, right, bottom."""

SNAP = 0.5
"""CSS pixels by which the engine's hit test reaches over a box's left and top edges (measured in Chromium 156)."""

NO_CLIP: Clip = (-1e9, -1e9, 1e9, 1e9)


@dataclass(slots=True)
class Scene:
    """The boxes of a page, ready for hit tests."""

    dom: Dom
    node: list[int]
    """Node of each item: a box, or a line of text, of which something can be seen."""
    box: NDArray[np.int64]
    """Box of each item."""
    rects: Rects
    """What can be seen of each item."""
    rank: NDArray[np.int64]
    """Place in the paint order."""
    hittable: Flags
    opaque: Flags
    clips: Rects
    """What the viewport, the scroll containers and the frames around it leave visible of each box, by box."""
    wrapped: set[int]
    """Boxes of inline elements whose content lies on more than one line."""
    shapes: dict[int, NDArray[np.float64]]
    """Items that are SVG shapes: the corners of a polygon; empty for an ellipse in the item's whole rectangle."""
    whole: Rects
    """The items' rectangles, not cut."""

    def hits(self, points: Points) -> list[int]:
        """The node that each point reaches, -1 for none."""
        if not self.node or not len(points):
            return [-1] * len(points)
        under = _under(points, self.rects) & self.hittable
        rows = np.arange(len(points))
        while True:
            ranks = np.where(under, self.rank, -1)
            top = ranks.argmax(axis=1)
            found = ranks[rows, top] >= 0
            missed = [
                row for row, item in enumerate(top.tolist()) if found[row] and not self._inside(item, points[row])
            ]
            if not missed:
                break
            under[missed, top[missed]] = False  # in the rectangle of a shape, and beside the shape
        return [self.node[item] if is_hit else -1 for item, is_hit in zip(top.tolist(), found.tolist(), strict=True)]

    def covered(self, points: Points, ranks: NDArray[np.int64]) -> Flags:
        """Whether something opaque is painted over what has these ranks at these points."""
        opaque = np.flatnonzero(self.opaque)
        above = _under(points, self.rects[opaque]) & (self.rank[opaque] > ranks[:, None])
        return np.asarray(above.any(axis=1))

    def _inside(self, item: int, point: NDArray[np.float64]) -> bool:
        corners = self.shapes.get(item)
        if corners is None:
            return True
        left, top, right, bottom = self.whole[item]
        if not len(corners):
            x, y = (2 * point - (left + right, top + bottom)) / (right - left, bottom - top)
            return bool(x * x + y * y <= 1)
        return _in_polygon(point, corners)


def _under(points: Points, rects: Rects) -> Flags:
    """(points, rectangles): which rectangles are under which points."""
    x, y = points[:, 0:1], points[:, 1:2]
    flags: Flags = (rects[:, 0] <= x + SNAP) & (x < rects[:, 2]) & (rects[:, 1] <= y + SNAP) & (y < rects[:, 3])
    return flags


def stage(dom: Dom, viewport: tuple[int, int], modal: int = -1) -> Scene:
    """Work out what is painted where.

    Args:
        modal: Node of the dialog outside of which nothing can be reached, -1 for none.
    """
    clips = _clips(dom)
    clips = np.hstack([np.maximum(clips[:, :2], 0), np.minimum(clips[:, 2:], np.array(viewport, dtype=np.float64))])
    wrapped = _wrapped(dom)
    boxes, whole = _items(dom, wrapped)
    low, high = np.maximum(whole[:, :2], clips[boxes, :2]), np.minimum(whole[:, 2:], clips[boxes, 2:])
    seen = (low < high).all(axis=1)
    boxes, whole, rects = boxes[seen], whole[seen], np.hstack([low, high])[seen]
    paint, phase = np.array(dom.paint, dtype=np.int64), np.array(_phases(dom), dtype=np.int64)
    rank = np.empty(len(boxes), dtype=np.int64)
    rank[np.lexsort((np.arange(len(boxes)), boxes, phase[boxes], paint[boxes]))] = np.arange(len(boxes))
    hit, opaque = _reactions(dom)
    if modal >= 0:
        hit &= _within(dom, modal)
    nodes = [dom.box_node[box] for box in boxes.tolist()]
    shapes = {item: _corners(dom, node, whole[item]) for item, node in enumerate(nodes) if dom.name[node] in SHAPES}
    return Scene(dom, nodes, boxes, rects, rank, hit[boxes], opaque[boxes], clips, wrapped, shapes, whole)


def line_numbers(dom: Dom, box: int) -> range:
    """The pieces of text inside a box."""
    node = dom.box_node[box]
    last = box
    if dom.type[node] != TEXT:
        while last + 1 < len(dom.box_node) and dom.box_node[last + 1] <= dom.end[node]:
            last += 1
    return dom.lines_of(box, last)


def _wrapped(dom: Dom) -> set[int]:
    """Inline elements whose content lies on more than one line."""
    heights = dom.line_rects[:, 3] - dom.line_rects[:, 1]
    tall = dom.rects[:, 3] - dom.rects[:, 1] > 1.5 * heights.min(initial=np.inf)
    inline = tall & dom.styled(DISPLAY, lambda display: display == "inline")
    tops, bottoms = dom.line_rects[:, 1].tolist(), dom.line_rects[:, 3].tolist()
    wrapped = set()
    for box in np.flatnonzero(inline).tolist():
        lines = line_numbers(dom, box)
        if len(lines) == 1:
            over, under = tops[lines.start] - dom.rects[box, 1], dom.rects[box, 3] - bottoms[lines.start]
            if min(over, under) < 1 and max(over, under) > 0.5 * (bottoms[lines.start] - tops[lines.start]):
                wrapped.add(box)  # a control beside its words is on another line (padding is on both sides)
        elif len(lines) > 1:
            highest, lowest = min(tops[lines.start : lines.stop]), max(tops[lines.start : lines.stop])
            if lowest - highest > 0.5 * min(bottoms[line] - tops[line] for line in lines):
                wrapped.add(box)
    return wrapped


def _items(dom: Dom, wrapped: set[int]) -> tuple[NDArray[np.int64], Rects]:
    """Box and rectangle of all that can be hit: a whole box, or each line of a text that wraps."""
    lines = np.array(dom.line_box, dtype=np.int64)
    pieces = np.bincount(lines, minlength=len(dom.box_node))
    split = pieces[lines] > 1
    single = pieces <= 1
    single[list(wrapped)] = False
    boxes = np.concatenate([np.flatnonzero(single), lines[split]])
    return boxes, np.concatenate([dom.rects[single], dom.line_rects[split]])


def _clips(dom: Dom) -> Rects:
    """What the scroll containers and frames around each box leave visible.

    A box is cut by those that are ancestors in the chain of containing blocks: an absolute box escapes the containers that are not
    positioned, a fixed one all of its document.
    """
    containers = _containers(dom)
    if not containers:
        return np.tile(np.array(NO_CLIP), (len(dom.box_node), 1))
    taken_out = dom.styled(POSITION, lambda position: position in ("absolute", "fixed"))
    if len(dom.documents) == 1 and not taken_out.any():
        return _nested_clips(dom, containers)
    return _chained_clips(dom, containers)


def _chained_clips(dom: Dom, containers: dict[int, Clip]) -> Rects:
    """`_clips` box by box, from the top down."""
    static = dom.styled(POSITION, lambda position: position == "static").tolist()
    own: list[Clip] = []
    flow: list[Clip] = []  # for children in flow
    positioned: list[Clip] = []  # for absolute descendants
    pinned: list[Clip] = []  # for fixed descendants
    absolute, fixed = (
        set(np.flatnonzero(dom.styled(POSITION, value.__eq__)).tolist()) for value in ("absolute", "fixed")
    )
    for box, above in enumerate(dom.box_parent):
        document = dom.type[dom.box_node[box]] == DOCUMENT
        if above < 0:
            mine = base = NO_CLIP
        else:
            base = flow[above] if document else pinned[above]
            mine = positioned[above] if box in absolute else base if box in fixed else flow[above]
        inner = _cut(mine, containers[box]) if box in containers else mine
        own.append(mine)
        flow.append(inner)
        positioned.append(positioned[above] if static[box] and above >= 0 else inner)
        pinned.append(base)
    return np.fromiter(chain.from_iterable(own), np.float64, 4 * len(own)).reshape(-1, 4)


def _nested_clips(dom: Dom, containers: dict[int, Clip]) -> Rects:
    """`_clips` where every box is in the flow: a container cuts off all that is in it."""
    clips = np.tile(np.array(NO_CLIP), (len(dom.box_node), 1))
    for box in sorted(containers):
        inside = range(box + 1, bisect_right(dom.box_node, dom.end[dom.box_node[box]]))
        left, top, right, bottom = containers[box]
        part = clips[inside.start : inside.stop]
        np.maximum(part[:, :2], (left, top), out=part[:, :2])
        np.minimum(part[:, 2:], (right, bottom), out=part[:, 2:])
    return clips


def _containers(dom: Dom) -> dict[int, Clip]:
    """Padding boxes of what cuts its content off: frames and scroll containers (not the page's root and body: theirs is the viewport)."""
    cuts = dom.styled(OVERFLOW, lambda overflow: overflow != "visible")
    cuts &= ~dom.styled(DISPLAY, lambda display: display == "inline")
    holding = set(dom.box_parent)
    boxes = [box for box in np.flatnonzero(cuts).tolist() if box in holding]
    boxes = [box for box in boxes if dom.name[dom.box_node[box]] not in ("HTML", "BODY")]
    boxes += [dom.box_of[dom.parent[document]] for document in dom.documents[1:]]
    return {box: _padding_box(dom, box) for box in boxes if box >= 0}


def _padding_box(dom: Dom, box: int) -> Clip:
    left, top, right, bottom = dom.rects[box].tolist()
    x, y = (pixels(dom.string(dom.styles[box][column])) for column in (LEFT, TOP))
    return left + x, top + y, right - x, bottom - y


def _cut(one: Clip, other: Clip) -> Clip:
    return max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])


def _phases(dom: Dom) -> list[int]:
    """0 for blocks, 1 for floats, 2 for inline content; what is inside of a float or an inline block belongs to it."""
    inline = dom.styled(DISPLAY, lambda display: display.startswith("inline"))
    floats = dom.styled(FLOAT, lambda side: side != "none")
    text = dom.style_table[:, DISPLAY] < 0
    phases: list[int] = np.where(inline | text, 2, np.where(floats, 1, 0)).tolist()
    paint = dom.paint
    for box, above in enumerate(dom.box_parent):
        if above >= 0 and phases[above] > phases[box] and paint[above] == paint[box]:
            phases[box] = phases[above]
    return phases


def _reactions(dom: Dom) -> tuple[Flags, Flags]:
    """Which boxes a click can reach, and which hide what is below them."""
    visible = dom.styled(VISIBILITY, lambda visibility: visibility == "visible")
    hit = visible & dom.styled(POINTER_EVENTS, lambda events: events != "none")
    opaque = visible & dom.styled(OPACITY, lambda opacity: opacity == "1")
    solid = dom.styled(BACKGROUND, lambda colour: colour.startswith("rgb("))
    for box in (dom.box_of[node] for node in dom.named("g", *SHAPES, *REPLACED) if dom.box_of[node] >= 0):
        node = dom.box_node[box]
        solid[box] |= dom.name[node] in REPLACED
        hit[box] &= dom.name[node] in REPLACED or (dom.name[node] in SHAPES and dom.style(node, FILL) != "none")
    plain = np.flatnonzero(dom.style_table[:, DISPLAY] < 0)
    above = np.array(dom.box_parent, dtype=np.int64)[plain]
    hit[plain] = np.where(above >= 0, hit[above], True)  # text is reached where its element is
    for frame in (dom.parent[document] for document in dom.documents[1:]):
        if dom.style(frame, POINTER_EVENTS) == "none":  # it lets clicks through, and so does all that is in it
            hit[[box for box, node in enumerate(dom.box_node) if dom.inside_frame(node, frame)]] = False
    return hit, opaque & solid


def _within(dom: Dom, node: int) -> Flags:
    """Which boxes are of a node of the main document or of what is in it, frames included."""
    inside = np.zeros(len(dom.parent), dtype=np.bool_)
    inside[node : dom.end[node] + 1] = True
    for first, after in zip(dom.documents[1:], [*dom.documents[2:], len(dom.parent)], strict=True):
        inside[first:after] = inside[dom.parent[first]]
    flags: Flags = inside[np.array(dom.box_node, dtype=np.int64)]
    return flags


def _corners(dom: Dom, node: int, rect: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corners of a polygon in viewport pixels: its points, stretched to its rectangle."""
    if dom.name[node] != "polygon":
        return np.zeros((0, 2))
    numbers = [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", dom.attribute(node, "points") or "")]
    points = np.array(numbers[: len(numbers) // 2 * 2]).reshape(-1, 2)
    if len(points) < 3:
        return np.array([[rect[0], rect[1]], [rect[2], rect[1]], [rect[2], rect[3]], [rect[0], rect[3]]])
    low, span = points.min(axis=0), np.maximum(np.ptp(points, axis=0), 1e-9)
    stretched: NDArray[np.float64] = rect[:2] + (points - low) / span * (rect[2:] - rect[:2])
    return stretched


def _in_polygon(point: NDArray[np.float64], corners: NDArray[np.float64]) -> bool:
    """Even-odd rule."""
    x, y = point
    after = np.roll(corners, -1, axis=0)
    crosses = (corners[:, 1] > y) != (after[:, 1] > y)
    rise = np.where(after[:, 1] == corners[:, 1], 1e-9, after[:, 1] - corners[:, 1])
    at = corners[:, 0] + (y - corners[:, 1]) * (after[:, 0] - corners[:, 0]) / rise
    return bool((crosses & (x < at)).sum() % 2)
