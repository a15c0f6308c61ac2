"""Points of elements that a click can use.

An element counts as seen when a click on some point of it reaches the element. That means that the
topmost thing there is the element, or something in it that is not another element of the list. The
points tried are the middle of each of its boxes and then places nearer to the corners.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from envs.observation.dom import OVERFLOW, TEXT, Dom
from envs.observation.names import Namer
from envs.observation.occlusion import Points, Scene, line_numbers
from envs.observation.roles import Kinds, input_type

PLACES = (
    (0.5, 0.5),
    (0.25, 0.5),
    (0.75, 0.5),
    (0.5, 0.2),
    (0.5, 0.8),
    (0.1, 0.15),
    (0.9, 0.85),
    (0.9, 0.15),
    (0.1, 0.85),
)
"""Places tried in a box, as shares of its width and height: the middle, then points nearer to the
corners."""

LABEL_PLACES = (*PLACES, (0.02, 0.5), (0.98, 0.5))
"""Places tried in a label. The picture of its checkbox is at an end of it, beside a text that may
be a link as a whole."""

AIM = 8.0
"""Side in CSS pixels of the square shown as the place of a control that only a corner of its label
reaches."""

MAX_RECTS = 8
"""Maximum number of boxes of one element that are tried (a link that wraps has one for each line).
"""

MIN_EDITOR = 20.0
"""Minimum side in CSS pixels of an editor that its page draws: a line of text needs as much."""

MIN_SIDE = 2.0
"""Minimum side of an element in CSS pixels: a smaller one cannot be aimed at."""

Box = tuple[float, float, float, float]
"""x, y, width, height in CSS pixels of the viewport."""


class Reach:
    """Finds points that belong to an element."""

    def __init__(self, kinds: Kinds, scene: Scene) -> None:
        self._kinds, self._dom, self._scene = kinds, scene.dom, scene
        rects, clips = scene.dom.rects, scene.clips
        low = np.maximum(rects[:, :2], clips[:, :2])
        size = np.minimum(rects[:, 2:], clips[:, 2:]) - low
        self._near: list[bool] = ((size[:, 0] >= MIN_SIDE) & (size[:, 1] >= MIN_SIDE)).tolist()
        self._left = np.hstack([low, size])
        """Visible part of each box, as x, y, width, height."""
        self.editor_parts: set[int] = set()
        """Parts of an editor that stand for its text area and are not listed themselves."""
        self._contents = {node: boxes for node in kinds.kind if (boxes := contents_of(scene.dom, node))}
        """Boxes of the contents of elements that have no box of their own, by node."""
        self._known: dict[int, tuple[list[float], list[float]]] = {}

    def _where(self, box: int) -> tuple[list[float], list[float]]:
        """Return the rectangle of a box and its clip, both as left, top, right, bottom."""
        if box not in self._known:
            self._known[box] = self._dom.rects[box].tolist(), self._scene.clips[box].tolist()
        return self._known[box]

    def of_elements(self, nodes: list[int]) -> dict[int, tuple[tuple[float, float], Box]]:
        """Return point and box of each element that has a point of its own.

        All elements are tried together, place by place.
        """
        waiting = self._shown(nodes)
        reached: dict[int, tuple[tuple[float, float], Box]] = {}
        for number in range(MAX_RECTS):
            for place in PLACES:
                tried = [(node, boxes[number]) for node, boxes in waiting.items() if number < len(boxes)]
                if not tried:
                    return reached | self._on_shapes(waiting)
                points = _points_in(np.array([box for _, box in tried]), place)
                for (node, box), hit, point in zip(tried, self._scene.hits(points), points.tolist(), strict=True):
                    if hit >= 0 and self._kinds.owner(hit) == node:
                        reached[node] = ((point[0], point[1]), box)
                        del waiting[node]
        return reached | self._on_shapes(waiting)

    def _on_shapes(self, waiting: dict[int, list[Box]]) -> dict[int, tuple[tuple[float, float], Box]]:
        """Return point and box of SVG elements, which may fill little of their rectangles."""
        scene, reached = self._scene, dict[int, tuple[tuple[float, float], Box]]()
        for item in scene.shapes if waiting else ():
            node = self._kinds.owner(scene.node[item])
            if node in waiting and node not in reached:
                points = scene.shape(item).points(scene.rects[item])
                own = [self._kinds.owner(hit) == node for hit in scene.hits(points)]
                reached.update((node, ((x, y), waiting[node][0])) for x, y in points[own][:1].tolist())
        return reached

    def _shown(self, nodes: list[int]) -> dict[int, list[Box]]:
        """Return `boxes` of each visible element; the unwrapped ones are computed all at once."""
        box_of, near, hidden = self._dom.box_of, self._near, self._dom.hidden
        seen = [node for node in nodes if (box := box_of[node]) >= 0 and near[box] and not hidden[box]]
        seen_boxes = [box_of[node] for node in seen]
        boxes_of = {
            node: self.boxes(node) if box in self._scene.wrapped else [(x, y, width, height)]
            for node, box, (x, y, width, height) in zip(seen, seen_boxes, self._left[seen_boxes].tolist(), strict=True)
        }
        for node, contents in self._contents.items():
            whole = [box for box in contents if near[box] and not hidden[box]]
            boxes_of[node] = [part for box in whole for part in self._clipped(self._rects(box), box)][:MAX_RECTS]
        return {node: boxes for node, boxes in boxes_of.items() if boxes}

    def of_text(self, node: int) -> tuple[tuple[float, float], Box] | None:
        """Return point and box of a text node.

        The hit there is its element or itself, and nothing in or above it.
        """
        box_of, above = self._dom.box_of[node], self._dom.parent[node]
        if box_of < 0:
            return None
        lines = self._dom.line_rects[list(self._dom.lines_of(box_of, box_of))].tolist()
        for box in self._clipped(lines, box_of)[:MAX_RECTS]:
            for place in PLACES:
                point = point_in(box, place)
                hit = self._scene.hits(np.array([point]))[0]
                if hit in (node, above):
                    return point, box
        return None

    def by_label(self, node: int, namer: Namer) -> tuple[tuple[float, float], Box] | None:
        """Return point and box on the label of a hidden checkbox, radio or file field.

        A click on the label does the same as one on the field.
        """
        if self._dom.name[node] != "INPUT" or input_type(self._dom, node) not in ("checkbox", "radio", "file"):
            return None
        for label in namer.labels_of(node):
            whole = self.boxes(label)
            corners = (point_in(box, place) for place in LABEL_PLACES[1:] for box in whole)
            aims = [(x - AIM / 2, y - AIM / 2, AIM, AIM) for x, y in corners]
            for tried in (whole, [*self._parts(label), *aims]):
                points = _points_in(np.array(tried).reshape(-1, 4), PLACES[0])
                for box, hit, (x, y) in zip(tried, self._scene.hits(points), points.tolist(), strict=True):
                    while hit >= 0 and hit != label and hit not in self._kinds.kind:
                        hit = self._dom.up(hit)
                    if hit == label:
                        return (x, y), box
        return None

    def by_editor(self, node: int) -> tuple[tuple[float, float], Box] | None:
        """Return point and box on the editor of a text area without a size.

        Code editors and terminals draw themselves and give the area the focus when they are
        clicked.
        """
        dom, kinds = self._dom, self._kinds
        if dom.name[node] != "TEXTAREA" or not (self._has_no_size(node) or self._has_no_size(dom.up(node))):
            return None
        editor, whole, ancestor = -1, list[Box](), dom.up(node)
        while ancestor >= 0 and dom.name[ancestor] != "BODY" and (not whole or self.boxes(ancestor) == whole):
            editor, whole = ancestor, [box for box in self.boxes(ancestor) if min(box[2:]) >= MIN_EDITOR]
            ancestor = dom.up(ancestor)
        if (
            not whole
            or sum(editor < field <= dom.end[editor] for field in dom.named("INPUT", "SELECT", "TEXTAREA")) > 1
        ):
            return None
        for place in PLACES:
            point = point_in(whole[0], place)
            way, ancestor = list[int](), self._scene.hits(np.array([point]))[0]
            while ancestor >= 0 and ancestor != dom.up(editor):
                way.append(ancestor)
                ancestor = dom.up(ancestor)
            if editor in way and not kinds.native.intersection(way) and dom.clickable.intersection(way):
                self.editor_parts.update(way)
                return point, whole[0]
        return None

    def _has_no_size(self, node: int) -> bool:
        """Return True if an element cannot be seen wherever its page is scrolled to."""
        box = self._dom.box_of[node]
        if box < 0 or self._dom.hidden[box]:
            return False
        left, top, right, bottom = self._dom.rects[box].tolist()
        return box in self._dom.transparent or min(right - left, bottom - top) < MIN_SIDE

    def _parts(self, node: int) -> list[Box]:
        """Return the visible parts in an element: what style sheets draw, elements and lines of
        text."""
        dom = self._dom
        first, end = bisect_right(dom.box_node, node), bisect_right(dom.box_node, dom.end[node])
        drawn = [(dom.rects[box].tolist(), box) for box in range(first, end) if dom.type[dom.box_node[box]] != TEXT]
        lines = dom.lines_of(first, end - 1)
        words = zip(dom.line_rects[list(lines)].tolist(), dom.line_box[lines.start : lines.stop], strict=True)
        return [part for rect, box in (*drawn, *words) if not dom.hidden[box] for part in self._clipped([rect], box)]

    def boxes(self, node: int) -> list[Box]:
        """Return the visible parts of an element's client rectangles, without too small ones."""
        box = self._dom.box_of[node]
        if box < 0 or not self._near[box]:
            return []
        return self._clipped(self._rects(box), box)[:MAX_RECTS]

    def whole(self, node: int) -> Box:
        """Return an element's rectangle, seen or not."""
        left, top, right, bottom = self._where(self._dom.box_of[node])[0]
        return left, top, right - left, bottom - top

    def away(self, node: int) -> str | None:
        """Return why an element has no point.

        It lies ``above``, ``below`` or ``beside`` the view, or is ``covered``. The answer is
        ``None`` if it cannot be seen at all.
        """
        box = self._dom.box_of[node]
        if box < 0 or self._dom.hidden[box] or self._scene.clipped_away[box]:
            return None
        (left, top, right, bottom), (low_x, low_y, high_x, high_y) = self._where(box)
        if right - left < MIN_SIDE or bottom - top < MIN_SIDE:
            return None
        if 0 <= high_x - low_x < MIN_SIDE or 0 <= high_y - low_y < MIN_SIDE:
            return None  # in a frame or container without a size, whose scrolling shows nothing
        if bottom - MIN_SIDE < low_y:  # a box beyond the page's own edge cannot be scrolled to
            return "above" if bottom + self._dom.scroll[1] > 0 or self._in_scrolled(box) else None
        if top + MIN_SIDE > high_y:
            return "below"
        if right - MIN_SIDE < low_x:
            return "beside" if right + self._dom.scroll[0] > 0 or self._in_scrolled(box) else None
        return "beside" if left + MIN_SIDE > high_x else "covered"

    def _in_scrolled(self, box: int) -> bool:
        """Return True if a box is in a container that can scroll, or in a frame that is scrolled.

        A snapshot does not say how far a container is scrolled.
        """
        dom = self._dom
        while (box := dom.box_parent[box]) >= 0:
            node = dom.box_node[box]
            if node in dom.scrolled_frames:
                return True
            if dom.style(node, OVERFLOW) in ("auto", "scroll") and dom.name[node] not in ("HTML", "BODY"):
                return True
        return False

    def _rects(self, box: int) -> list[list[float]]:
        """Return an element's client rectangles: one, or one for each line of an inline element
        that wraps."""
        if box not in self._scene.wrapped:
            return [self._where(box)[0]]
        lines: list[list[float]] = []
        for left, top, right, bottom in self._dom.line_rects[list(line_numbers(self._dom, box))].tolist():
            if lines and top < lines[-1][3] - 1 and bottom > lines[-1][1] + 1:
                last = lines[-1]
                lines[-1] = [min(last[0], left), min(last[1], top), max(last[2], right), max(last[3], bottom)]
            else:
                lines.append([left, top, right, bottom])
        return lines

    def _clipped(self, rects: list[list[float]], box: int) -> list[Box]:
        low_x, low_y, high_x, high_y = self._where(box)[1]
        visible: list[Box] = []
        for left, top, right, bottom in rects:
            x, y = max(left, low_x), max(top, low_y)
            width, height = min(right, high_x) - x, min(bottom, high_y) - y
            if width >= MIN_SIDE and height >= MIN_SIDE:
                visible.append((x, y, width, height))
        return visible


def contents_of(dom: Dom, node: int) -> list[int]:
    """Return the outermost boxes in an element that has none (``display: contents``)."""
    boxes: list[int] = []
    inner = node if dom.box_of[node] < 0 else dom.end[node] + 1
    while inner <= dom.end[node]:
        if dom.box_of[inner] >= 0:
            boxes.append(dom.box_of[inner])
            inner = dom.end[inner]
        inner += 1
    return boxes


def point_in(box: Box, place: tuple[float, float]) -> tuple[float, float]:
    """Return the whole pixel at a share of a box's width and height.

    It is the pixel that the engine's hit test takes for that point.
    """
    x, y = _points_in(np.array([box]), place)[0].tolist()
    return x, y


def _points_in(boxes: NDArray[np.float64], place: tuple[float, float]) -> Points:
    """Return `point_in` of boxes given as x, y, width and height."""
    start, length = boxes[:, :2], boxes[:, 2:]
    inside = np.floor(start + length * place + 0.5)
    points: Points = np.minimum(np.maximum(inside, np.ceil(start)), np.ceil(start + length) - 1)
    return points
