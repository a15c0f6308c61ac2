"""Queries DOM nodes through CDP: boxes, hit tests, and facts about elements.

Questions that CDP has no method for are asked in an isolated world of the node's frame (``probe.js``), which pages can neither see nor
patch. Objects made for that are let go by `Nodes.release`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envs.actions.context import LastLook
from envs.cdp import Cdp, isolated_world, main_frame, script_beside
from envs.cdp.messages import NODE_GONE, NOWHERE, send_unless
from envs.types import BrowserError

if TYPE_CHECKING:
    from envs.settle import VirtualClock

WORLD = "rollwright-actions"
"""Name of the isolated worlds."""

_GROUP = "rollwright-actions"


@dataclass(frozen=True)
class Hit:
    """The innermost node at a point."""

    node: int
    """Backend node id."""
    frame: str
    scroll: tuple[float, float]
    """How far the page was scrolled, in CSS pixels."""
    seen: LastLook | None = None
    """What is known of the page in which it was hit."""

    @property
    def in_own_frame(self) -> bool:
        """It is known to be in the page's own frame."""
        return self.seen is not None and self.frame == self.seen.frame


@dataclass(frozen=True)
class Option:
    """One option of a drop-down list."""

    label: str
    """What a person sees."""
    group: str
    """Label of its group; empty for none."""
    open: bool
    """It can be chosen."""
    on: bool
    """It is chosen."""
    shown: bool
    """The list shows it."""


@dataclass(frozen=True)
class ElementFacts:
    """What an element is at this moment."""

    tag: str
    kind: str
    """``type`` of an input, else the role."""
    disabled: bool
    editable: bool
    """Text can be typed into it."""
    rich: bool
    """It is ``contenteditable``, and Chromium's own editor."""
    edit_context: bool
    """It is an editor of the page's own, with an ``EditContext``."""
    limit: int
    """``maxlength``, in UTF-16 units; -1 for none."""
    length: int
    """What it holds now, likewise."""
    readonly: bool
    checked: bool | None
    """``None``: it cannot be checked."""
    text: str
    options: tuple[Option, ...]
    chosen: int
    """Place of the chosen option, -1 for none."""
    drawn: bool
    """It is a list that the page draws (``appearance: base-select``), not a window of its own."""
    file: bool
    """It is a file field."""
    multiple: bool


