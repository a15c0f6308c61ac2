"""Which node a click on a point reaches, from paint order, rectangles, clips and ``pointer-events``.

The engine's hit test takes what is painted last under the point. Here the boxes are put into paint order once (by paint layer; within a
layer blocks, floats and inline content as CSS 2.1 appendix E has them; then document order) and each is cut to what its scroll containers,
frames and the viewport leave of it. The topmost box with the point inside is hit. Two shapes need more: text that wraps is hit on its lines
only, and SVG circles, ellipses and polygons on their inside only.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.observation.snapshot import (
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
    """Node of each item (a box, or a line of text)."""
    rects: Rects
    """What can be seen of each item."""
    rank: NDArray[np.int64]
    """Place in the paint order."""
    hittable: Flags
    opaque: Flags
    clip_of: list[Clip]
    """What the scroll containers and frames around a box leave visible, by box; the viewport is not part of it."""
    shapes: dict[int, NDArray[np.float64]]
    """Items that are SVG shapes: the corners of a polygon; empty for an ellipse in the item's whole rectangle."""
    whole: Rects
    """The items' rectangles, not cut."""

    def hits(self, points: Points) -> list[int]:
        """The node that each point reaches, -1 for none."""
        found = []
        for under, point in zip(self._under(points, self.hittable), points, strict=True):
            order = (
                under[np.argsort(-self.rank[under])]
                if self.shapes
                else under[np.argmax(self.rank[under])][None]
                if len(under)
                else under
            )
            item = next((int(at) for at in order if self._inside(int(at), point)), -1)
            found.append(self.node[item] if item >= 0 else -1)
        return found

    def covered(self, points: Points, ranks: NDArray[np.int64]) -> list[bool]:
        """Whether something opaque is painted over what has these ranks at these points."""
        opaque = self._under(points, self.opaque)
        return [bool((self.rank[under] > rank).any()) for under, rank in zip(opaque, ranks, strict=True)]

    def _under(self, points: Points, wanted: Flags) -> list[NDArray[np.int64]]:
        rects = self.rects[wanted]
        where = np.flatnonzero(wanted)
        x, y = points[:, 0:1], points[:, 1:2]
        inside = (rects[:, 0] <= x + SNAP) & (x < rects[:, 2]) & (rects[:, 1] <= y + SNAP) & (y < rects[:, 3])
        return [where[row] for row in inside]

    def _inside(self, item: int, point: NDArray[np.float64]) -> bool:
        corners = self.shapes.get(item)
        if corners is None:
            return True
        left, top, right, bottom = self.whole[item]
        if not len(corners):
            x, y = (2 * point - (left + right, top + bottom)) / (right - left, bottom - top)
            return bool(x * x + y * y <= 1)
        return _in_polygon(point, corners)


def stage(dom: Dom, viewport: tuple[int, int]) -> Scene:
    """Work out what is painted where."""
    clip_of = _clips(dom)
    items = _items(dom)
    boxes = np.array([box for box, _ in items], dtype=np.int64)
    lines = np.array([line for _, line in items], dtype=np.int64)
    whole = dom.rects[boxes]
    split = lines >= 0
    whole[split] = dom.line_rects[lines[split]]
    limits = np.array(clip_of, dtype=np.float64).reshape(-1, 4)[boxes]
    low = np.maximum(np.maximum(whole[:, :2], limits[:, :2]), 0)
    high = np.minimum(np.minimum(whole[:, 2:], limits[:, 2:]), np.array(viewport, dtype=np.float64))
    hit, opaque = _reactions(dom)
    phase = np.array(_phases(dom), dtype=np.int64)
    order = np.lexsort((np.arange(len(boxes)), phase[boxes], np.array(dom.paint, dtype=np.int64)[boxes]))
    rank = np.empty(len(boxes), dtype=np.int64)
    rank[order] = np.arange(len(boxes))
    nodes = [dom.box_node[box] for box, _ in items]
    shapes = {item: _corners(dom, node, whole[item]) for item, node in enumerate(nodes) if dom.name[node] in SHAPES}
    return Scene(dom, nodes, np.hstack([low, high]), rank, hit[boxes], opaque[boxes], clip_of, shapes, whole)


def wraps(dom: Dom, box: int) -> bool:
    """Whether the content of an inline element's box lies on more than one line."""
    lines = line_numbers(dom, box)
    if len(lines) < 2:
        return False
    tops = dom.line_rects[lines.start : lines.stop, 1]
    heights = dom.line_rects[lines.start : lines.stop, 3] - tops
    return bool(tops.max() - tops.min() > 0.5 * heights.min())


def line_numbers(dom: Dom, box: int) -> range:
    """The pieces of text inside a box."""
    node = dom.box_node[box]
    last = box
    if dom.type[node] != TEXT:
        while last + 1 < len(dom.box_node) and dom.box_node[last + 1] <= dom.end[node]:
            last += 1
    return dom.lines_of(box, last)


def _items(dom: Dom) -> list[tuple[int, int]]:
    """(box, line) of all that can be hit: line -1 for a whole box. Wrapped text and inline elements are their lines."""
    heights = dom.line_rects[:, 3] - dom.line_rects[:, 1]
    tall = dom.rects[:, 3] - dom.rects[:, 1] > 1.5 * heights.min(initial=np.inf)
    inline = (tall & dom.styled(DISPLAY, lambda display: display == "inline")).tolist()
    pieces = Counter(dom.line_box)
    items: list[tuple[int, int]] = []
    for box, flows in enumerate(inline):
        if pieces[box] > 1:
            items += [(box, line) for line in dom.lines_of(box, box)]
        elif not (flows and wraps(dom, box)):
            items.append((box, -1))
    return items


def _clips(dom: Dom) -> list[Clip]:
    """What the scroll containers and frames around each box leave visible.

    A box is cut by those that are ancestors in the chain of containing blocks: an absolute box escapes the containers that are not
    positioned, a fixed one all of its document.
    """
    containers = _containers(dom)
    if not containers:
        return [NO_CLIP] * len(dom.box_node)
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
    return own


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
    x, y = (pixels(dom.strings[dom.styles[column][box]]) for column in (LEFT, TOP))
    return left + x, top + y, right - x, bottom - y


def _cut(one: Clip, other: Clip) -> Clip:
    return max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])


def _phases(dom: Dom) -> list[int]:
    """0 for blocks, 1 for floats, 2 for inline content; what is inside of a float or an inline block belongs to it."""
    inline = dom.styled(DISPLAY, lambda display: display.startswith("inline"))
    floats = dom.styled(FLOAT, lambda side: side != "none")
    text = np.array(dom.styles[DISPLAY], dtype=np.int64) < 0
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
    plain = np.flatnonzero(np.array(dom.styles[DISPLAY], dtype=np.int64) < 0)
    above = np.array(dom.box_parent, dtype=np.int64)[plain]
    hit[plain] = np.where(above >= 0, hit[above], True)  # text is reached where its element is
    for frame in (dom.parent[document] for document in dom.documents[1:]):
        if dom.style(frame, POINTER_EVENTS) == "none":  # it lets clicks through, and so does all that is in it
            hit[[box for box, node in enumerate(dom.box_node) if dom.inside_frame(node, frame)]] = False
    return hit, opaque & solid


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
