"""Keyboard focus of a page, and the states of fields that a snapshot does not hold.

Both are asked for in an isolated world, whose globals the page neither sees nor can change. A frame
answers with its element and a closed shadow root with its host, so the question is put again to the
frame or the root.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from envs.cdp import Cdp, isolated_world, main_frame
from envs.cdp.messages import NO_CONTEXT, refused_with
from envs.settle import FieldStates, fields_script
from envs.types import BrowserError

T = TypeVar("T")

FORGET_EVERY = 32
"""Number of questions after which the answered nodes are released, all at once."""

GROUP = "rollwright-focus"

WORLD = "rollwright"
"""Name of the isolated world, which is made anew in each document and else found again."""

DEEPEST = """
  let at = this.activeElement;
  while (at && at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
  return at === document.body ? null : at;
"""
"""The focused element of a document or shadow root, through open shadow roots."""


@dataclass
class FocusReader:
    """Asks a tab for its focused element."""

    cdp: Cdp
    _frame: str = ""
    _asked: int = 0

    async def read(self, world: int | None = None) -> int | None:
        """Return the backendNodeId of the focused element, ``None`` when it is the page itself.

        Args:
            world: Execution context of an isolated world of the document that is shown. If given,
                it saves a call.
        """
        self._asked += 1
        if self._asked % FORGET_EVERY == 0:
            await self.cdp.send("Runtime.releaseObjectGroup", {"objectGroup": GROUP})
        return await self._ask(world, self._in_world)

    async def fields(self, world: int | None = None) -> FieldStates:
        """Return the states of fields; ``world`` as in `read`."""
        return await self._ask(world, self._fields_in)

    async def _ask(self, world: int | None, ask: Callable[[int], Awaitable[T]]) -> T:
        """Ask in ``world``, or in a new world of the main document if it is unknown or gone."""
        if world is not None:
            try:
                return await ask(world)
            except BrowserError as error:
                if not refused_with(error, NO_CONTEXT):
                    raise
        if not self._frame:
            self._frame = await main_frame(self.cdp)
        return await ask(await isolated_world(self.cdp, WORLD, self._frame))

    async def _fields_in(self, context: int) -> FieldStates:
        asked = {
            "expression": f"{fields_script()}rollwrightFields.fields()",
            "contextId": context,
            "returnByValue": True,
        }
        return FieldStates.of((await self.cdp.send("Runtime.evaluate", asked))["result"].get("value") or {})

    async def _in_frame(self, frame: str) -> int | None:
        return await self._in_world(await isolated_world(self.cdp, WORLD, frame))

    async def _in_world(self, context: int) -> int | None:
        expression = f"(function() {{{DEEPEST}}}).call(document)"
        asked = {"expression": expression, "contextId": context, "objectGroup": GROUP}
        return await self._node((await self.cdp.send("Runtime.evaluate", asked))["result"], context)

    async def _node(self, remote: dict[str, Any], context: int) -> int | None:
        if "objectId" not in remote:
            return None
        described = await self.cdp.send("DOM.describeNode", {"objectId": remote["objectId"]})
        node: dict[str, Any] = described["node"]
        inside: int | None = None
        if "frameId" in node:
            inside = await self._in_frame(node["frameId"])
        for root in node.get("shadowRoots", ()):
            if root.get("shadowRootType") == "closed":
                inside = await self._in_root(int(root["backendNodeId"]), context)
        return int(node["backendNodeId"]) if inside is None else inside

    async def _in_root(self, root: int, context: int) -> int | None:
        wanted = {"backendNodeId": root, "executionContextId": context, "objectGroup": GROUP}
        resolved = await self.cdp.send("DOM.resolveNode", wanted)
        asked = {"functionDeclaration": f"function() {{{DEEPEST}}}", "objectGroup": GROUP}
        answer = await self.cdp.send("Runtime.callFunctionOn", {**asked, "objectId": resolved["object"]["objectId"]})
        return await self._node(answer["result"], context)
