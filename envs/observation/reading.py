"""Result of one look at a page: its observation, and a handle of each element for actions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from envs.observation import marks
from envs.observation.dom import Dom
from envs.observation.elements import Found
from envs.observation.hashes import dom_hash
from envs.observation.roles import Kinds
from envs.types import Element, Observation

OPENED = frozenset({"http", "https", "javascript", "data", "blob", "about"})
"""Schemes of links that open something in this browser or make it show a message. Those of other
programs (mail, telephone, an app) open nothing here."""

_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*):", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Handle:
    """Data of an element that an action needs; it is not part of the page or the observation."""

    index: int
    semantic_id: str
    tag: str
    text: str
    point: tuple[float, float] | None
    """Whole pixel that hits the element and nothing above it, ``None`` when it has to be scrolled
    to. Its unit is CSS pixels of the page from the top left of the view, as in input events."""
    options: tuple[str, ...] | None
    """Labels of the options of a drop-down list or list box."""
    backend_node_id: int
    """Argument of ``DOM.focus``, ``DOM.scrollIntoViewIfNeeded``, ``DOM.setFileInputFiles``… It is
    valid as long as the node lives."""
    disabled: bool = False


class Handles(Mapping[int, Handle]):
    """Handles of a page's elements. Each is made when it is asked for, as an action needs one of
    fifty."""

    def __init__(self, dom: Dom, items: Sequence[Found], elements: Sequence[Element]) -> None:
        """Hold the ``items`` of a page, and the elements that were made of them, in order."""
        self._dom, self._items, self._elements = dom, items, elements

    def __getitem__(self, index: int) -> Handle:
        if not 1 <= index <= len(self._items):
            raise KeyError(index)
        item, dom, element = self._items[index - 1], self._dom, self._elements[index - 1]
        options = item.options if dom.name[item.node] == "SELECT" else None
        backend = dom.backend[item.node]
        return Handle(element.index, element.id, item.kind, item.label, item.point, options, backend, item.disabled)

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, len(self._items) + 1))

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True)
class Reading:
    """Result of one look at a page."""

    observation: Observation
    handles: Mapping[int, Handle]
    """Handles by the elements' numbers."""
    kinds: Kinds = field(repr=False, compare=False)
    """Snapshot that the observation was made of, with its interactive elements."""
    viewport: tuple[float, float]
    """Width and height of the visible part, in CSS pixels of the page; the observation has them in
    those of the picture."""
    document: str = ""
    """Identity of the shown document; a navigation changes it, ``pushState`` does not."""
    frames: tuple[str, ...] = ()
    """Addresses of the frames that can be seen."""

    @property
    def scale(self) -> float:
        """Ratio of CSS pixels of the picture to those of the page (`Dom.scale`)."""
        return self.kinds.dom.scale

    @property
    def scroll(self) -> tuple[float, float]:
        """Scroll position of the page in CSS pixels of the page; the observation has it in those of
        the picture."""
        return self.kinds.dom.scroll

    @cached_property
    def dom_hash(self) -> str:
        """Hash of structure, text and form state; see `envs.observation.hashes`.

        It is computed when it is asked for, as few steps need it.
        """
        return dom_hash(self.kinds)

    def holds(self, element: int, node: int) -> bool:
        """Return True if a node is an element or in it, in one document (both by backendNodeId).

        If there is no such node, the answer is False.
        """
        dom = self.kinds.dom
        try:
            own, inner = dom.backend.index(element), dom.backend.index(node)
        except ValueError:
            return False
        return own <= inner <= dom.end[own]

    def listed_at(self, point: tuple[float, float]) -> int | None:
        """Return the backendNodeId of the smallest listed element at a point of the picture, or
        ``None``."""
        x, y = point
        candidates = [
            (width * height, element.index)
            for element in self.observation.elements
            for left, top, width, height in (element.box,)
            if left <= x < left + width and top <= y < top + height
        ]
        return self.handles[min(candidates)[1]].backend_node_id if candidates else None

    def foreign_scheme(self, node: int) -> str:
        """Return `foreign_scheme` of a node (backendNodeId)."""
        dom = self.kinds.dom
        return foreign_scheme(dom, dom.backend.index(node)) if node in dom.backend else ""

    def marked(self, screenshot: bytes) -> bytes:
        """Return the screenshot as JPEG with the elements' boxes and numbers drawn."""
        return marks.draw_scaled(screenshot, self.observation.elements, self.observation.viewport)


def foreign_scheme(dom: Dom, node: int) -> str:
    """Return the scheme of a node's link if this browser has nothing to open it, else ``""``.

    The link may be the node or lie around it. Syntax of schemes:
    https://url.spec.whatwg.org/#scheme-start-state.
    """
    links = dom.having("href")
    while node >= 0 and node not in links:
        node = dom.up(node)
    scheme = _SCHEME.match(dom.string(links[node])) if node >= 0 else None
    named = scheme[1].lower() if scheme else ""
    return "" if named in OPENED else named
