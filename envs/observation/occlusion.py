"""Hit test: finds the node that a click on a point reaches.

It uses paint order, rectangles, clips and ``pointer-events``. The engine's hit test takes what is
painted last under the point. Here the boxes are put into paint order once (by paint layer; within a
layer blocks, floats and inline content as in CSS 2.1 appendix E; then document order). Each is cut
to what its scroll containers, frames and the viewport leave of it. The topmost box with the point
inside is hit. Two kinds need more: text that wraps is hit on its lines only, and SVG shapes as in
`envs.observation.svg_shapes`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from envs.observation.clips import clips_of
from envs.observation.dom import (
    BACKGROUND,
    DISPLAY,
    FLOAT,
    OPACITY,
    POINTER_EVENTS,
    TEXT,
    Dom,
    Flags,
    Indices,
    Rects,
)
from envs.observation.svg_shapes import SHAPES, SvgShape, hit_parts, shape_of
from envs.observation.visibility import style_clips

Answer = TypeVar("Answer")

Points = NDArray[np.float64]
"""(n, 2): x, y in CSS pixels of the main viewport."""

REPLACED = frozenset({"IMG", "CANVAS", "VIDEO", "IFRAME", "EMBED", "OBJECT"})
"""Elements that cover the boxes below them without a background."""

SNAP = 0.5
"""Reach of the engine's hit test in CSS pixels over a box's left and top edges (measured in
Chromium 156)."""

MAX_PAIRS = 2_000_000
"""Maximum number of pairs of points and items that are compared at once: 2 MB for each comparison.
"""
NEIGHBOURS = 256
"""Number of points that are compared together if there are more pairs."""
WIDEST = 1e5
"""Width in CSS pixels that no page exceeds; points further apart are not neighbours."""


@dataclass(slots=True)
class Scene:
    """Boxes of a page, ready for hit tests.

    Its items are boxes, and lines of text, of which something can be seen; the one that is painted
    last comes first.
    """

    dom: Dom
    node: list[int]
    """Node of each item."""
    box: Indices
    """Box of each item."""
    rects: Rects
    """Visible rectangle of each item."""
    hittable: Indices
    """Items that a click can reach, ascending."""
    opaque: Indices
    """Items that hide what is below them, ascending."""
    clips: Rects
    """Clip of each box, by box: what the viewport and the scroll containers and frames around it
    leave visible."""
    wrapped: set[int]
    """Boxes of inline elements whose content lies on more than one line."""
    shapes: dict[int, SvgShape | None]
    """Shapes of the items that are SVG shapes; `shape` computes each when it is first asked for."""
    whole: Rects
    """Rectangles of the items, not cut."""
    clipped_away: Flags
    """True for each box of which clip styles, or its turned face, leave nothing."""
    kept: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Cached answers about the scene, each with its question; see `again`."""

    def again(self, what: str, asked: Any, answer: Callable[[], Answer]) -> Answer:
        """Return the last answer to ``what`` if ``asked`` is the same as then, else a new one.

        The same is asked again at the next look at a page on which nothing has moved. Callers must
        not change the answer.
        """
        known = self.kept.get(what)
        if known is None or not np.array_equal(known[0], asked):
            self.kept[what] = known = asked, answer()
        cached: Answer = known[1]
        return cached

    def hits(self, points: Points) -> list[int]:
        """Return the node that each point reaches, -1 for none."""
        reached = np.full(len(points), -1, dtype=np.int64)
        for rows, items in _near(points, self.rects, self.hittable):
            reached[rows] = self._hits(points[rows], items)
        nodes: list[int] = reached.tolist()
        return nodes

    def _hits(self, points: Points, hittable: Indices) -> list[int]:
        under = _under(points, self.rects[hittable])
        rows = np.arange(len(points))
        while True:
            top = under.argmax(axis=1)
            is_under, items = under[rows, top].tolist(), hittable[top].tolist()
            missed = [
                row
                for row, item in enumerate(items)
                if item in self.shapes and is_under[row] and not self.shape(item).holds(points[row : row + 1])[0]
            ]
            if not missed:
                return [self.node[item] if is_hit else -1 for item, is_hit in zip(items, is_under, strict=True)]
            under[missed, top[missed]] = False  # in a shape's rectangle, not in the shape

    def covered(self, points: Points, items: Indices) -> Flags:
        """Return True for each point at which something opaque is painted over its item."""
        flags: Flags = np.zeros(len(points), dtype=np.bool_)
        for rows, opaque in _near(points, self.rects, self.opaque):
            flags[rows] = (_under(points[rows], self.rects[opaque]) & (opaque < items[rows][:, None])).any(axis=1)
        return flags

    def shape(self, item: int) -> SvgShape:
        """Return the SVG shape of an item."""
        known = self.shapes[item]
        if known is None:
            self.shapes[item] = known = shape_of(self.dom, self.node[item], self.whole[item])
        return known


