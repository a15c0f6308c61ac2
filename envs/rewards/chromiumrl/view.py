"""The part of a snapshot that a mode compares.

``chromiumrl`` sees elements and text nodes of the main document without its shadow roots, boxes of
the viewport, no live form state; the text of an element is that of its subtree. ``native`` sees
elements of all frames and shadow roots, boxes as if nothing were scrolled, and live form state; the
text of an element is its own, or what is typed into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from envs.rewards.chromiumrl.records import TEXT, Box, DomNode, DomSnapshot, page_boxes

Mode = Literal["chromiumrl", "native"]

UNREAD = ("script", "style", "noscript", "template")
"""Elements whose text is not the page's."""

Path = tuple[str, ...]
"""Path of a node: its scope, then the segments of its xpath."""


@dataclass(slots=True)
class View:
    """The compared nodes of a snapshot, by their position here."""

    nodes: list[DomNode] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """Position here; -1 at the top."""
    texts: list[str] = field(default_factory=list)
    boxes: list[Box | None] = field(default_factory=list)
    styles: list[dict[str, str]] = field(default_factory=list)
    attributes: list[dict[str, str]] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    """The xpaths as written; what a string prefix is tested on."""
    leaves: list[bool] = field(default_factory=list)
    """True for nodes without child elements."""
    deep_texts: list[str] = field(default_factory=list)
    """Texts of the subtrees."""


def squeeze(text: str) -> str:
    """White space as a browser shows it."""
    return " ".join(text.split())


def view(snapshot: DomSnapshot, mode: Mode) -> View:
    """Return the nodes that a mode compares, without blank text and the text of scripts and
    styles."""
    native = mode == "native"
    nodes = snapshot.nodes
    read = _read(nodes)
    own, deep = _texts(nodes, read, across=native)
    boxes = page_boxes(snapshot) if native else [node.box for node in nodes]
    parents_of_elements = {node.parent for node in nodes if node.tag != TEXT}
    seen, row_of = View(), {-1: -1}
    for index, node in enumerate(nodes):
        if not read[index] or (native and node.tag == TEXT) or (not native and node.scope):
            continue
        row_of[index] = len(seen.nodes)
        seen.nodes.append(node)
        seen.parents.append(row_of.get(node.parent, -1))
        typed = node.state.get("value") if native else None
        seen.texts.append(deep[index] if not native else own[index] if typed is None else squeeze(typed))
        seen.deep_texts.append(deep[index])
        seen.boxes.append(boxes[index])
        seen.styles.append(nodes[node.parent].styles if node.tag == TEXT and node.parent >= 0 else node.styles)
        live = {f"live:{name}": value for name, value in node.state.items() if name != "value"} if native else {}
        seen.attributes.append({**node.attributes, **live})
        seen.paths.append((*node.scope, *node.xpath.strip("/").split("/")))
        seen.strings.append(node.xpath)
        seen.leaves.append(index not in parents_of_elements)
    return seen


def _read(nodes: Sequence[DomNode]) -> list[bool]:
    """Return True for each node that counts: no blank text, nothing inside scripts and styles."""
    return [
        node.tag != TEXT or bool(node.text.strip() and (node.parent < 0 or nodes[node.parent].tag not in UNREAD))
        for node in nodes
    ]


def _texts(nodes: Sequence[DomNode], read: Sequence[bool], across: bool) -> tuple[list[str], list[str]]:
    """Return for each node the text of its own text nodes and that of its subtree, with white space
    squeezed.

    Args:
        nodes: Rows of the table.
        read: True for the rows whose text counts.
        across: True counts the text of frames and shadow roots as their hosts' too.
    """
    own: list[list[str]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        if node.tag == TEXT and read[index]:
            own[index].append(node.text)
            if node.parent >= 0:
                own[node.parent].append(node.text)
    deep: list[list[str]] = [own[row] if node.tag == TEXT else [] for row, node in enumerate(nodes)]
    for index in range(
        len(nodes) - 1, 0, -1
    ):  # a node's children come after it: theirs is complete, and collected last to first
        parent = nodes[index].parent
        if parent >= 0 and deep[index] and (across or nodes[parent].scope == nodes[index].scope):
            deep[parent].append(" ".join(reversed(deep[index])))
    return [squeeze(" ".join(parts)) for parts in own], [squeeze(" ".join(reversed(parts))) for parts in deep]
