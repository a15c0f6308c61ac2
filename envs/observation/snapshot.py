"""One DOM snapshot of a page and its frames, as one flat table of nodes.

``DOMSnapshot.captureSnapshot`` returns arrays of indices, one set for each document. Here they are joined: every document's nodes follow
those of the document before, and the parent of a frame's document is the frame element. So nothing that reads the table has to know
about frames or shadow roots. All rectangles are in CSS pixels of the main viewport: scrolled, and moved by the frames they lie in.

Parents come before children and a node's descendants in its own document are the nodes up to ``end[node]``: most questions about subtrees
are ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.browser.cdp import Cdp

STYLES = (
    "display",
    "visibility",
    "opacity",
    "pointer-events",
    "cursor",
    "position",
    "float",
    "overflow-x",  # where only one axis is cut off, the other is computed to auto
    "background-color",
    "fill",
    "border-left-width",
    "border-top-width",
)
"""Computed styles that are asked for; each costs about 0.1 ms on a page of 1,000 boxes."""

DISPLAY, VISIBILITY, OPACITY, POINTER_EVENTS, CURSOR, POSITION, FLOAT, OVERFLOW, BACKGROUND, FILL, LEFT, TOP = range(12)
"""Columns of a box's styles, as in `STYLES`."""

NO_STYLE = [-1] * len(STYLES)

ELEMENT, TEXT, DOCUMENT = 1, 3, 9
"""DOM node types."""

Flags = NDArray[np.bool_]

Rects = NDArray[np.float64]
"""(n, 4): left, top, right, bottom in CSS pixels of the main viewport."""


async def capture(cdp: Cdp) -> dict[str, Any]:
    """The raw snapshot. Read-only: no script runs and nothing in the page can tell.

    DOM rectangles are not asked for: they make the call three times slower, and the boxes' bounds say the same.
    """
    params = {"computedStyles": list(STYLES), "includePaintOrder": True}
    return await cdp.send("DOMSnapshot.captureSnapshot", params)


