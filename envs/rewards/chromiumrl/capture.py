"""A page of a browser as a `DomSnapshot`, with all compared styles.

Read-only: no script runs in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from envs.cdp import Cdp
from envs.rewards.chromiumrl.convert import CAPTURED, snapshot_of_capture
from envs.rewards.chromiumrl.records import DomSnapshot

MAX_NODES = 20_000
"""Nodes of a page that are compared: converting takes some 50 microseconds each, and the page is
converted at each step. Of a larger page these are the first ones."""


async def capture_page(cdp: Cdp) -> DomSnapshot:
    """The page as it is now, with frames, shadow roots and live form state; cut off after
    `MAX_NODES` nodes.

    Raises:
        BrowserError: the page does not answer.
    """
    params = {"computedStyles": list(CAPTURED), "includePaintOrder": True}
    raw = await cdp.send("DOMSnapshot.captureSnapshot", params)
    tree = await cdp.send("Page.getFrameTree")
    loader = str(tree["frameTree"]["frame"]["loaderId"])
    return await asyncio.to_thread(snapshot_of_first, raw, loader, MAX_NODES)


def snapshot_of_first(raw: dict[str, Any], loader: str, most: int) -> DomSnapshot:
    """The first nodes of a raw capture; a frame whose document does not fit is empty. Pure."""
    documents, left = list[dict[str, Any]](), most
    for document in raw["documents"]:
        size = len(document["nodes"]["parentIndex"])
        if left:
            documents.append(document if size <= left else _first_of(document, left))
        if size > left:  # frames of what is left out come after it
            snapshot = snapshot_of_capture({**raw, "documents": documents}, document=loader)
            return snapshot.model_copy(update={"cut": True})
        left -= size
    return snapshot_of_capture(raw, document=loader)


def _first_of(document: dict[str, Any], most: int) -> dict[str, Any]:
    """A document without the nodes after the first ones, and their boxes; nodes are in its order,
    parents before children."""
    layout, boxes = document["layout"], document["textBoxes"]
    rows = [row for row, node in enumerate(layout["nodeIndex"]) if node < most]
    place = {row: number for number, row in enumerate(rows)}
    lines = [line for line, row in enumerate(boxes["layoutIndex"]) if row in place]
    chosen = {name: [boxes[name][line] for line in lines] for name in boxes}
    return {
        **document,
        "nodes": {name: _before(table, most) for name, table in document["nodes"].items()},
        "layout": {
            name: [table[row] for row in rows]
            if isinstance(table, Sequence) and len(table) == len(layout["nodeIndex"])
            else table
            for name, table in layout.items()
        }
        | {"stackingContexts": {"index": [place[row] for row in layout["stackingContexts"]["index"] if row in place]}},
        "textBoxes": {**chosen, "layoutIndex": [place[row] for row in chosen["layoutIndex"]]},
    }


def _before(table: Any, most: int) -> Any:
    """A column of nodes (a list, or sparse: numbers of nodes with or without values) without the
    rows from a number on."""
    if isinstance(table, Sequence):
        return table[:most]
    kept = [position for position, node in enumerate(table["index"]) if node < most]
    return {name: [column[position] for position in kept] for name, column in table.items()}
