"""Capture and decoding of the DOM snapshot of a page and its frames.

``DOMSnapshot.captureSnapshot`` returns arrays of indices, one set for each document; here they are
joined into a `Dom`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from envs.cdp import Cdp, Integers, Rectangles, Rows
from envs.observation.dom import ELEMENT, SCROLLING, STYLES, TEXT, Dom, Indices, Rects, Styles
from envs.observation.frame_geometry import Quad, guess, place


async def capture(cdp: Cdp, *, scrolling: bool = False) -> dict[str, Any]:
    """Capture the raw snapshot. No script runs, and nothing in the page can notice it.

    Args:
        scrolling: True to ask for DOM rectangles too, which hold scroll positions. They make the
            call three times slower, and the boxes' bounds hold the rest.
    """
    styles = STYLES + SCROLLING if scrolling else STYLES
    params = {"computedStyles": list(styles), "includePaintOrder": True, "includeDOMRects": scrolling}
    return await cdp.send("DOMSnapshot.captureSnapshot", params)


def decode(
    raw: dict[str, Any],
    quads: Mapping[int, Quad] | None = None,
    view: tuple[float, float, float] | None = None,
) -> Dom:
    """Join the documents of a raw snapshot.

    Its lengths are CSS pixels at any device scale and page scale (Chromium 156).

    Args:
        quads: Content quads of frames (backendNodeId) that were asked for
            (`envs.observation.frame_geometry`).
        view: Scale and scroll position, as in `envs.settle.FieldStates`.
    """
    dom = Dom(raw["strings"])
    raw = {**raw, "documents": [_with_html_names(dom, document) for document in raw["documents"]]}
    _add_styles(dom, raw["documents"])
    dom.scale, *seen = view or (1.0, *_offset(raw["documents"][0]))
    dom.scroll = (seen[0], seen[1])
    frames: dict[int, int] = {}  # document -> frame element, which always comes before it
    for number, document in enumerate(raw["documents"]):
        first = len(dom.parent)
        _add_nodes(dom, document, frames.get(number, -1))
        if number and (document.get("scrollOffsetX") or document.get("scrollOffsetY")):
            dom.scrolled_frames.add(first)
        for node, content in _pairs(document["nodes"].get("contentDocumentIndex"), first):
            frames[content] = node
        scroll = _offset(document) if number else dom.scroll
        dom.views.append((*scroll, document.get("contentWidth", 0), document.get("contentHeight", 0)))
        if rects := document["layout"].get("scrollRects"):
            windows = document["layout"]["clientRects"]
            dom.scrolls, dom.windows = (
                np.concatenate([old, _sizes(new)]) for old, new in ((dom.scrolls, rects), (dom.windows, windows))
            )
        boxes, lines = _add_boxes(dom, document, first)
        _place(dom, frames.get(number, -1), first, boxes, lines, scroll, quads or {})
        dom.rects = np.concatenate([dom.rects, boxes]) if first else boxes
        dom.line_rects = np.concatenate([dom.line_rects, lines]) if first else lines
    _index(dom, [document["nodes"] for document in raw["documents"]])
    main = raw["documents"][0]
    dom.url, dom.title = dom.urls[0], dom.string(main["title"])
    dom.page_size = (float(main.get("contentWidth", 0)), float(main.get("contentHeight", 0)))
    return dom


def _with_html_names(dom: Dom, document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of XHTML with upper case element names, as HTML has them; any other
    unchanged."""
    nodes = document["nodes"]
    names: list[int] = nodes["nodeName"]
    root = next((dom.strings[name] for name, kind in zip(names, nodes["nodeType"], strict=True) if kind == ELEMENT), "")
    if root != "html":
        return document
    dom.strings = list(dom.strings)
    foreign, known, new = list[bool](), dict[int, int](), list[int]()
    for name, kind, above in zip(names, nodes["nodeType"], nodes["parentIndex"], strict=True):
        own = dom.strings[name]
        inside = above >= 0 and foreign[above] and dom.strings[names[above]] != "foreignObject"
        foreign.append(inside or own in ("svg", "math"))
        if kind == ELEMENT and not foreign[-1] and not own.startswith("::"):
            if name not in known:
                known[name] = dom.intern(own.upper())
            name = known[name]
        new.append(name)
    return {**document, "nodes": {**nodes, "nodeName": new}}


