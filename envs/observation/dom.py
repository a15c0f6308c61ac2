"""Decoded snapshot of a page and its frames: one flat table of nodes.

The documents' nodes follow one another, and the parent of a frame's document is the frame element.
So no reader of the table has to know about frames or shadow roots. All rectangles are in CSS pixels
of the main viewport: scrolled, and moved by the frames they lie in.

Parents come before children, and a node's descendants in its own document are the nodes up to
``end[node]``. So most questions about subtrees are ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

STYLES = (
    "display",
    "visibility",
    "opacity",
    "pointer-events",
    "cursor",
    "position",
    "float",
    "overflow-x",  # if only one axis is cut off, the other computes to auto
    "background-color",
    "fill",
    "border-left-width",
    "border-top-width",
    "background-image",
    "backface-visibility",
    "clip",
    "clip-path",
    "transform",
    "stroke",
    "stroke-width",
    "-webkit-text-fill-color",  # the colour of a text, set or derived from its color
    "-webkit-user-modify",  # also shows documents in designMode, which no attribute does
)
"""Computed styles in a snapshot; each costs about 0.1 ms on a page of 1,000 boxes."""

SCROLLING = ("overflow-y", "direction", "flex-direction", "writing-mode", "content-visibility")
"""Further styles of a snapshot with scroll positions."""

DISPLAY, VISIBILITY, OPACITY, POINTER_EVENTS, CURSOR, POSITION, FLOAT, OVERFLOW, BACKGROUND, FILL, LEFT, TOP = range(12)
PICTURE, BACKFACE, CLIP, CLIP_PATH, TRANSFORM, STROKE, STROKE_WIDTH, TEXT_FILL, USER_MODIFY = range(12, 21)
OVERFLOW_Y, DIRECTION, FLEX_DIRECTION, WRITING_MODE, CONTENT_VISIBILITY = range(21, 26)
"""Columns of a box's styles, as in `STYLES` and `SCROLLING`."""

MAX_TRANSPARENT = 0.02
"""Maximum opacity of a transparent box: black on white then differs by five of 255 steps."""

EDITORS = frozenset({"textbox", "searchbox", "combobox"})
"""Roles of elements whose content was typed or chosen and is not words of the page."""

ELEMENT, TEXT, DOCUMENT, FRAGMENT = 1, 3, 9, 11
"""DOM node types."""

T = TypeVar("T", bound=tuple[float, ...])

Styles = tuple[str, ...]
"""Computed values of `STYLES`; empty for a box that has none of its own."""

Indices = NDArray[np.int64]

Flags = NDArray[np.bool_]

Rects = NDArray[np.float64]
"""(n, 4) left, top, right, bottom in CSS pixels of the main viewport."""


