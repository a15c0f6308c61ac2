"""Semantic ids of elements: ``nearest_named_ancestor.slug``, given once and kept.

An element is known by its node, not by its place or label. It keeps its id while the node lives,
whatever is inserted, removed or renamed around it. The second of two equal names gets a number, and
keeps that too. When a page draws an element anew (another node of the same name, the old one gone),
the new node takes the id over: for the reader it is the same thing.

The ids are kept outside of the page.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from envs.observation.dom import Dom
from envs.observation.roles import Kinds
from envs.observation.text_utils import rendered, slug

Key = tuple[str, int]
"""Identity of a node: its document and its backendNodeId."""

NAMED_TAGS = frozenset(
    {"FORM", "NAV", "MAIN", "HEADER", "FOOTER", "ASIDE", "DIALOG", "SECTION", "ARTICLE", "FIELDSET", "TABLE", "DETAILS"}
)
"""Elements that are named by their tag when they have no better name."""

ROW_TAGS = frozenset({"LI", "TR"})
"""Elements that are named by their heading or first cell, or not at all."""

NAMED_ROLES = frozenset(
    {"dialog", "alertdialog", "navigation", "main", "form", "search", "region", "tablist", "menu", "menubar"}
    | {"toolbar", "listbox", "radiogroup", "tree", "grid"}
)

HEADINGS = ("H1", "H2", "H3", "H4", "H5", "H6", "LEGEND", "CAPTION", "SUMMARY", "TH")


@dataclass
class IdBook:
    """Semantic ids of one episode."""

    _id_of: dict[Key, str] = field(default_factory=dict)
    _holder: dict[str, Key] = field(default_factory=dict)

    def assign(self, wanted: Iterable[tuple[Key, Callable[[], str]]], lives: Callable[[Key], bool]) -> list[str]:
        """Return the id of each (key, name function): the one it has or a new one.

        A new id is the name, or the name with the first free number from 2.

        Args:
            lives: True for a key whose node is still in a document. The id of one that is not may
                be taken over.
        """
        return [self._id_of.get(key) or self._give(key, name(), lives) for key, name in wanted]

    def _give(self, key: Key, name: str, lives: Callable[[Key], bool]) -> str:
        number, tried = 1, name
        while (holder := self._holder.get(tried)) is not None and lives(holder):
            number += 1
            tried = f"{name}_{number}"
        if holder is not None:
            del self._id_of[holder]
        self._holder[tried], self._id_of[key] = key, tried
        return tried


@dataclass
class Places:
    """Names of nodes by their place in a page."""

    dom: Dom
    kinds: Kinds
    _documents: list[str] = field(default_factory=list)
    _headings: list[int] = field(default_factory=list)
    _containers: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dom = self.dom
        origin = "/".join(urlsplit(dom.url)[:2])
        # A node's number is unique in its process only, and a page of another site may come from
        # another process.
        self._documents = [
            f"{origin}#{frame}#{dom.backend[root]}" for frame, root in zip(dom.frame_ids, dom.documents, strict=True)
        ]
        self._headings = dom.named(*HEADINGS)

    def key(self, node: int) -> Key:
        """Return the key that identifies a node over the steps of an episode."""
        return self._documents[bisect_right(self.dom.documents, node) - 1], self.dom.backend[node]

    def keys(self) -> set[Key]:
        """Return the keys of all nodes."""
        ends = [*self.dom.documents[1:], len(self.dom.parent)]
        return {
            (document, backend)
            for document, first, end in zip(self._documents, self.dom.documents, ends, strict=True)
            for backend in self.dom.backend[first:end]
        }

    def name(self, node: int, kind: str, label: str) -> str:
        """Return ``nearest_named_ancestor.slug``, or the slug alone below no named ancestor."""
        dom = self.dom
        own = (
            slug(label) or slug(dom.attribute(node, "id") or dom.attribute(node, "name") or "") or slug(kind) or "item"
        )
        ancestor = dom.parent[node]
        while ancestor >= 0:
            if ancestor not in self._containers:
                self._containers[ancestor] = self._container(ancestor)
            if self._containers[ancestor] not in ("", own):
                return f"{self._containers[ancestor]}.{own}"
            ancestor = dom.parent[ancestor]
        return own

    def _container(self, node: int) -> str:
        """Return the name of an element that groups others, ``""`` for any other."""
        dom, tag = self.dom, self.dom.name[node]
        role = self.kinds.roles.get(node, "")
        if tag in ("HTML", "BODY"):
            return ""
        own = slug(dom.attribute(node, "aria-label") or "")
        if own or not (tag in NAMED_TAGS or tag in ROW_TAGS or role in NAMED_ROLES):
            return own or self._plain_id(node)
        heading = slug(self._heading(node))
        if heading or tag in ROW_TAGS:
            return heading
        return self._plain_id(node) or slug(dom.attribute(node, "name") or "") or slug(role or tag)

    def _plain_id(self, node: int) -> str:
        """Return the ``id`` attribute where a person seems to have written it: no digits."""
        written = self.dom.attribute(node, "id") or ""
        return slug(written) if written.replace("-", "").replace("_", "").isalpha() else ""

    def _heading(self, node: int) -> str:
        first = bisect_left(self._headings, node + 1)
        if first < len(self._headings) and self._headings[first] <= self.dom.end[node]:
            return rendered(self.dom, self._headings[first])
        cell = next((child for child in self.dom.children(node) if self.dom.name[child] == "TD"), None)
        return rendered(self.dom, cell) if cell is not None else ""