def _offset(document: dict[str, Any]) -> tuple[float, float]:
    return float(document.get("scrollOffsetX", 0)), float(document.get("scrollOffsetY", 0))


def _sizes(rects: Sequence[list[float]]) -> Rects:
    """Return rectangles as an array; those of texts, which are empty, become zeros."""
    return np.array([list(rect) or [0.0] * 4 for rect in rects], dtype=np.float64).reshape(-1, 4)


def _pairs(sparse: dict[str, list[int]] | None, first: int) -> list[tuple[int, int]]:
    return (
        [(first + node, value) for node, value in zip(sparse["index"], sparse["value"], strict=True)] if sparse else []
    )


def _add_nodes(dom: Dom, document: dict[str, Any], frame: int) -> None:
    nodes, first, strings = document["nodes"], len(dom.parent), dom.strings
    parents: list[int] = nodes["parentIndex"]
    dom.documents.append(first)
    dom.frame_ids.append(dom.string(document["frameId"]))
    dom.urls.append(dom.string(document["documentURL"]))
    dom.parent += [first + above for above in parents] if first else parents
    dom.parent[first] = frame
    dom.end += (_ends(_indices(parents)) + first).tolist()
    dom.type += nodes["nodeType"]
    dom.name += [strings[name] if name >= 0 else "" for name in nodes["nodeName"]]
    dom.value += nodes["nodeValue"]
    dom.backend += nodes["backendNodeId"]
    for key in ("inputValue", "textValue"):
        dom.typed.update((node, dom.string(value)) for node, value in _pairs(nodes.get(key), first))
    for key, into in (
        ("inputChecked", dom.checked),
        ("optionSelected", dom.selected),
        ("isClickable", dom.clickable),
        ("shadowRootType", dom.shadowed),
        ("pseudoType", dom.pseudo),
    ):
        into.update(first + node for node in nodes.get(key, {}).get("index", ()))
    dom.closed.update(node for node, kind in _pairs(nodes.get("shadowRootType"), first) if strings[kind] == "closed")


def _add_boxes(dom: Dom, document: dict[str, Any], first: int) -> tuple[Rects, Rects]:
    layout, before = document["layout"], len(dom.box_node)
    nodes: list[int] = [first + node for node in layout["nodeIndex"]] if first else layout["nodeIndex"]
    of = np.full(len(document["nodes"]["parentIndex"]), -1, dtype=np.int64)
    local = _indices(layout["nodeIndex"])
    of[local[::-1]] = np.arange(before + len(local) - 1, before - 1, -1)  # a node's first box stands for it
    dom.box_of += of.tolist()
    above = _indices(document["nodes"]["parentIndex"])[local]
    boxes = np.where(above >= 0, of[above], -1)
    for box in np.flatnonzero(boxes < 0).tolist():
        boxes[box] = _box_above(dom, dom.parent[nodes[box]])
    dom.box_parent += boxes.tolist()
    dom.box_node += nodes
    dom.box_text += layout["text"]
    dom.paint += layout["paintOrders"]
    dom.stacked.update(before + box for box in layout["stackingContexts"]["index"])
    dom.line_box += [before + box for box in document["textBoxes"]["layoutIndex"]]
    return _rects(layout["bounds"]), _rects(document["textBoxes"]["bounds"])


def _box_above(dom: Dom, node: int) -> int:
    """Return the box of a node, or of its nearest ancestor that has one; -1 above the top.

    A node with ``display: contents`` has none.
    """
    while node >= 0 and dom.box_of[node] < 0:
        node = dom.parent[node]
    return dom.box_of[node] if node >= 0 else -1


