"""A page of a browser as a `DomSnapshot`, with all compared styles. Read-only: no script runs in it."""

from __future__ import annotations

import asyncio
from typing import Any

from envs.cdp import Cdp
from envs.rewards.chromiumrl.convert import CAPTURED, snapshot_of_capture
from envs.rewards.chromiumrl.records import DomSnapshot

MOST_NODES = 20_000
"""Nodes of a page that is compared: converting takes some 50 microseconds each, and the page is converted at each step."""


async def capture_page(cdp: Cdp) -> DomSnapshot | None:
    """The page as it is now, with frames, shadow roots and live form state; ``None`` if it has more than `MOST_NODES` nodes.

    Raises:
        BrowserError: the page does not answer.
    """
    params = {"computedStyles": list(CAPTURED), "includePaintOrder": True}
    raw = await cdp.send("DOMSnapshot.captureSnapshot", params)
    if sum(len(one["nodes"]["parentIndex"]) for one in raw["documents"]) > MOST_NODES:
        return None
    tree = await cdp.send("Page.getFrameTree")
    loader = str(tree["frameTree"]["frame"]["loaderId"])
    return await asyncio.to_thread(_converted, raw, loader)


def _converted(raw: dict[str, Any], loader: str) -> DomSnapshot:
    return snapshot_of_capture(raw, document=loader)
