"""The interactive elements of a page: what each is, where it is seen, and a point that a click can use.

An element counts as seen when some point of it is really its own: the topmost thing there is the element, or something in it that is not
another element of the list. The points tried are the middle of each of its boxes and then places nearer to the corners.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.observation.areas import areas, picture_of
from envs.observation.dom import OVERFLOW, TEXT, USER_MODIFY, Dom
from envs.observation.names import Namer
from envs.observation.occlusion import Points, Scene, line_numbers
from envs.observation.options import LINE_TOLERANCE, SMALL, ObservationOptions, looks_shortened
from envs.observation.roles import BUTTONS, Kinds, input_type
from envs.observation.states import StateReader
from envs.observation.text_utils import cut, shorten, shown, squash
from envs.observation.visibility import Drawn
from envs.types import Whole

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
"""Where a point is looked for in a box, as shares of its width and height: the middle, then points nearer to the corners."""

LABEL_PLACES = (*PLACES, (0.02, 0.5), (0.98, 0.5))
"""The same in a label: the picture of its checkbox is at an end of it, beside a text that may be a link as a whole."""

AIM = 8.0
"""CSS pixels of the sides of what is shown as the place of a control that only a corner of its label reaches."""

MAX_RECTS = 8
"""Boxes of one element that are tried (a link that wraps has one for each line)."""

CARDS = frozenset({"item"})
"""Kinds whose label says only how they begin: what does not fit stands among the words of the page."""

FIELD_TAGS = frozenset({"INPUT", "SELECT", "TEXTAREA"})
"""Controls that pages often draw themselves, with the real one transparent above it."""

MIN_SIDE = 2.0
"""CSS pixels: what is smaller cannot be aimed at."""

Box = tuple[float, float, float, float]
"""x, y, width, height in CSS pixels of the viewport."""


@dataclass(slots=True)
class Found:
    """One element of the list, before it has a number."""

    node: int
    kind: str
    label: str
    value: str
    box: Box
    point: tuple[float, float] | None
    """A point that hits the element and nothing above it; ``None`` when it has to be scrolled to."""
    checked: bool = False
    focused: bool = False
    disabled: bool = False
    options: tuple[str, ...] = ()
    input_type: str = ""
    shortened: bool = False
    """There is more of the label, or of what is written on it, than is shown."""
    written: str = ""
    """What is to be read on it, where the label says something else."""
    states: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    """Its ``<label>`` elements, if it has no box of its own."""
    whole: Whole | None = None
    """Label, what is written and value, where one of them is shortened or looks so; not bounded yet."""


def find(
    kinds: Kinds, scene: Scene, options: ObservationOptions, focus: int
) -> tuple[list[Found], Counter[str], Namer]:
    """All elements that can be acted on, with the short texts if they are few, in the order of the options; and how many are not to be seen.

    Args:
        focus: The node with the keyboard focus, -1 for none.
    """
    full = options.rules == "full"
    namer = Namer(kinds, full=full)
    describer = _Describer(kinds, namer, options, focus)
    reach = _Reach(kinds, scene)
    found, hidden = [], Counter[str]()
    points = scene.again("elements", list(kinds.kind), lambda: reach.of_elements(list(kinds.kind)))
    drawn = Drawn(scene.dom)
    if full:
        points = points | (areas(scene.dom, scene) if scene.dom.named("AREA") else {})
        points = {node: at for node, at in points.items() if _is_seen(drawn, scene, node)}
    for node, kind in kinds.kind.items():
        at = points.get(node) or (reach.by_label(node, namer) if full else None)
        if at is not None:
            found.append(describer.describe(node, at[1], at[0]))
            continue
        if not full:
            namer.read_labels(node, kind)
        away = reach.away(node) if full and not drawn.nothing_of(node) else None
        if away is not None:
            hidden[away] += 1
            if options.offscreen and away != "covered":
                found.append(describer.describe(node, reach.whole(node), None))
    if options.max_texts:
        room = max(0, options.max_elements - len(found))
        found += _short_texts(kinds, scene, namer, reach, options)[:room]
    return (_by_lines(found) if options.order == "lines" else _by_document(scene.dom, found)), hidden, namer


def _is_seen(drawn: Drawn, scene: Scene, node: int) -> bool:
    """Whether a person would find an element that a click reaches: it draws something, or is a transparent field that lies on its picture."""
    if not drawn.nothing_of(node):
        return True
    field = scene.dom.name[node] in FIELD_TAGS and input_type(scene.dom, node) not in BUTTONS
    return field and drawn.stands_in(node, scene.box, scene.rects)


class _Describer:
    """Says what an element is called, what it holds and in which state it is."""

    def __init__(self, kinds: Kinds, namer: Namer, options: ObservationOptions, focus: int) -> None:
        self._kinds, self._namer, self._options, self._focus = kinds, namer, options, focus
        self._states = StateReader(kinds, namer)

    def describe(self, node: int, box: Box, point: tuple[float, float] | None) -> Found:
        """An element with this box, and this point to click; ``None`` when it has to be scrolled to."""
        kinds, dom, namer, chars = self._kinds, self._kinds.dom, self._namer, self._options.label_chars
        kind, name = kinds.kind[node], dom.name[node]
        choices = tuple(namer.choices(node).values()) if name == "SELECT" else ()
        label, value, on = namer.name(node, kind), namer.value(node, kind), namer.is_on(node, kind)
        written, states = "", tuple[str, ...]()
        shown = label[:chars].rstrip(), cut(value, chars)
        if self._options.rules == "full":
            if dom.hosts and node not in dom.hosts and dom.style(node, USER_MODIFY).startswith("read-write"):
                label, value = "", label  # a link in an editor: its words were typed
            written, states = namer.written(node, kind, label), self._states.read(node, on)
            shown = shorten(label, chars), shorten(squash(value), chars)
        whole = _whole(label, written, squash(value), chars)
        # What is written on a card and does not fit stands among the words of the page.
        fits = len(written) <= chars or kind not in CARDS
        return Found(
            node,
            kind,
            *shown,
            box,
            point,
            checked=on,
            focused=node == self._focus,
            disabled=node in kinds.disabled,
            options=choices,
            input_type=input_type(dom, node) if name == "INPUT" else "",
            shortened=max(len(label), len(written)) > chars,
            written=shorten(written, chars) if fits else "",
            states=states,
            labels=tuple(namer.labels_of(node)) if dom.box_of[node] < 0 else (),
            whole=whole,
        )


def _whole(label: str, written: str, value: str, chars: int) -> Whole | None:
    texts = (label, written, value)
    if max(map(len, texts)) < min(chars, SMALL.label_chars - 1):
        return None  # as most are
    if not any(len(text) > chars or looks_shortened(text) for text in texts):
        return None
    return Whole(text=label, written=written, value=value)


class _Reach:
    """Looks for points that belong to an element."""

    def __init__(self, kinds: Kinds, scene: Scene) -> None:
        self._kinds, self._dom, self._scene = kinds, scene.dom, scene
        rects, clips = scene.dom.rects, scene.clips
        low = np.maximum(rects[:, :2], clips[:, :2])
        size = np.minimum(rects[:, 2:], clips[:, 2:]) - low
        self._near: list[bool] = ((size[:, 0] >= MIN_SIDE) & (size[:, 1] >= MIN_SIDE)).tolist()
        self._left = np.hstack([low, size])
        """What is left of each box, as x, y, width, height."""
        self._contents = {at: of for at in kinds.kind if (of := _contents(scene.dom, at))}
        """Boxes that stand for elements without one of their own."""
        self._known: dict[int, tuple[list[float], list[float]]] = {}

    def _where(self, box: int) -> tuple[list[float], list[float]]:
        """Rectangle of a box, and what is left visible of it; both as left, top, right, bottom."""
        if box not in self._known:
            self._known[box] = self._dom.rects[box].tolist(), self._scene.clips[box].tolist()
        return self._known[box]

    def of_elements(self, nodes: list[int]) -> dict[int, tuple[tuple[float, float], Box]]:
        """Point and box of each element that has a point of its own, all tried together place by place."""
        waiting = self._shown(nodes)
        found: dict[int, tuple[tuple[float, float], Box]] = {}
        for number in range(MAX_RECTS):
            for place in PLACES:
                tried = [(node, boxes[number]) for node, boxes in waiting.items() if number < len(boxes)]
                if not tried:
                    return found
                points = _points_in(np.array([box for _, box in tried]), place)
                for (node, box), hit, point in zip(tried, self._scene.hits(points), points.tolist(), strict=True):
                    if hit >= 0 and self._kinds.owner(hit) == node:
                        found[node] = ((point[0], point[1]), box)
                        del waiting[node]
        return found

    def _shown(self, nodes: list[int]) -> dict[int, list[Box]]:
        """`boxes` of each element that is to be seen; of those in one piece all at once."""
        box_of, near, hidden = self._dom.box_of, self._near, self._dom.hidden
        seen = [node for node in nodes if (box := box_of[node]) >= 0 and near[box] and not hidden[box]]
        at = [box_of[node] for node in seen]
        found = {
            node: self.boxes(node) if box in self._scene.wrapped else [(x, y, width, height)]
            for node, box, (x, y, width, height) in zip(seen, at, self._left[at].tolist(), strict=True)
        }
        for node, contents in self._contents.items():
            whole = [box for box in contents if near[box] and not hidden[box]]
            found[node] = [each for box in whole for each in self._clipped(self._rects(box), box)][:MAX_RECTS]
        return {node: boxes for node, boxes in found.items() if boxes}

    def of_text(self, node: int) -> tuple[tuple[float, float], Box] | None:
        """Point and box of a text node: its element is what is hit, and nothing in or above it."""
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
        """For a checkbox, radio or file field that is styled away: a point of its label, which does the same."""
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

    def _parts(self, node: int) -> list[Box]:
        """What is seen of all that is in an element: what style sheets draw, elements and lines of text."""
        dom = self._dom
        first, end = bisect_right(dom.box_node, node), bisect_right(dom.box_node, dom.end[node])
        drawn = [(dom.rects[box].tolist(), box) for box in range(first, end) if dom.type[dom.box_node[box]] != TEXT]
        lines = dom.lines_of(first, end - 1)
        words = zip(dom.line_rects[list(lines)].tolist(), dom.line_box[lines.start : lines.stop], strict=True)
        return [part for rect, box in (*drawn, *words) if not dom.hidden[box] for part in self._clipped([rect], box)]

    def boxes(self, node: int) -> list[Box]:
        """What is seen of an element's client rectangles; too small ones are left out."""
        box = self._dom.box_of[node]
        if box < 0 or not self._near[box]:
            return []
        return self._clipped(self._rects(box), box)[:MAX_RECTS]

    def whole(self, node: int) -> Box:
        """An element's rectangle, seen or not."""
        left, top, right, bottom = self._where(self._dom.box_of[node])[0]
        return left, top, right - left, bottom - top

    def away(self, node: int) -> str | None:
        """Why an element has no point: ``above``, ``below`` or ``beside`` what is seen, ``covered``; ``None`` if it is not to be seen at all."""
        box = self._dom.box_of[node]
        if box < 0 or self._dom.hidden[box] or self._scene.clipped_away[box]:
            return None
        (left, top, right, bottom), (low_x, low_y, high_x, high_y) = self._where(box)
        if right - left < MIN_SIDE or bottom - top < MIN_SIDE:
            return None
        if 0 <= high_x - low_x < MIN_SIDE or 0 <= high_y - low_y < MIN_SIDE:
            return None  # in a frame or container without a size, whose scrolling shows nothing
        if bottom - MIN_SIDE < low_y:  # what lies beyond the page's own edge cannot be scrolled to
            return "above" if bottom + self._dom.scroll[1] > 0 or self._in_scrolled(box) else None
        if top + MIN_SIDE > high_y:
            return "below"
        if right - MIN_SIDE < low_x:
            return "beside" if right + self._dom.scroll[0] > 0 or self._in_scrolled(box) else None
        return "beside" if left + MIN_SIDE > high_x else "covered"

    def _in_scrolled(self, box: int) -> bool:
        """Whether a box is in a container that scrolls or a frame that is scrolled. How far a container is, a snapshot does not say."""
        dom = self._dom
        while (box := dom.box_parent[box]) >= 0:
            node = dom.box_node[box]
            if node in dom.scrolled_frames:
                return True
            if dom.style(node, OVERFLOW) in ("auto", "scroll") and dom.name[node] not in ("HTML", "BODY"):
                return True
        return False

    def _rects(self, box: int) -> list[list[float]]:
        """An element's client rectangles: one, or one for each line of an inline element that wraps."""
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
        found: list[Box] = []
        for left, top, right, bottom in rects:
            x, y = max(left, low_x), max(top, low_y)
            width, height = min(right, high_x) - x, min(bottom, high_y) - y
            if width >= MIN_SIDE and height >= MIN_SIDE:
                found.append((x, y, width, height))
        return found