def _add_styles(dom: Dom, documents: list[dict[str, Any]]) -> None:
    """Number the distinct styles, and give each box the number of its own; texts have none."""
    # A text's styles are given as those of its element, whose position, float and overflow are
    # not the text's. So a text has none, as a document has.
    known: dict[Styles, int] = {(): 0}
    places = []
    for document in documents:
        layout, kinds = document["layout"], _indices(document["nodes"]["nodeType"])
        distinct, place = _rows(layout["styles"])
        named = (tuple(map(dom.string, row)) for row in distinct)
        numbers = _indices((known.setdefault(style, len(known)) for style in named), len(distinct))[place]
        numbers[kinds[_indices(layout["nodeIndex"])] == TEXT] = 0
        places.append(numbers)
    dom.styles, dom.style_at = list(known), np.concatenate(places)


def _ends(parents: Indices) -> Indices:
    """Return the last node of each node's subtree: that of its last child, and so on."""
    ends = np.arange(len(parents))
    ends[parents[1:]] = ends[1:].copy()  # the last child of a node stays
    while ((further := ends[ends]) != ends).any():
        ends = further
    return ends


def _index(dom: Dom, nodes: list[dict[str, Any]]) -> None:
    """Store names and attributes as arrays."""
    of_documents = [_attributes(one["attributes"]) for one in nodes]
    flat, counts = (np.concatenate(parts) for parts in zip(*of_documents, strict=True))
    dom.attribute_names, dom.attribute_values = flat[::2], flat[1::2]
    dom.attribute_nodes = np.repeat(np.arange(len(counts)), counts // 2)
    dom.name_index = np.concatenate([_indices(one["nodeName"]) for one in nodes])


def _attributes(attributes: Sequence[list[int]]) -> tuple[Indices, Indices]:
    """Return the attributes of all nodes one after another, and each node's count of numbers."""
    distinct, place = _rows(attributes)
    counts = _indices(map(len, distinct), len(distinct))
    flat = _indices(chain.from_iterable(distinct), int(counts.sum()))
    begins, counts = (np.cumsum(counts) - counts)[place], counts[place]
    moved = begins - (np.cumsum(counts) - counts)  # from each node's place to its row
    return flat[np.repeat(moved, counts) + np.arange(int(counts.sum()))], counts


def _rows(rows: Sequence[list[int]]) -> tuple[list[list[int]], Indices]:
    """Return the distinct rows, and the index of each row among them.

    Every row of a plain list counts as distinct.
    """
    return (rows.distinct, rows.place) if isinstance(rows, Rows) else (list(rows), np.arange(len(rows)))


def _indices(values: Iterable[int], count: int = -1) -> Indices:
    """Return integers as an array. Callers must not change it: the next snapshot may share it."""
    return values.array if isinstance(values, Integers) else np.fromiter(values, np.int64, count)


def _rects(bounds: Sequence[list[float]]) -> Rects:
    if isinstance(bounds, Rectangles):
        rects = bounds.values.copy()
    else:
        rects = np.fromiter(chain.from_iterable(bounds), np.float64, 4 * len(bounds)).reshape(-1, 4)
    rects[:, 2:] += rects[:, :2]
    return rects


def _place(
    dom: Dom,
    frame: int,
    first: int,
    boxes: Rects,
    lines: Rects,
    scroll: tuple[float, float],
    quads: Mapping[int, Quad],
) -> None:
    """Move a document's rectangles to their places in the main viewport."""
    if not len(boxes):
        return
    root = dom.box_of[first] - dom.box_of[dom.box_node[-len(boxes)]]  # the document's own viewport, not scrolled
    inner = boxes[root].copy()
    boxes -= np.tile(scroll, 2)
    lines -= np.tile(scroll, 2)
    boxes[root] = inner
    if frame < 0:
        return
    quad = quads.get(dom.backend[frame])
    if quad is not None and (inner[2:] > inner[:2]).all():
        boxes[:], lines[:] = place(boxes, inner, quad), place(lines, inner, quad)
        return
    corner, certain = guess(dom, frame, inner)
    boxes += np.tile(corner, 2)
    lines += np.tile(corner, 2)
    if not certain and quad is None:
        dom.guessed.append(frame)
