"""Converts a decoded DOM snapshot into the flat node table used by rewards."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from envs.observation.dom import DOCUMENT, ELEMENT, STYLES, Dom
from envs.observation.dom import TEXT as TEXT_NODE
from envs.observation.snapshot import decode
from envs.rewards.chromiumrl.pairs import PROPERTIES
from envs.rewards.chromiumrl.records import TEXT, DomNode, DomSnapshot

CAPTURED = (*STYLES, *(name for name in PROPERTIES if name not in STYLES))
"""``computedStyles`` of a capture, which knows all 19 properties; those of observations first,
because their reader takes it apart."""

_SHADOW_ROOT = 11
_CHECKED = ("checkbox", "radio")


def snapshot_of_capture(raw: dict[str, Any], document: str = "") -> DomSnapshot:
    """Convert a raw ``DOMSnapshot.captureSnapshot`` into a table.

    Args:
        raw: The protocol's answer, with paint order and the styles that are `CAPTURED`.
        document: Id of the document (loader id); empty when unknown.
    """
    narrow = {**raw, "documents": []}
    rows: list[list[int]] = []
    for one in raw["documents"]:
        rows += one["layout"]["styles"]
        layout = {**one["layout"], "styles": [row[: len(STYLES)] for row in one["layout"]["styles"]]}
        narrow["documents"].append({**one, "layout": layout})
    return _Converter(decode(copy.deepcopy(narrow)), rows).snapshot(document)


class _Converter:
    """Walks the nodes once; parents come before children."""

    def __init__(self, dom: Dom, rows: Sequence[Sequence[int]]) -> None:
        self.dom = dom
        self.rows = rows
        self.columns = {name: position for position, name in enumerate(CAPTURED) if name in PROPERTIES}
        self.attributes: dict[int, dict[str, str]] = {}
        for name, value, node in zip(
            dom.attribute_names.tolist(), dom.attribute_values.tolist(), dom.attribute_nodes.tolist(), strict=True
        ):
            self.attributes.setdefault(node, {})[dom.string(name)] = dom.string(value)
        self.row_of: dict[int, int] = {-1: -1}  # node of the snapshot -> row of the table, of the nearest kept node
        self.host: dict[int, int] = {}  # node in a shadow root -> its host
        self.nodes: list[DomNode] = []
        self.counts: dict[tuple[tuple[str, ...], str, str], int] = {}

    def snapshot(self, document: str) -> DomSnapshot:
        dom, left_out = self.dom, set[int]()
        for node, kind in enumerate(dom.type):
            above = dom.parent[node]
            if above in left_out or node in dom.pseudo:
                left_out.add(node)
            elif kind in (ELEMENT, TEXT_NODE):
                self._add(node, self.row_of[above])
            elif kind in (DOCUMENT, _SHADOW_ROOT):
                self.row_of[node] = self.row_of[above]
        return DomSnapshot(url=dom.url, document=document, nodes=tuple(self.nodes))

    def _add(self, node: int, parent: int) -> None:
        dom = self.dom
        tag = TEXT if dom.type[node] == TEXT_NODE else dom.name[node].lower()
        scope, base = self._place(node, parent)
        step = "text()" if tag == TEXT else tag
        number = self.counts[scope, base, step] = self.counts.get((scope, base, step), 0) + 1
        box, attributes = dom.box_of[node], self.attributes.get(node, {})
        left, top, right, bottom = dom.rects[box].tolist() if box >= 0 else (0.0, 0.0, 0.0, 0.0)
        self.row_of[node] = len(self.nodes)
        self.nodes.append(
            DomNode(
                tag=tag,
                parent=parent,
                xpath=f"{base}/{step}[{number}]",
                scope=scope,
                attributes=attributes,
                text=dom.text(node) if tag == TEXT else "",
                state=self._state(node, tag, attributes),
                box=(left, top, right - left, bottom - top) if box >= 0 else None,
                scroll=self._scroll(node, box),
                styles=self._styles(box) if tag != TEXT else {},
                identity=dom.backend[node],
            )
        )

    def _place(self, node: int, parent: int) -> tuple[tuple[str, ...], str]:
        """Scope, and path of what it is numbered in."""
        dom, above = self.dom, self.dom.parent[node]
        if parent < 0:
            return (), ""
        over = self.nodes[parent]
        if dom.type[above] == DOCUMENT:
            return (*over.scope, f"frame:{over.xpath}"), ""
        if node in dom.shadowed and (above not in dom.shadowed or dom.type[above] == _SHADOW_ROOT):
            self.host[node] = parent
            return (*over.scope, f"shadow:{over.xpath}"), ""
        if node not in dom.shadowed and above in self.host:  # shown in a slot, but a child of the host
            host = self.nodes[self.host[above]]
            return host.scope, host.xpath
        if above in self.host:
            self.host[node] = self.host[above]
        return over.scope, over.xpath

    def _state(self, node: int, tag: str, attributes: dict[str, str]) -> dict[str, str]:
        """Live form state; what is typed into a password field is only known by its length."""
        dom = self.dom
        if tag == "option":
            return {"selected": str(node in dom.selected).lower()}
        kind = attributes.get("type", "").lower()
        if tag == "input" and kind in _CHECKED:
            return {"checked": str(node in dom.checked).lower()}
        if node not in dom.typed:
            return {}
        return {"value": "•" * len(dom.typed[node]) if kind == "password" else dom.typed[node]}

    def _scroll(self, node: int, box: int) -> tuple[float, float]:
        """A root element's; that of scrolling elements is not in a snapshot."""
        dom, above = self.dom, self.dom.parent[node]
        if dom.type[node] != ELEMENT or above < 0 or dom.type[above] != DOCUMENT:
            return (0.0, 0.0)
        if above == 0:
            return dom.scroll
        frame = dom.box_of[above]
        if box < 0 or frame < 0:
            return (0.0, 0.0)
        x, y = (dom.rects[frame][:2] - dom.rects[box][:2]).tolist()
        return (x, y)

    def _styles(self, box: int) -> dict[str, str]:
        if box < 0 or not self.rows[box]:
            return {}
        row = self.rows[box]
        return {name: self.dom.string(row[position]) for name, position in self.columns.items() if row[position] >= 0}
