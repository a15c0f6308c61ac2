"""Which element has the keyboard focus: the one thing that a snapshot does not hold.

It is asked for in an isolated world, whose globals the page neither sees nor can change, and which may look into frames of any origin.
Closed shadow roots answer only with their host; so the question is put again to the root, which the snapshot knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envs.browser.cdp import Cdp

WORLD = "rollwright"
"""Name of the isolated world; made anew in each document, else found again."""

_DEEPEST = """
  let at = this.activeElement;
  for (;;) {
    const inside = (at && at.shadowRoot) || (at && at.contentDocument);
    if (!inside || !inside.activeElement) break;
    at = inside.activeElement;
  }
  return at === document.body ? null : at;
"""


@dataclass
class FocusReader:
    """Asks for the focused element of a tab."""

    cdp: Cdp
    _frame: str = ""

    async def read(self) -> int | None:
        """backendNodeId of the focused element, ``None`` when it is the page itself."""
        if not self._frame:
            tree = await self.cdp.send("Page.getFrameTree")
            self._frame = tree["frameTree"]["frame"]["id"]
        world = {"frameId": self._frame, "worldName": WORLD, "grantUniveralAccess": True}
        context = (await self.cdp.send("Page.createIsolatedWorld", world))["executionContextId"]
        asked = {"expression": f"(function() {{{_DEEPEST}}}).call(document)", "contextId": context}
        return await self._node((await self.cdp.send("Runtime.evaluate", asked))["result"], context)

    async def _node(self, remote: dict[str, Any], context: int) -> int | None:
        if "objectId" not in remote:
            return None
        described = await self.cdp.send("DOM.describeNode", {"objectId": remote["objectId"]})
        await self.cdp.send("Runtime.releaseObject", {"objectId": remote["objectId"]})
        node: dict[str, Any] = described["node"]
        closed = [root for root in node.get("shadowRoots", ()) if root.get("shadowRootType") == "closed"]
        for root in closed:
            inside = await self._inside(int(root["backendNodeId"]), context)
            if inside is not None:
                return inside
        return int(node["backendNodeId"])

    async def _inside(self, root: int, context: int) -> int | None:
        found = await self.cdp.send("DOM.resolveNode", {"backendNodeId": root, "executionContextId": context})
        asked = {"functionDeclaration": f"function() {{{_DEEPEST}}}", "objectId": found["object"]["objectId"]}
        answer = await self.cdp.send("Runtime.callFunctionOn", asked)
        return await self._node(answer["result"], context)