@dataclass(slots=True)
class Dom:
    """The decoded snapshot. Lists over nodes are indexed by node, lists over boxes (layout objects) by box."""

    strings: list[str]
    url: str = ""
    title: str = ""
    scroll: tuple[float, float] = (0.0, 0.0)
    """Of the main document."""
    page_size: tuple[float, float] = (0.0, 0.0)
    """Width and height of the main document's content."""
    documents: list[int] = field(default_factory=list)
    """First node of each document, ascending."""
    frame_ids: list[str] = field(default_factory=list)
    """CDP frame id of each document."""
    parent: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    """Last node of each node's subtree in its own document; itself for a leaf."""
    type: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    """Node names: upper case for HTML, as written for SVG, ``#text``…"""
    value: list[int] = field(default_factory=list)
    """String index of the node's value; -1 for none."""
    backend: list[int] = field(default_factory=list)
    """backendNodeId: the node's identity as long as it lives."""
    attributes: list[list[int]] = field(default_factory=list)
    """Name and value in turn, as string indices."""
    typed: dict[int, str] = field(default_factory=dict)
    """Live value of inputs and text areas."""
    checked: set[int] = field(default_factory=set)
    selected: set[int] = field(default_factory=set)
    """Selected options."""
    clickable: set[int] = field(default_factory=set)
    """Nodes with a listener for mouse buttons, and those that the engine reacts to by itself."""
    shadowed: set[int] = field(default_factory=set)
    """Nodes inside of shadow roots."""
    box_of: list[int] = field(default_factory=list)
    """Box of a node, -1 when it is not laid out."""
    box_node: list[int] = field(default_factory=list)
    box_parent: list[int] = field(default_factory=list)
    """Box of the nearest ancestor that has one, across frames; -1 at the top."""
    styles: list[list[int]] = field(default_factory=lambda: [[] for _ in STYLES])
    """A column of string indices for each of `STYLES`, by box; -1 for text and documents."""
    box_text: list[int] = field(default_factory=list)
    """String index of a text box's text as rendered (text-transform applied), else -1."""
    paint: list[int] = field(default_factory=list)
    """Paint order over all documents: greater is nearer to the viewer; equal within a paint layer."""
    rects: Rects = field(default_factory=lambda: np.zeros((0, 4)))
    line_box: list[int] = field(default_factory=list)
    """Box of each piece of a line of text, ascending."""
    line_rects: Rects = field(default_factory=lambda: np.zeros((0, 4)))

    def text(self, node: int) -> str:
        """A text node's data."""
        return self._string(self.value[node])

    def attribute(self, node: int, name: str) -> str | None:
        """An attribute's value, ``None`` when the element does not have it."""
        pairs = self.attributes[node]
        for at in range(0, len(pairs), 2):
            if self.strings[pairs[at]] == name:
                return self._string(pairs[at + 1])
        return None

    def style(self, node: int, column: int) -> str:
        """A computed style, ``""`` when the node is not laid out."""
        box = self.box_of[node]
        return self._string(self.styles[column][box]) if box >= 0 else ""

    def styled(self, column: int, wanted: Callable[[str], bool]) -> Flags:
        """Which boxes have a computed style that ``wanted`` accepts; never text or documents."""
        values, which = np.unique(np.array(self.styles[column], dtype=np.int64), return_inverse=True)
        accepted = [value >= 0 and wanted(self.strings[value]) for value in values.tolist()]
        flags: Flags = np.array(accepted, dtype=np.bool_)[which]
        return flags

    def with_attribute(self, name: str) -> list[int]:
        """Elements that have an attribute, in document order."""
        if name not in self.strings:
            return []
        wanted = self.strings.index(name)
        return [node for node, pairs in enumerate(self.attributes) if wanted in pairs and wanted in pairs[::2]]

    def named(self, *names: str) -> list[int]:
        """Elements of these names, in document order."""
        wanted = set(names)
        return [node for node, name in enumerate(self.name) if name in wanted]

    def within(self, node: int, ascending: list[int]) -> bool:
        """Whether one of the nodes (a sorted list) is a descendant of ``node``."""
        at = bisect_left(ascending, node + 1)
        return at < len(ascending) and ascending[at] <= self.end[node]

    def up(self, node: int) -> int:
        """The parent inside the same document, -1 at its top."""
        above = self.parent[node]
        return above if above >= 0 and self.type[node] != DOCUMENT else -1

    def children(self, node: int) -> list[int]:
        """Child nodes in document order (those in a shadow root first); not the document of a frame."""
        found, child, last = [], node + 1, self.end[node]
        while child <= last:
            found.append(child)
            child = self.end[child] + 1
        return found

    def inside_frame(self, node: int, frame: int) -> bool:
        """Whether a node's document is in ``frame``, or in a frame within it."""
        while node >= 0:
            node = self.parent[self.documents[bisect_right(self.documents, node) - 1]]
            if node == frame:
                return True
        return False

    def lines_of(self, first_box: int, last_box: int) -> range:
        """The pieces of text of a range of boxes, both ends included."""
        return range(bisect_left(self.line_box, first_box), bisect_left(self.line_box, last_box + 1))

    def _string(self, index: int) -> str:
        return self.strings[index] if index >= 0 else ""


def decode(raw: dict[str, Any]) -> Dom:
    """Join the documents of a raw snapshot. Its lengths are CSS pixels at any device scale (Chromium 156)."""
    dom = Dom(raw["strings"])
    frames: dict[int, int] = {}  # document -> frame element, which always comes before it
    for number, document in enumerate(raw["documents"]):
        first = len(dom.parent)
        _add_nodes(dom, document, frames.get(number, -1))
        for node, content in _pairs(document["nodes"].get("contentDocumentIndex"), first):
            frames[content] = node
        boxes, lines = _add_boxes(dom, document, first)
        _place(dom, document, frames.get(number, -1), first, boxes, lines)
        dom.rects = np.concatenate([dom.rects, boxes]) if first else boxes
        dom.line_rects = np.concatenate([dom.line_rects, lines]) if first else lines
    main = raw["documents"][0]
    dom.url, dom.title = dom._string(main["documentURL"]), dom._string(main["title"])
    dom.scroll = (float(main.get("scrollOffsetX", 0)), float(main.get("scrollOffsetY", 0)))
    dom.page_size = (float(main.get("contentWidth", 0)), float(main.get("contentHeight", 0)))
    return dom


def _pairs(sparse: dict[str, list[int]] | None, first: int) -> list[tuple[int, int]]:
    return (
        [(first + node, value) for node, value in zip(sparse["index"], sparse["value"], strict=True)] if sparse else []
    )


