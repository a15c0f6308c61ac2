"""Interactive elements of a page, each with its place and a point to click."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from envs.observation.areas import areas, picture_of
from envs.observation.dom import TEXT, USER_MODIFY, Dom
from envs.observation.names import Namer
from envs.observation.occlusion import Scene
from envs.observation.options import LINE_TOLERANCE, SMALL, ObservationOptions, looks_shortened
from envs.observation.reach import Box, Reach, contents_of
from envs.observation.roles import BUTTONS, Kinds, input_type
from envs.observation.states import StateReader
from envs.observation.text_utils import cut, shorten, shown, squash
from envs.observation.visibility import Drawn
from envs.types import Whole

CARDS = frozenset({"item"})
"""Kinds whose label is only the beginning of their text: the rest stands among the words of the
page."""

FIELD_TAGS = frozenset({"INPUT", "SELECT", "TEXTAREA"})
"""Tags of controls that pages often draw themselves, with the real one transparent above the
drawing."""


@dataclass(slots=True)
class Found:
    """Element of the list, before it has a number."""

    node: int
    kind: str
    label: str
    value: str
    box: Box
    point: tuple[float, float] | None
    """Point that hits the element and nothing above it; ``None`` when it has to be scrolled to."""
    checked: bool = False
    focused: bool = False
    disabled: bool = False
    options: tuple[str, ...] = ()
    input_type: str = ""
    shortened: bool = False
    """True when the label, or the text written on the element, is longer than what is shown."""
    written: str = ""
    """Text on the element that differs from the label."""
    states: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    """``<label>`` elements of an element that has no box of its own."""
    whole: Whole | None = None
    """Label, written text and value, where one of them is shortened or looks so; their length is
    not bounded yet."""


def find(
    kinds: Kinds, scene: Scene, options: ObservationOptions, focus: int
) -> tuple[list[Found], Counter[str], Namer]:
    """Find the elements that can be acted on, and the short texts if they are few.

    Args:
        focus: The node with the keyboard focus, -1 for none.

    Returns:
        The elements in the order of the options, the numbers of elements out of sight by reason,
        and the namer.
    """
    full = options.rules == "full"
    namer = Namer(kinds, full=full)
    describer = _Describer(kinds, namer, options, focus)
    reach = Reach(kinds, scene)
    elements, hidden = [], Counter[str]()
    points = scene.again("elements", list(kinds.kind), lambda: reach.of_elements(list(kinds.kind)))
    drawn = Drawn(scene.dom)
    if full:
        points = points | (areas(scene.dom, scene) if scene.dom.named("AREA") else {})
        points = {node: place for node, place in points.items() if _is_seen(drawn, scene, node)}
    for node, kind in kinds.kind.items():
        place = points.get(node) or ((reach.by_label(node, namer) or reach.by_editor(node)) if full else None)
        if place is not None:
            elements.append(describer.describe(node, place[1], place[0]))
            continue
        if not full:
            namer.read_labels(node, kind)
        away = reach.away(node) if full and not drawn.nothing_of(node) else None
        if away is not None:
            hidden[away] += 1
            if options.offscreen and away != "covered":
                elements.append(describer.describe(node, reach.whole(node), None))
    elements = [one for one in elements if one.node in kinds.native or one.node not in reach.editor_parts]
    if options.max_texts:
        room = max(0, options.max_elements - len(elements))
        elements += _short_texts(kinds, scene, namer, reach, options)[:room]
    return (_by_lines(elements) if options.order == "lines" else _by_document(scene.dom, elements)), hidden, namer


def _is_seen(drawn: Drawn, scene: Scene, node: int) -> bool:
    """Return True if an element that a click reaches can be seen.

    It draws something, or it is a transparent field that lies on its picture.
    """
    if not drawn.nothing_of(node):
        return True
    field = scene.dom.name[node] in FIELD_TAGS and input_type(scene.dom, node) not in BUTTONS
    return field and drawn.stands_in(node, scene.box, scene.rects)


class _Describer:
    """Describes elements: their name, value and state."""

    def __init__(self, kinds: Kinds, namer: Namer, options: ObservationOptions, focus: int) -> None:
        self._kinds, self._namer, self._options, self._focus = kinds, namer, options, focus
        self._states = StateReader(kinds, namer)

    def describe(self, node: int, box: Box, point: tuple[float, float] | None) -> Found:
        """Describe an element with this box, and this point to click (``None`` when it has to be
        scrolled to)."""
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
        # Text written on a card that does not fit stands among the words of the page.
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
        return None  # the usual case
    if not any(len(text) > chars or looks_shortened(text) for text in texts):
        return None
    return Whole(text=label, written=written, value=value)


def box_for(dom: Dom, node: int, labels: Iterable[int] = ()) -> int:
    """Return the box at which an element stands among the words of a page.

    It is its own box, that of its content, that of the picture that it is an area of, or that of
    the first of its ``labels`` that has one. Without any of them it is -1.
    """
    if dom.box_of[node] >= 0:
        return dom.box_of[node]
    picture = picture_of(dom, node) if dom.name[node] == "AREA" else -1
    if picture >= 0:
        return dom.box_of[picture]
    boxes = (box for one in (node, *labels) for box in (dom.box_of[one], *contents_of(dom, one)) if box >= 0)
    return next(boxes, -1)


def _short_texts(kinds: Kinds, scene: Scene, namer: Namer, reach: Reach, options: ObservationOptions) -> list[Found]:
    """Return short texts that belong to no control (a sum to solve, a value), if they are few."""
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
        place = reach.of_text(node)
        if place is not None:
            own = " ".join(dom.text(child) for child in dom.children(above) if dom.type[child] == TEXT)
            texts.append(Found(node, "text", squash(own), "", place[1], place[0]))
    few = len(texts) <= options.max_texts and all(len(text.label) <= options.label_chars for text in texts)
    return texts if few else []


def _by_lines(elements: list[Found]) -> list[Found]:
    """Sort elements line by line as the eye reads: from top to bottom, then from left to right."""
    middles = {element.node: element.box[1] + element.box[3] / 2 for element in elements}
    lines: dict[int, int] = {}
    line, top = -1, -1e9
    for element in sorted(elements, key=lambda element: middles[element.node]):
        if middles[element.node] - top > LINE_TOLERANCE:
            line, top = line + 1, middles[element.node]
        lines[element.node] = line
    down = sorted(elements, key=lambda element: middles[element.node])
    return sorted(down, key=lambda element: (lines[element.node], element.box[0]))


def _by_document(dom: Dom, elements: list[Found]) -> list[Found]:
    """Sort elements in document order, those in a frame in the place of the frame."""
    if len(dom.documents) == 1:
        return elements
    contents = {root: dom.parent[root] for root in dom.documents[1:]}

    def path(node: int) -> tuple[int, ...]:
        root = dom.documents[bisect_right(dom.documents, node) - 1]
        return (*(path(contents[root]) if root in contents else ()), node)

    return sorted(elements, key=lambda element: path(element.node))