class Nodes:
    """The nodes that one action looks at."""

    def __init__(self, cdp: Cdp, clock: VirtualClock, seen: LastLook | None = None) -> None:
        """``seen`` is what is known of the page.

        Good for one look at a point, as what is done next may scroll, and pages hear of that.
        """
        self._cdp = cdp
        self._clock = clock
        self._seen = seen
        self._counted: dict[str, float] | None = None
        """The page's counters at the last hit test, if nothing has been asked of it since."""
        self._worlds: dict[str, int] = {}

    async def at(self, point: tuple[float, float], before: Hit | None = None) -> Hit | None:
        """What is at a point of the viewport (CSS pixels); ``None`` outside of it.

        ``before`` is an earlier hit, since which the page was not scrolled.
        """
        seen, self._seen = self._seen, None
        if seen is not None:
            scroll = seen.scroll
        elif before is not None:
            scroll = before.scroll
        else:
            view = (await self._cdp.send("Page.getLayoutMetrics"))["cssVisualViewport"]
            scroll = view["pageX"], view["pageY"]
        # The point of this method is one of the document, in whole pixels.
        params = {"x": int(point[0] + scroll[0]), "y": int(point[1] + scroll[1]), "includeUserAgentShadowDOM": False}
        self._counted = None
        asked = send_unless(NOWHERE, self._cdp, "DOM.getNodeForLocation", params)
        if seen is None:
            found = await asked
        else:  # styles and layout are worked out: the counters, which Chromium reads before what was asked earlier, are the same
            found, self._counted = await asyncio.gather(asked, self._clock.counters())
        return Hit(found["backendNodeId"], found["frameId"], scroll, seen) if found else None

    async def counters(self) -> dict[str, float]:
        """How much the page has done until now.

        Empty where the browser does not count.
        """
        counted, self._counted = self._counted, None
        return await self._clock.counters() if counted is None else counted

    async def is_hit(self, node: int, hit: Hit) -> bool:
        """Whether a click on ``hit`` is one on ``node``.

        The node itself, something in it, or its label.
        """
        if hit.node == node or (hit.seen is not None and hit.seen.holds(node, hit.node)):
            return True
        own, other = await self.object(node, hit.frame), await self.object(hit.node, hit.frame)
        if own is None or other is None:
            return False  # of another frame
        return bool(await self.ask(own, "belongs", {"objectId": other}))

    async def boxes(self, **node: int | str) -> list[tuple[float, float, float, float]]:
        """left, top, right, bottom of each box of a node in CSS pixels.

        The node is a ``backendNodeId`` or ``objectId``; the pixels are the viewport's.
        """
        quads = (await self._cdp.send("DOM.getContentQuads", dict(node)))["quads"]
        return [(min(q[0::2]), min(q[1::2]), max(q[0::2]), max(q[1::2])) for q in quads]

    async def scroll_to(self, **node: int | str) -> None:
        """Scroll a node into view, as far as it is not there."""
        self._seen = self._counted = None
        await self._cdp.send("DOM.scrollIntoViewIfNeeded", dict(node))

    async def scroll_least(self, node: int) -> None:
        """Scroll a node into view by as little as possible, so what is near stays.

        The node is of the tab's own frame, or of one of its origin.
        """
        self._seen = None
        own = await self.object(node, await self.main_frame())
        if own is not None:
            await self.ask(own, "show")

    async def main_frame(self) -> str:
        """Id of the tab's own frame."""
        return await main_frame(self._cdp)

    async def object(self, node: int, frame: str) -> str | None:
        """Object of a node in the isolated world of a frame.

        Returns ``None`` if it is not of that frame or gone.
        """
        params = {"backendNodeId": node, "executionContextId": await self.world(frame), "objectGroup": _GROUP}
        refusals = (*NODE_GONE, "Node with given id does not belong to the document")
        answer = await send_unless(refusals, self._cdp, "DOM.resolveNode", params)
        return answer["object"].get("objectId") if answer else None

    async def world(self, frame: str) -> int:
        """Execution context of the isolated world of a frame."""
        if frame not in self._worlds:
            self._worlds[frame] = await isolated_world(self._cdp, WORLD, frame)
        return self._worlds[frame]

    async def ask(self, own: str, what: str, other: Any = None) -> Any:
        """The answer of ``probe.js`` about an object; ``other`` is ``{"objectId": …}`` or a plain value."""
        return (await self._call(own, what, other, by_value=True)).get("value")

    async def follow(self, own: str, what: str, other: Any = None) -> str | None:
        """The object that ``probe.js`` gives for an object; ``None`` for null."""
        found: str | None = (await self._call(own, what, other, by_value=False)).get("objectId")
        return found

    async def facts(self, own: str) -> ElementFacts:
        """What an element is at this moment."""
        raw = await self.ask(own, "facts")
        options = tuple(Option(**each) for each in raw.pop("options") or ())
        return ElementFacts(options=options, **raw)

    async def next_frame(self) -> None:
        """Wait until the page has drawn twice.

        Only then it knows how far a wheel scrolled it. Frames are drawn on a stopped clock as well.
        """
        twice = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        context = await self.world(await self.main_frame())
        params = {"expression": twice, "contextId": context, "awaitPromise": True, "returnByValue": True}
        await self._cdp.send("Runtime.evaluate", params)

    async def focused(self) -> str | None:
        """Object of the focused element, in whatever frame or shadow root it is."""
        frame = await self.main_frame()
        own = await self.follow(await self._document(frame), "focused")
        while own is not None:
            node = (await self._cdp.send("DOM.describeNode", {"objectId": own}))["node"]
            closed = [root for root in node.get("shadowRoots", ()) if root.get("shadowRootType") == "closed"]
            if "frameId" in node:
                frame = node["frameId"]
                inner: str | None = await self._document(frame)
            else:
                inner = await self.object(closed[0]["backendNodeId"], frame) if closed else None
            deeper = await self.follow(inner, "focused") if inner else None
            if deeper is None:
                return own
            own = deeper
        return own

    async def _document(self, frame: str) -> str:
        params = {"expression": "document", "contextId": await self.world(frame), "objectGroup": _GROUP}
        found: str = (await self._cdp.send("Runtime.evaluate", params))["result"]["objectId"]
        return found

    async def release(self) -> None:
        """Let all objects go, so that the page can free its nodes."""
        if self._worlds:
            self._worlds.clear()
            await self._cdp.send("Runtime.releaseObjectGroup", {"objectGroup": _GROUP})

    async def _call(self, own: str, what: str, other: Any, *, by_value: bool) -> dict[str, Any]:
        self._counted = None  # the probe is a script too
        argument = other if isinstance(other, dict) else {"value": other}
        params = {
            "objectId": own,
            "functionDeclaration": script_beside(__file__, "probe.js"),
            "arguments": [{"value": what}, argument],
            "returnByValue": by_value,
            "objectGroup": _GROUP,
        }
        answer = await self._cdp.send("Runtime.callFunctionOn", params)
        if "exceptionDetails" in answer:
            raise BrowserError(f"probe.js failed at {what}: {answer['exceptionDetails']}")
        return dict(answer["result"])