def _near(points: Points, rects: Rects, items: Indices) -> Iterator[tuple[Indices, Indices]]:
    """Yield row numbers of points, and the items that may be under these points.

    If there are few pairs, all points come at once, else groups of neighbouring points.
    """
    if not len(points) or not len(items):
        return
    if len(points) * len(items) <= MAX_PAIRS:
        yield np.arange(len(points)), items
        return
    order = np.lexsort((points[:, 1], points[:, 0] // WIDEST))
    for rows in np.array_split(order, -(-len(order) // NEIGHBOURS)):
        low, high = points[rows].min(axis=0) - SNAP, points[rows].max(axis=0) + SNAP
        near = items[((rects[items, :2] <= high) & (rects[items, 2:] >= low)).all(axis=1)]
        if len(near):
            yield rows, near


def _under(points: Points, rects: Rects) -> Flags:
    """Return a (points, rectangles) matrix, True where a rectangle is under a point."""
    x, y = points[:, 0:1], points[:, 1:2]
    flags: Flags = (rects[:, 0] <= x + SNAP) & (x < rects[:, 2]) & (rects[:, 1] <= y + SNAP) & (y < rects[:, 3])
    return flags


def stage(dom: Dom, viewport: tuple[float, float], modal: int = -1, *, clip_styles: bool = True) -> Scene:
    """Make the scene of a page in a viewport.

    Args:
        modal: Node of the dialog outside of which nothing can be reached, -1 for none.
        clip_styles: True to cut boxes also to what `envs.observation.visibility.style_clips` leaves
            of them.
    """
    clips = clips_of(dom, modal)
    clips = np.hstack([np.maximum(clips[:, :2], 0), np.minimum(clips[:, 2:], np.array(viewport, dtype=np.float64))])
    return paint(dom, clips, modal, clip_styles=clip_styles)


def paint(
    dom: Dom, clips: Rects, modal: int = -1, *, clip_styles: bool = True, strips: Sequence[int] | None = None
) -> Scene:
    """Make the scene in which ``clips`` is left visible of each box; ``strips`` as in
    `style_clips`."""
    clipped_away: Flags = np.zeros(len(dom.box_node), dtype=np.bool_)
    if clip_styles and (left := style_clips(dom, strips)) is not None:
        clips = np.hstack([np.maximum(clips[:, :2], left[:, :2]), np.minimum(clips[:, 2:], left[:, 2:])])
        rest = np.minimum(dom.rects[:, 2:], left[:, 2:]) - np.maximum(dom.rects[:, :2], left[:, :2])
        clipped_away = np.asarray((rest <= 0).any(axis=1))
    wrapped = _wrapped(dom)
    boxes, whole = _items(dom, wrapped)
    low, high = np.maximum(whole[:, :2], clips[boxes, :2]), np.minimum(whole[:, 2:], clips[boxes, 2:])
    seen = np.flatnonzero((low[:, 0] < high[:, 0]) & (low[:, 1] < high[:, 1]))
    above, layer = np.array(dom.box_parent, dtype=np.int64), np.array(dom.paint, dtype=np.int64)
    phase = _phases(dom, above, layer)
    seen_boxes = boxes[seen]
    order = seen[np.lexsort((seen, seen_boxes, phase[seen_boxes], layer[seen_boxes]))[::-1]]
    boxes, whole, rects = boxes[order], whole[order], np.hstack([low[order], high[order]])
    hit, opaque = _reactions(dom, above)
    if modal >= 0:
        hit &= _within(dom, modal)
    nodes = list(map(dom.box_node.__getitem__, boxes.tolist()))
    drawn = {
        dom.box_node[box]
        for box in _boxes(dom, *SHAPES)
        if dom.name[dom.box_node[box]] != "rect" or not hit_parts(dom.styles[dom.style_at[box]])[0]
    }
    shapes: dict[int, SvgShape | None] = dict.fromkeys(item for item, node in enumerate(nodes) if node in drawn)
    reached, hiding = np.flatnonzero(hit[boxes]), np.flatnonzero(opaque[boxes])
    return Scene(dom, nodes, boxes, rects, reached, hiding, clips, wrapped, shapes, whole, clipped_away)


def line_numbers(dom: Dom, box: int) -> range:
    """Return the pieces of text inside a box."""
    node = dom.box_node[box]
    return dom.lines_of(box, box if dom.type[node] == TEXT else bisect_right(dom.box_node, dom.end[node]) - 1)


def _wrapped(dom: Dom) -> set[int]:
    """Return the boxes of inline elements whose content lies on more than one line."""
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
    """Return box and rectangle of each item: a whole box, or each line of a text that wraps."""
    lines = np.array(dom.line_box, dtype=np.int64)
    pieces = np.bincount(lines, minlength=len(dom.box_node))
    split = pieces[lines] > 1
    single = pieces <= 1
    single[list(wrapped)] = False
    boxes = np.concatenate([np.flatnonzero(single), lines[split]])
    return boxes, np.concatenate([dom.rects[single], dom.line_rects[split]])


def _phases(dom: Dom, above: Indices, paint: Indices) -> Indices:
    """Return the paint phase of each box: 0 for blocks, 1 for floats, 2 for inline content.

    Content of a float or an inline block belongs to it.
    """
    inline = dom.styled(DISPLAY, lambda display: display.startswith("inline"))
    floats = dom.styled(FLOAT, lambda side: side != "none")
    text = dom.style_at == 0
    phases: Indices = np.where(inline | text, 2, np.where(floats, 1, 0))
    around = np.where((above >= 0) & (paint[above] == paint), above, np.arange(len(above)))
    while (phases[around] > phases).any():  # then the box around it, the one two further out, four…
        phases = np.maximum(phases, phases[around])
        around = around[around]
    return phases


def _reactions(dom: Dom, above: Indices) -> tuple[Flags, Flags]:
    """Return True for boxes that a click can reach, and True for those that hide what is below
    them."""
    visible = ~np.array(dom.hidden) & (dom.style_at != 0)
    hit = visible & dom.styled(POINTER_EVENTS, lambda events: events != "none")
    opaque = visible & dom.styled(OPACITY, lambda opacity: opacity == "1")
    opaque[list(dom.transparent)] = False
    solid = dom.styled(BACKGROUND, is_solid)
    solid[_boxes(dom, *REPLACED)] = True
    hit[_boxes(dom, "g")] = False
    drawn = _boxes(dom, *SHAPES)
    hit[drawn] &= np.array([bool(style) and any(hit_parts(style)) for style in dom.styles])[dom.style_at[drawn]]
    plain = np.flatnonzero(dom.style_at == 0)
    around = above[plain]
    hit[plain] = np.where(around >= 0, hit[around], True)  # text is reached where its element is
    for frame in (dom.parent[document] for document in dom.documents[1:]):
        if dom.style(frame, POINTER_EVENTS) == "none":  # the frame lets clicks through, and so does its content
            hit[[box for box, node in enumerate(dom.box_node) if dom.inside_frame(node, frame)]] = False
    return hit, opaque & solid


def is_solid(colour: str) -> bool:
    """Return True if a background colour lets nothing through."""
    return colour.startswith("rgb(")


def _boxes(dom: Dom, *names: str) -> list[int]:
    """Return the boxes of elements of these names."""
    return [box for node in dom.named(*names) if (box := dom.box_of[node]) >= 0]


def _within(dom: Dom, node: int) -> Flags:
    """Return True for boxes of a node of the main document and its content, frames included."""
    inside = np.zeros(len(dom.parent), dtype=np.bool_)
    inside[node : dom.end[node] + 1] = True
    for first, after in pairwise([*dom.documents[1:], len(dom.parent)]):
        inside[first:after] = inside[dom.parent[first]]
    flags: Flags = inside[np.array(dom.box_node, dtype=np.int64)]
    return flags