def box_for(dom: Dom, node: int, labels: Iterable[int] = ()) -> int:
    """The box at which an element stands among the words of a page: its own, that of what is in it, of the picture that it is an area of, or of the
    first of its ``labels`` that has one."""
    if dom.box_of[node] >= 0:
        return dom.box_of[node]
    picture = picture_of(dom, node) if dom.name[node] == "AREA" else -1
    if picture >= 0:
        return dom.box_of[picture]
    found = (box for at in (node, *labels) for box in (dom.box_of[at], *_contents(dom, at)) if box >= 0)
    return next(found, -1)


def _contents(dom: Dom, node: int) -> list[int]:
    """The outermost boxes in an element that has none (``display: contents``)."""
    found: list[int] = []
    at = node if dom.box_of[node] < 0 else dom.end[node] + 1
    while at <= dom.end[node]:
        if dom.box_of[at] >= 0:
            found.append(dom.box_of[at])
            at = dom.end[at]
        at += 1
    return found


def point_in(box: Box, place: tuple[float, float]) -> tuple[float, float]:
    """The whole pixel at a share of a box's width and height: the one that the engine's hit test takes for it."""
    x, y = _points_in(np.array([box]), place)[0].tolist()
    return x, y


def _points_in(boxes: NDArray[np.float64], place: tuple[float, float]) -> Points:
    """`point_in` of boxes of x, y, width and height."""
    start, length = boxes[:, :2], boxes[:, 2:]
    inside = np.floor(start + length * place + 0.5)
    points: Points = np.minimum(np.maximum(inside, np.ceil(start)), np.ceil(start + length) - 1)
    return points