def _add_nodes(dom: Dom, document: dict[str, Any], frame: int) -> None:
    nodes, first, strings = document["nodes"], len(dom.parent), dom.strings
    parents: list[int] = nodes["parentIndex"]
    end = list(range(first, first + len(parents)))
    for at in range(len(parents) - 1, 0, -1):
        above = parents[at]
        if end[above] < end[at]:
            end[above] = end[at]
    dom.documents.append(first)
    dom.frame_ids.append(dom._string(document["frameId"]))
    dom.parent += [first + above for above in parents] if first else parents
    dom.parent[first] = frame
    dom.end += end
    dom.type += nodes["nodeType"]
    dom.name += [strings[name] if name >= 0 else "" for name in nodes["nodeName"]]
    dom.value += nodes["nodeValue"]
    dom.backend += nodes["backendNodeId"]
    dom.attributes += nodes["attributes"]
    for key in ("inputValue", "textValue"):
        dom.typed.update((node, dom._string(value)) for node, value in _pairs(nodes.get(key), first))
    for key, into in (
        ("inputChecked", dom.checked),
        ("optionSelected", dom.selected),
        ("isClickable", dom.clickable),
        ("shadowRootType", dom.shadowed),
    ):
        into.update(first + node for node in nodes.get(key, {}).get("index", ()))


def _add_boxes(dom: Dom, document: dict[str, Any], first: int) -> tuple[Rects, Rects]:
    layout, before = document["layout"], len(dom.box_node)
    dom.box_of += [-1] * len(document["nodes"]["parentIndex"])
    dom.box_node += [first + node for node in layout["nodeIndex"]] if first else layout["nodeIndex"]
    for box in range(len(dom.box_node) - 1, before - 1, -1):  # backwards: of a node's boxes the first stands for it
        dom.box_of[dom.box_node[box]] = box
    for box in range(before, len(dom.box_node)):
        above = dom.parent[dom.box_node[box]]
        while above >= 0 and dom.box_of[above] < 0:  # no box of its own: display: contents
            above = dom.parent[above]
        dom.box_parent.append(dom.box_of[above] if above >= 0 else -1)
    rows = [row or NO_STYLE for row in layout["styles"]]
    for column, values in zip(dom.styles, zip(*rows, strict=True), strict=True):
        column += values
    dom.box_text += layout["text"]
    dom.paint += layout["paintOrders"]
    dom.line_box += [before + box for box in document["textBoxes"]["layoutIndex"]]
    return _rects(layout["bounds"]), _rects(document["textBoxes"]["bounds"])


def _rects(bounds: list[list[float]]) -> Rects:
    rects = np.array(bounds, dtype=np.float64).reshape(-1, 4)
    rects[:, 2:] += rects[:, :2]
    return rects


def _place(dom: Dom, document: dict[str, Any], frame: int, first: int, boxes: Rects, lines: Rects) -> None:
    """Move a document's rectangles to where they are seen in the main viewport."""
    if not len(boxes):
        return
    scroll = np.array([document.get("scrollOffsetX", 0), document.get("scrollOffsetY", 0)] * 2)
    root = boxes[dom.box_of[first] - dom.box_of[dom.box_node[-len(boxes)]]]  # the document's own viewport, not scrolled
    origin = _content_origin(dom, frame, root) if frame >= 0 else np.zeros(4)
    boxes += origin - scroll
    lines += origin - scroll
    root += scroll


def _content_origin(dom: Dom, frame: int, inner: NDArray[np.float64]) -> NDArray[np.float64]:
    """Top left corner of a frame's content, twice: inside its border, and its padding taken to be even."""
    box = dom.box_of[frame]
    if box < 0:
        return np.zeros(4)
    outer = dom.rects[box]
    origin = outer[:2].copy()
    for axis, column in ((0, LEFT), (1, TOP)):
        border = pixels(dom.style(frame, column))
        rest = (outer[axis + 2] - outer[axis]) - (inner[axis + 2] - inner[axis]) - 2 * border
        origin[axis] += border + max(0.0, rest / 2)
    return np.concatenate([origin, origin])


def pixels(css: str) -> float:
    """``"3px"`` -> 3.0; 0 for anything else."""
    return float(css[:-2]) if css.endswith("px") else 0.0
