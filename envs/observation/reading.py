"""One look at a page: its observation, and what an action needs to know of each element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from envs.observation import marks
from envs.observation.dom import Dom
from envs.observation.elements import Found
from envs.observation.hashes import dom_hash
from envs.observation.links import foreign_scheme
from envs.observation.roles import Kinds
from envs.types import Element, Observation


@dataclass(frozen=True, slots=True)
class Handle:
    """What an action needs to know about an element; stays outside of the page and of the observation."""

    index: int
    name: str
    """Semantic id."""
    tag: str
    text: str
    point: tuple[float, float] | None
    """A whole pixel that hits the element and nothing above it, in CSS pixels of the page from where what is seen begins, as input events have them;
    ``None`` when it has to be scrolled to."""
    options: tuple[str, ...] | None
    """Labels of a drop-down list or list box."""
    backend_node_id: int
    """Good for ``DOM.focus``, ``DOM.scrollIntoViewIfNeeded``, ``DOM.setFileInputFiles``… as long as the node lives."""
    disabled: bool = False


class Handles(Mapping[int, Handle]):
    """The handles of a page, each made when it is asked for: an action needs one of fifty."""

    def __init__(self, dom: Dom, found: Sequence[Found], elements: Sequence[Element]) -> None:
        """What was ``found``, and the elements that were made of it, in order."""
        self._dom, self._found, self._elements = dom, found, elements

    def __getitem__(self, index: int) -> Handle:
        if not 1 <= index <= len(self._found):
            raise KeyError(index)
        at, dom, element = self._found[index - 1], self._dom, self._elements[index - 1]
        options = at.options if dom.name[at.node] == "SELECT" else None
        backend = dom.backend[at.node]
        return Handle(element.index, element.id, at.kind, at.label, at.point, options, backend, at.disabled)

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, len(self._found) + 1))

    def __len__(self) -> int:
        return len(self._found)


@dataclass(frozen=True)
class Reading:
    """One look at a page."""

    observation: Observation
    handles: Mapping[int, Handle]
    """By the elements' numbers."""
    kinds: Kinds = field(repr=False, compare=False)
    """The snapshot that it was made of."""
    document: str = ""
    """Which document is shown: another one after a navigation, the same after ``pushState``."""
    frames: tuple[str, ...] = ()
    """Addresses of the frames that can be seen."""

    @property
    def scale(self) -> float:
        """`Dom.scale` of the page."""
        return self.kinds.dom.scale

    @property
    def scroll(self) -> tuple[float, float]:
        """How far the page is scrolled, in CSS pixels of the page; the observation's are those of the picture."""
        return self.kinds.dom.scroll

    @cached_property
    def dom_hash(self) -> str:
        """Of structure, text and form state; see `envs.observation.hashes`. Made when it is asked for: few steps need it."""
        return dom_hash(self.kinds)

    def holds(self, element: int, node: int) -> bool:
        """Whether a node is an element or in it, in one document (both by backendNodeId); false too if there is no such node."""
        dom = self.kinds.dom
        try:
            own, at = dom.backend.index(element), dom.backend.index(node)
        except ValueError:
            return False
        return own <= at <= dom.end[own]

    def listed_at(self, point: tuple[float, float]) -> int | None:
        """The smallest listed element at a point of the picture (backendNodeId), ``None`` where there is none."""
        x, y = point
        at = [
            (width * height, element.index)
            for element in self.observation.elements
            for left, top, width, height in (element.box,)
            if left <= x < left + width and top <= y < top + height
        ]
        return self.handles[min(at)[1]].backend_node_id if at else None

    def foreign_scheme(self, node: int) -> str:
        """`envs.observation.links.foreign_scheme` of a node (backendNodeId)."""
        dom = self.kinds.dom
        return foreign_scheme(dom, dom.backend.index(node)) if node in dom.backend else ""

    def marked(self, screenshot: bytes) -> bytes:
        """The screenshot as JPEG with the elements' boxes and numbers drawn."""
        return marks.draw_scaled(screenshot, self.observation.elements, self.observation.viewport)
