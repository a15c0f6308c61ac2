"""A page as a flat table of DOM nodes, for similarity and step diffs."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from envs.types.record import Record

TEXT = "#text"
"""Tag of text nodes; only they have text."""

Box = tuple[float, float, float, float]
"""Left, top, width, height in CSS pixels of the main viewport."""


class DomNode(Record):
    """An element or a text node."""

    tag: str = Field(min_length=1)
    """Lower case; `TEXT` for text."""
    parent: int = Field(default=-1, ge=-1)
    """Index of the parent in the table, across frames and shadow roots; -1 at the top."""
    xpath: str
    """Inside its own document or shadow root, every segment numbered:
    ``/html[1]/body[1]/div[2]``."""
    scope: tuple[str, ...] = ()
    """The frames and shadow hosts it lies in, outermost first: ``frame:XPATH`` or ``shadow:XPATH``;
    empty in the main document."""
    attributes: dict[str, str] = Field(default_factory=dict)
    text: str = ""
    state: dict[str, str] = Field(default_factory=dict)
    """Live form state, where known: ``value``, ``checked``, ``selected`` (the latter ``true`` or
    ``false``)."""
    box: Box | None = None
    """``None`` when it is not laid out."""
    scroll: tuple[float, float] = (0.0, 0.0)
    """Scroll of its content, CSS pixels; a document's scroll is its root element's."""
    styles: dict[str, str] = Field(default_factory=dict)
    """Computed styles by property; a text node has those of its parent."""
    identity: int | None = None
    """backendNodeId: the same node in two snapshots of one document."""


class DomSnapshot(Record):
    """A page with its frames and shadow roots."""

    url: str = ""
    document: str = ""
    """Id of the document (a loader id, for example); empty when unknown."""
    nodes: tuple[DomNode, ...] = ()
    """Parents before children."""
    cut: bool = False
    """The page has more nodes than are in the table, which has the first of them."""

    @model_validator(mode="after")
    def _parents_come_first(self) -> Self:
        for index, node in enumerate(self.nodes):
            if node.parent >= index:
                raise ValueError(f"node {index} ({node.xpath}): parent {node.parent} must come before it")
        return self


def page_offsets(snapshot: DomSnapshot) -> list[tuple[float, float]]:
    """Return the offset of each node's box that undoes scrolling.

    It is the sum of the scrolls above a node, and for a root element its own. A ``position: fixed``
    node does not scroll with its document.
    """
    offsets: list[tuple[float, float]] = []
    around: list[tuple[float, float]] = []  # offset of the frame that a node's document lies in
    roots: list[bool] = []
    for node in snapshot.nodes:
        above = snapshot.nodes[node.parent] if node.parent >= 0 else None
        enters = above is not None and node.scope != above.scope and node.scope[-1:] and node.scope[-1][:6] == "frame:"
        roots.append(above is None or bool(enters))
        x, y = offsets[node.parent] if above is not None else (0.0, 0.0)
        around.append(around[node.parent] if above is not None and not enters else (x, y))
        scrolled = node.scroll if roots[-1] else (0.0, 0.0) if above is None or roots[node.parent] else above.scroll
        fixed = node.tag != TEXT and node.styles.get("position") == "fixed"
        offsets.append(around[-1] if fixed else (x + scrolled[0], y + scrolled[1]))
    return offsets


def page_boxes(snapshot: DomSnapshot) -> list[Box | None]:
    """The boxes where they would be with nothing scrolled."""
    return [
        None if node.box is None else (node.box[0] + x, node.box[1] + y, node.box[2], node.box[3])
        for node, (x, y) in zip(snapshot.nodes, page_offsets(snapshot), strict=True)
    ]