@dataclass
class Dom:
    """Decoded snapshot. Lists over nodes are indexed by node, lists over boxes (layout objects) by
    box."""

    strings: list[str]
    url: str = ""
    title: str = ""
    scroll: tuple[float, float] = (0.0, 0.0)
    """Scroll position of the main document (x, y)."""
    scale: float = 1.0
    """Number of CSS pixels of the picture for each of the page: pages on a telephone are scaled to
    fit, and people pinch."""
    scrolled_frames: set[int] = field(default_factory=set)
    """Documents of frames that are scrolled."""
    guessed: list[int] = field(default_factory=list)
    """Frames whose documents may lie elsewhere than they were placed; see
    `envs.observation.frame_geometry`."""
    page_size: tuple[float, float] = (0.0, 0.0)
    """Width and height of the main document's content."""
    views: list[tuple[float, float, float, float]] = field(default_factory=list)
    """Scroll position of each document (x, y), and the width and height of its content."""
    scrolls: Rects = field(default_factory=lambda: np.zeros((0, 4)))
    """Scroll position of each box (x, y), and the width and height of its content. It is empty
    unless the snapshot was asked for it."""
    windows: Rects = field(default_factory=lambda: np.zeros((0, 4)))
    """Left and top border width of each box, and the width and height in which its content is seen;
    as `scrolls`."""
    documents: list[int] = field(default_factory=list)
    """First node of each document, ascending."""
    frame_ids: list[str] = field(default_factory=list)
    """CDP frame id of each document."""
    urls: list[str] = field(default_factory=list)
    """Address of each document."""
    parent: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    """Last node of each node's subtree in its own document; itself for a leaf."""
    type: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    """Node names: upper case for HTML, as written for SVG, ``#text``…"""
    value: list[int] = field(default_factory=list)
    """String index of the node's value; -1 for none."""
    backend: list[int] = field(default_factory=list)
    """backendNodeId, which identifies the node as long as it lives."""
    typed: dict[int, str] = field(default_factory=dict)
    """Live value of inputs and text areas."""
    checked: set[int] = field(default_factory=set)
    selected: set[int] = field(default_factory=set)
    """Selected options."""
    mixed: set[int] = field(default_factory=set)
    """Checkboxes that are partly on (``indeterminate``). Like `invalid`, these come from the look
    that ends the settling, not from the snapshot."""
    invalid: dict[int, str] = field(default_factory=dict)
    """Validation messages of the browser, for fields that were invalid when their form was sent or
    after they were changed."""
    unlisted: set[int] = field(default_factory=set)
    """Options that their lists do not show; also from that look."""
    clickable: set[int] = field(default_factory=set)
    """Nodes with a listener for mouse buttons, and those that the engine reacts to by itself."""
    shadowed: set[int] = field(default_factory=set)
    """Nodes inside of shadow roots."""
    closed: set[int] = field(default_factory=set)
    """Nodes inside of closed shadow roots, which scripts cannot look into."""
    box_of: list[int] = field(default_factory=list)
    """Box of a node, -1 when it is not laid out."""
    box_node: list[int] = field(default_factory=list)
    box_parent: list[int] = field(default_factory=list)
    """Box of the nearest ancestor that has one, across frames; -1 at the top."""
    box_text: list[int] = field(default_factory=list)
    """String index of a text box's text as rendered (text-transform applied), else -1."""
    paint: list[int] = field(default_factory=list)
    """Paint order over all documents. A greater one is nearer to the viewer; boxes of one paint
    layer have the same."""
    stacked: set[int] = field(default_factory=set)
    """Boxes that are stacking contexts, such as all that are transformed, turned or scaled."""
    rects: Rects = field(default_factory=lambda: np.zeros((0, 4)))
    line_box: list[int] = field(default_factory=list)
    """Box of each piece of a line of text, ascending."""
    line_rects: Rects = field(default_factory=lambda: np.zeros((0, 4)))
    styles: list[Styles] = field(default_factory=list)
    """Distinct combinations of computed styles of the page. The first, which is empty, is that of
    text and documents."""
    style_at: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Index into `styles` of each box."""
    pseudo: set[int] = field(default_factory=set)
    """Pseudo-elements: what style sheets put before and after elements."""
    name_index: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """String index of each node's name."""
    attribute_names: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    attribute_values: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    attribute_nodes: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """All attributes of all elements in document order: string indices of name and value, and
    element."""
    _string_index: dict[str, int] = field(default_factory=dict)
    _by_name: dict[str, list[int]] = field(default_factory=dict)
    _by_attribute: dict[str, dict[int, int]] = field(default_factory=dict)

    def text(self, node: int) -> str:
        """Return a text node's data."""
        return self.string(self.value[node])

    def attribute(self, node: int, name: str) -> str | None:
        """Return an attribute's value, ``None`` when the element does not have it."""
        known = self._by_attribute.get(name)  # asked for five times an element
        value = (self.having(name) if known is None else known).get(node)
        return None if value is None else self.string(value)

    def having(self, name: str) -> dict[int, int]:
        """Return the elements that have an attribute, in document order, with the string index of
        its value."""
        known = self._by_attribute.get(name)
        if known is None:
            wanted, known = self.index_of(name), {}
            if wanted >= 0:
                rows = np.flatnonzero(self.attribute_names == wanted)
                known = dict(
                    zip(self.attribute_nodes[rows].tolist(), self.attribute_values[rows].tolist(), strict=True)
                )
            self._by_attribute[name] = known
        return known

    def index_of(self, text: str) -> int:
        """Return the index of a string, -2 when the snapshot does not have it."""
        if not self._string_index:
            self._string_index.update(zip(self.strings, range(len(self.strings)), strict=True))
        return self._string_index.get(text, -2)

    def intern(self, text: str) -> int:
        """Return the index of a string, which is added if the snapshot does not have it."""
        if (known := self.index_of(text)) >= 0:
            return known
        self.strings.append(text)
        self._string_index[text] = len(self.strings) - 1
        return len(self.strings) - 1

    def style(self, node: int, column: int) -> str:
        """Return a computed style, ``""`` when the node is not laid out."""
        box = self.box_of[node]
        return self.style_of(box, column) if box >= 0 else ""

    def style_of(self, box: int, column: int) -> str:
        """Return a box's computed style, ``""`` for text."""
        style = self.styles[self._style_of_box[box]]
        return style[column] if style else ""

    @cached_property
    def _style_of_box(self) -> list[int]:
        styles: list[int] = self.style_at.tolist()
        return styles

    @cached_property
    def hidden(self) -> list[bool]:
        """True for each box that is invisible by its style, or in a frame that is.

        Its children may be visible. A text is as its element is.
        """
        hidden = self.styled(VISIBILITY, lambda visibility: visibility != "visible")
        for root, after in pairwise([*self.documents[1:], len(self.parent)]):
            frame = self.box_of[self.parent[root]] if self.parent[root] >= 0 else -1
            if frame >= 0 and hidden[frame]:  # visibility is not inherited by a frame's document, but applies to it
                hidden[bisect_left(self.box_node, root) : bisect_left(self.box_node, after)] = True
        flags: list[bool] = hidden.tolist()
        return flags

    @cached_property
    def transparent(self) -> set[int]:
        """Boxes that are transparent by themselves or by an ancestor."""
        faint = self.styled(OPACITY, lambda opacity: float(opacity) <= MAX_TRANSPARENT)
        boxes = set(np.flatnonzero(faint).tolist())
        for box, above in enumerate(self.box_parent if boxes else ()):
            if above in boxes:
                boxes.add(box)
        return boxes

    @cached_property
    def hosts(self) -> list[int]:
        """Outermost elements whose text can be edited in place, ascending.

        They are contenteditable, or in a document in designMode.
        """
        editable = self.styled(USER_MODIFY, lambda modify: modify.startswith("read-write"))
        return sorted(
            node
            for box in np.flatnonzero(editable).tolist()
            for node, above in ((self.box_node[box], self.box_parent[box]),)
            if self.box_of[node] == box and (above < 0 or not editable[above])
        )

    @cached_property
    def entered(self) -> bytearray:
        """1 for each node whose text is typed or chosen in a field, so that it is not words of the
        page."""
        roles = self.having("role")
        editors = (node for node in roles if self.string(roles[node]).strip().lower() in EDITORS)
        return self.marked((*self.hosts, *editors, *self.named("TEXTAREA", "SELECT")))

    def styled(self, column: int, wanted: Callable[[str], object]) -> Flags:
        """Return True for boxes with a computed style that ``wanted`` accepts; never text or
        documents."""
        accepted = np.array([bool(style) and wanted(style[column]) for style in self.styles], dtype=np.bool_)
        flags: Flags = accepted[self.style_at]
        return flags

    def with_attribute(self, name: str) -> list[int]:
        """Return the elements that have an attribute, in document order."""
        return list(self.having(name))

    def named(self, *names: str) -> list[int]:
        """Return the elements of these names, in document order."""
        for name in names:
            if name not in self._by_name:
                wanted = self.index_of(name)
                self._by_name[name] = np.flatnonzero(self.name_index == wanted).tolist() if wanted >= 0 else []
        return sorted(node for name in names for node in self._by_name[name])

    def marked(self, roots: Iterable[int], flags: bytearray | None = None) -> bytearray:
        """Return 1 for each of these nodes and its descendants in its document.

        Args:
            flags: Flags that these are added to, in place.
        """
        flags = bytearray(len(self.parent)) if flags is None else flags
        for node in roots:
            flags[node : self.end[node] + 1] = b"\1" * (self.end[node] + 1 - node)
        return flags

    def within(self, node: int, ascending: list[int]) -> bool:
        """Return True if one of the nodes (a sorted list) is a descendant of ``node``."""
        first = bisect_left(ascending, node + 1)
        return first < len(ascending) and ascending[first] <= self.end[node]

    def up(self, node: int) -> int:
        """Return the parent inside the same document, -1 at its top."""
        above = self.parent[node]
        return above if above >= 0 and self.type[node] != DOCUMENT else -1

    def children(self, node: int) -> list[int]:
        """Return child nodes in document order (those in a shadow root first), without a frame's
        document."""
        nodes, child, last = [], node + 1, self.end[node]
        while child <= last:
            nodes.append(child)
            child = self.end[child] + 1
        return nodes

    def at_path(self, path: Sequence[int]) -> int:
        """Return the element at a path of `envs.settle.Look`.

        The answer is -1 if there is none, which means that the page has changed.
        """
        node = 0
        for place in path:
            inside = self.children(node)
            if place == -2:
                matches = [root for root in self.documents[1:] if self.parent[root] == node]
            elif place < 0:
                matches = [child for child in inside if self.type[child] == FRAGMENT]
            else:
                matches = [child for child in inside if self.type[child] == ELEMENT and child not in self.pseudo][
                    place:
                ]
            if not matches:
                return -1
            node = matches[0]
        return node

    def hides(self, node: int) -> bool:
        """Return True if scripts of its document cannot look into an element.

        It has a document of its own, or a closed shadow root.
        """
        return any(child in self.closed for child in self.children(node)) or any(
            self.parent[root] == node for root in self.documents[1:]
        )

    def stacking_around(self, box: int) -> Iterator[int]:
        """Yield the stacking contexts that a box is or lies in, from the inside outwards.

        The roots of documents are left out.
        """
        while box >= 0:
            if box in self.stacked and self.name[self.box_node[box]] not in ("#document", "HTML"):
                yield box
            box = self.box_parent[box]

    def inside_frame(self, node: int, frame: int) -> bool:
        """Return True if a node's document is in ``frame``, or in a frame within it."""
        while node >= 0:
            node = self.parent[self.documents[bisect_right(self.documents, node) - 1]]
            if node == frame:
                return True
        return False

    def lines_of(self, first_box: int, last_box: int) -> range:
        """Return the pieces of text of a range of boxes, both ends included."""
        return range(bisect_left(self.line_box, first_box), bisect_left(self.line_box, last_box + 1))

    def string(self, index: int) -> str:
        """Return a string of the snapshot; ``""`` for -1."""
        return self.strings[index] if index >= 0 else ""


def scaled(lengths: T, scale: float) -> T:
    """Return lengths multiplied by a scale."""
    return lengths if scale == 1 else type(lengths)(length * scale for length in lengths)


def pixels(css: str) -> float:
    """Return ``"3px"`` as 3.0, and anything else as 0."""
    return float(css[:-2]) if css.endswith("px") else 0.0
