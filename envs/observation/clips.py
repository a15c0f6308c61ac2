"""Clips: what scroll containers and frames leave visible of each box."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from itertools import chain

import numpy as np

from envs.observation.dom import DISPLAY, DOCUMENT, LEFT, OVERFLOW, POSITION, TOP, Dom, Rects, pixels

Clip = tuple[float, float, float, float]
"""Left, top, right, bottom in CSS pixels of the main viewport."""

NO_CLIP: Clip = (-1e9, -1e9, 1e9, 1e9)


def clips_of(dom: Dom, modal: int = -1) -> Rects:
    """Return the clip that the scroll containers and frames around each box leave visible.

    A box is cut by its ancestors in the chain of containing blocks. An absolute box escapes the
    containers that are not positioned. Fixed boxes and those of the top layer (an open popover, a
    modal dialog, the options of a list that the page draws) escape all containers of their
    document.
    """
    cutting = containers(dom)
    if not cutting:
        return np.tile(np.array(NO_CLIP), (len(dom.box_node), 1))
    taken_out = dom.styled(POSITION, lambda position: position in ("absolute", "fixed"))
    on_top = _on_top(dom, modal)
    if len(dom.documents) == 1 and not taken_out.any() and not on_top:
        return nested_clips(dom, cutting)
    return chained_clips(dom, cutting, on_top)


def _on_top(dom: Dom, modal: int) -> set[int]:
    """Return the boxes of the top layer.

    An open list that the page draws is in it. The snapshot does not mark the list's own box, but
    paints its content later.
    """
    boxes = {dom.box_of[node] for node in (*dom.with_attribute("popover"), *((modal,) if modal >= 0 else ()))}
    for node in dom.named("SELECT"):
        own, inside = dom.box_of[node], map(dom.box_of.__getitem__, dom.children(node))
        boxes.update(box for box in inside if own >= 0 and box >= 0 and dom.paint[box] > dom.paint[own])
    return boxes - {-1}


def chained_clips(dom: Dom, cutting: dict[int, Clip], on_top: Container[int] = ()) -> Rects:
    """Compute `clips_of` box by box, from the top down."""
    static = dom.styled(POSITION, lambda position: position == "static").tolist()
    own: list[Clip] = []
    flow: list[Clip] = []  # for children in flow
    positioned: list[Clip] = []  # for absolute descendants
    pinned: list[Clip] = []  # for fixed descendants
    absolute, fixed = (
        set(np.flatnonzero(dom.styled(POSITION, value.__eq__)).tolist()) for value in ("absolute", "fixed")
    )
    for box, above in enumerate(dom.box_parent):
        document = dom.type[dom.box_node[box]] == DOCUMENT
        if above < 0:
            mine = base = NO_CLIP
        else:
            base = flow[above] if document else pinned[above]
            mine = (
                base
                if box in on_top
                else positioned[above]
                if box in absolute
                else base
                if box in fixed
                else flow[above]
            )
        inner = cut(mine, cutting[box]) if box in cutting else mine
        own.append(mine)
        flow.append(inner)
        positioned.append(positioned[above] if static[box] and above >= 0 else inner)
        pinned.append(base)
    return np.fromiter(chain.from_iterable(own), np.float64, 4 * len(own)).reshape(-1, 4)


def nested_clips(dom: Dom, cutting: dict[int, Clip]) -> Rects:
    """Compute `clips_of` where every box is in the flow: a container cuts off all that is in it."""
    clips = np.tile(np.array(NO_CLIP), (len(dom.box_node), 1))
    for box, edges in cutting.items():  # the outer ones first
        clips[box + 1 : bisect_right(dom.box_node, dom.end[dom.box_node[box]])] = cut(clips[box].tolist(), edges)
    return clips


def containers(dom: Dom) -> dict[int, Clip]:
    """Return the padding boxes of frames and scroll containers, which cut off their content.

    The page's root and body are left out: the viewport is their padding box.
    """
    cuts = dom.styled(OVERFLOW, lambda overflow: overflow != "visible")
    cuts &= ~dom.styled(DISPLAY, lambda display: display == "inline")
    boxes = np.flatnonzero(cuts).tolist()
    holding = set(dom.box_parent) if boxes else set()
    boxes = [box for box in boxes if box in holding]
    boxes = [box for box in boxes if dom.name[dom.box_node[box]] not in ("HTML", "BODY")]
    boxes += [dom.box_of[dom.parent[document]] for document in dom.documents[1:]]
    boxes = [box for box in boxes if box >= 0]
    x, y = (np.array([pixels(dom.style_of(box, column)) for box in boxes]) for column in (LEFT, TOP))
    edges = dom.rects[boxes] + np.stack([x, y, -x, -y], axis=1)
    return dict(zip(boxes, map(tuple, edges.tolist()), strict=True))


def cut(one: Sequence[float], other: Sequence[float]) -> Clip:
    """Return the intersection of two clips."""
    return max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])
