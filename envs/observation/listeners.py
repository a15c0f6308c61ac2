"""Who listens for the mouse coming over it: not in a snapshot, so asked for apart where it is wanted."""

from __future__ import annotations

from envs.cdp import Cdp

HOVER_EVENTS = frozenset({"mouseenter", "mouseover", "pointerenter", "pointerover"})

GROUP = "rollwright-listeners"
"""Object group of the handles that Chromium makes for the listeners, given back at once."""


async def hover_listeners(cdp: Cdp) -> set[int]:
    """backendNodeIds of the elements that listen for hovering, in all documents and shadow roots. Reads ``document`` and runs nothing else."""
    asked = {"expression": "document", "objectGroup": GROUP}
    document = (await cdp.send("Runtime.evaluate", asked))["result"]["objectId"]
    params = {"objectId": document, "depth": -1, "pierce": True}
    answer = await cdp.send("DOMDebugger.getEventListeners", params)
    await cdp.send("Runtime.releaseObjectGroup", {"objectGroup": GROUP})
    return {
        int(listener["backendNodeId"])
        for listener in answer["listeners"]
        if listener["type"] in HOVER_EVENTS and "backendNodeId" in listener
    }
