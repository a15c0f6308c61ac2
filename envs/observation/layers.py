"""Layers that lie on top of a page: menus, dialogs, popovers, notices, fixed bars.

A person looks at them first, and pages often add them at their end. So where there is no room for
all elements, a layer goes before what lies below it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property

import numpy as np

from envs.observation.dom import POSITION, Flags, Indices, Rects
from envs.observation.occlusion import Scene
from envs.observation.roles import Kinds

POPUP_ROLES = frozenset({"dialog", "alertdialog", "menu", "listbox", "tooltip", "alert", "status"})
"""Roles of elements that open over a page, where they are taken out of the flow."""

WHOLE = 0.8
"""Share of a control that must be painted over for it to be covered. A mark in the corner of a card
covers less."""


MIN_AREA = 1_000.0
"""Minimum area of a layer in square CSS pixels: a menu or notice with a single word in it. A mark
on a card or the cross that closes one is smaller."""


class Layers:
    """Finds the layer over the page that each box is in."""

    def __init__(self, kinds: Kinds, scene: Scene) -> None:
        self._kinds, self._scene, self._dom = kinds, scene, scene.dom
        self._controls = list(kinds.kind)

    def order(self, box: int) -> int:
        """Return the paint order of the innermost layer that a box is in, -1 if it is in none."""
        return self._orders[box] if box >= 0 else -1

    @cached_property
    def _orders(self) -> list[int]:
        dom = self._dom
        fixed, *others = (dom.styled(POSITION, value.__eq__) for value in ("fixed", "absolute", "sticky"))
        orders = np.full(len(dom.box_node), -1)
        frames = {bisect_left(dom.box_node, root): dom.box_of[dom.parent[root]] for root in dom.documents[1:]}
        for box in sorted({*np.flatnonzero(fixed | others[0] | others[1]).tolist(), *frames}):  # the outer ones first
            if box < len(orders):
                node = dom.box_node[box]
                inside = slice(box, bisect_right(dom.box_node, dom.end[node]))
                if box in frames:
                    orders[inside] = orders[frames[box]] if frames[box] >= 0 else -1
                elif self._in_view(box) and (fixed[box] or self._is_over(box, node)):
                    orders[inside] = dom.paint[box]
        return orders.tolist()

    def _in_view(self, box: int) -> bool:
        low = np.maximum(self._dom.rects[box, :2], self._scene.clips[box, :2])
        high = np.minimum(self._dom.rects[box, 2:], self._scene.clips[box, 2:])
        return bool((low < high).all())

    def _is_over(self, box: int, node: int) -> bool:
        """Return True if a box that scrolls with the page lies over more than its own context."""
        dom = self._dom
        if not self._count(node):
            return False
        if dom.name[node] == "DIALOG" or self._kinds.roles.get(node) in POPUP_ROLES:
            return True
        left, top, right, bottom = dom.rects[box].tolist()
        if (right - left) * (bottom - top) < MIN_AREA:
            return False
        return (box in dom.stacked and self._is_portal(box, node)) or self._covers(box, node)

    def _count(self, node: int) -> int:
        """Return the number of controls that are an element or in it."""
        return bisect_right(self._controls, self._dom.end[node]) - bisect_left(self._controls, node)

    def _is_portal(self, box: int, node: int) -> bool:
        """Return True if a child of the page's body holds this and no other control."""
        dom = self._dom
        while dom.box_parent[box] >= 0 and dom.name[dom.box_node[dom.box_parent[box]]] != "BODY":
            box = dom.box_parent[box]
        return self._count(dom.box_node[box]) == self._count(node)

    def _covers(self, box: int, node: int) -> bool:
        """Return True if a box is painted over words or controls outside of its parent, or over a
        whole control."""
        dom, (below, paint, rects, controls) = self._dom, self._content
        own, parent = dom.rects[box], dom.box_node[dom.box_parent[box]] if dom.box_parent[box] >= 0 else 0
        size = np.maximum(0.0, np.minimum(rects[:, 2:], own[2:]) - np.maximum(rects[:, :2], own[:2])).prod(axis=1)
        over = (size > 0) & (paint < dom.paint[box]) & ~self._inside(below, node)
        whole = over & controls & (size >= WHOLE * (rects[:, 2:] - rects[:, :2]).prod(axis=1))
        beyond = over if dom.name[parent] in ("BODY", "HTML") else over & ~self._inside(below, parent)
        return bool(whole.any() or beyond.any())

    def _inside(self, boxes: Indices, node: int) -> Flags:
        first, end = bisect_left(self._dom.box_node, node), bisect_right(self._dom.box_node, self._dom.end[node])
        return (first <= boxes) & (boxes < end)

    @cached_property
    def _content(self) -> tuple[Indices, Indices, Rects, Flags]:
        """Boxes of words and controls in view, their paint order and rectangles, and True for
        controls."""
        dom = self._dom
        controls: Flags = np.zeros(len(dom.box_node), dtype=np.bool_)
        controls[[box for node in self._controls if (box := dom.box_of[node]) >= 0]] = True
        boxes: Indices = np.unique(self._scene.box)
        boxes = boxes[controls[boxes] | (dom.style_at[boxes] == 0)]
        return boxes, np.array(dom.paint, dtype=np.int64)[boxes], dom.rects[boxes], controls[boxes]