def _short_texts(kinds: Kinds, scene: Scene, namer: Namer, reach: _Reach, options: ObservationOptions) -> list[Found]:
    """Short texts that belong to no control (a sum to solve, a value to read), only when they are few."""
    dom = scene.dom
    texts: list[Found] = []
    seen: set[int] = set()
    for node, kind in enumerate(dom.type):
        if len(texts) > options.max_texts:
            break
        if kind != TEXT or dom.box_of[node] < 0 or not shown(dom, node):
            continue
        above = dom.parent[node]
        if not squash(dom.text(node)) or above in seen or kinds.excluded[node] or kinds.owner(above) >= 0:
            continue
        if any(label <= node <= dom.end[label] for label in namer.used):
            continue
        seen.add(above)
        at = reach.of_text(node)
        if at is not None:
            own = " ".join(dom.text(child) for child in dom.children(above) if dom.type[child] == TEXT)
            texts.append(Found(node, "text", squash(own), "", at[1], at[0]))
    few = len(texts) <= options.max_texts and all(len(text.label) <= options.label_chars for text in texts)
    return texts if few else []


def _by_lines(found: list[Found]) -> list[Found]:
    """Line by line as the eye reads: from top to bottom, and from left to right within a line."""
    middles = {at.node: at.box[1] + at.box[3] / 2 for at in found}
    lines: dict[int, int] = {}
    line, top = -1, -1e9
    for at in sorted(found, key=lambda at: middles[at.node]):
        if middles[at.node] - top > LINE_TOLERANCE:
            line, top = line + 1, middles[at.node]
        lines[at.node] = line
    down = sorted(found, key=lambda at: middles[at.node])
    return sorted(down, key=lambda at: (lines[at.node], at.box[0]))


def _by_document(dom: Dom, found: list[Found]) -> list[Found]:
    """In the order of the text, what is in a frame in the place of the frame."""
    if len(dom.documents) == 1:
        return found
    contents = {root: dom.parent[root] for root in dom.documents[1:]}

    def path(node: int) -> tuple[int, ...]:
        root = dom.documents[bisect_right(dom.documents, node) - 1]
        return (*(path(contents[root]) if root in contents else ()), node)

    return sorted(found, key=lambda at: path(at.node))
