"""Queries DOM nodes through CDP: boxes, hit tests, and facts about elements.

Questions that CDP has no method for are asked in an isolated world of the node's frame
(``probe.js``), which pages can neither see nor patch. `Nodes.release` frees the objects made for
that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envs.actions.context import LastLook
from envs.cdp import Cdp, isolated_world, main_frame, script_beside
from envs.cdp.messages import NODE_GONE, NOWHERE, send_unless
from envs.types import BrowserError

if TYPE_CHECKING:
    from envs.settle.activity import ActivityProbe

WORLD = "rollwright-actions"
"""Name of the isolated worlds."""

_GROUP = "rollwright-actions"


@dataclass(frozen=True)
class Hit:
    """Innermost node at a point."""

    node: int
    """Backend node id."""
    frame: str
    scroll: tuple[float, float]
    """Scroll position of the page, in CSS pixels."""
    seen: LastLook | None = None
    """Last look at the page in which it was hit."""

    @property
    def in_own_frame(self) -> bool:
        """True if the node is known to be in the page's own frame."""
        return self.seen is not None and self.frame == self.seen.frame


@dataclass(frozen=True)
class Option:
    """One option of a drop-down list."""

    label: str
    """Label that a person sees."""
    group: str
    """Label of its group; empty for none."""
    open: bool
    """True when the option can be chosen."""
    on: bool
    """True when the option is chosen."""
    shown: bool
    """True when the list shows the option."""


@dataclass(frozen=True)
class ElementFacts:
    """Facts about an element at one moment."""

    tag: str
    kind: str
    """``type`` of an input, else the role."""
    disabled: bool
    editable: bool
    """True when text can be typed into it."""
    rich: bool
    """True for a ``contenteditable`` element, which Chromium's own editor edits."""
    edit_context: bool
    """True for an editor of the page's own, with an ``EditContext``."""
    limit: int
    """``maxlength``, in UTF-16 units; -1 for none."""
    length: int
    """Length of its content, in UTF-16 units."""
    readonly: bool
    checked: bool | None
    """Checked state; ``None`` for an element that cannot be checked."""
    text: str
    options: tuple[Option, ...]
    chosen: int
    """Place of the chosen option, -1 for none."""
    drawn: bool
    """True for a list that the page draws (``appearance: base-select``), which is not a window of
    its own."""
    file: bool
    """True for a file field."""
    multiple: bool


@dataclass
class Nodes:
    """Nodes of a tab that one action asks about."""

    _cdp: Cdp
    _activity: ActivityProbe
    _seen: LastLook | None
    """Last look at the page. It serves for one hit test, as the next step may scroll, which pages
    notice."""
    _counted: dict[str, float] | None = None
    """Counters of the page at the last hit test, if nothing has been asked of it since."""
    _worlds: dict[str, int] = field(default_factory=dict)

    async def hit_on(self, node: int, point: tuple[float, float]) -> tuple[Hit | None, bool]:
        """Return the innermost node at a point, as `hit_at`, and True if a click on it is one on
        ``node``.

        The hit may be the node itself, something in it, or its label.
        """
        hit = await self.hit_at(point)
        if hit is None or hit.node == node or (hit.seen is not None and hit.seen.holds(node, hit.node)):
            return hit, hit is not None
        own, other = await self.object(node, hit.frame), await self.object(hit.node, hit.frame)
        if own is None or other is None:
            return hit, False  # of another frame
        return hit, bool(await self.ask(own, "belongs", {"objectId": other}))

    async def hit_at(self, point: tuple[float, float], before: Hit | None = None) -> Hit | None:
        """Return the innermost node at a point of the viewport (CSS pixels); ``None`` outside of
        it.

        Args:
            before: Earlier hit, since which the page was not scrolled.
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
            answer = await asked
        else:
            # Styles and layout are up to date, so the hit test does not change the counters,
            # although Chromium reads them before it.
            answer, self._counted = await asyncio.gather(asked, self._activity.read())
        return Hit(answer["backendNodeId"], answer["frameId"], scroll, seen) if answer else None

    async def counters(self) -> dict[str, float]:
        """Return the page's counters of scripts, styles and layouts.

        They are empty where the browser does not count.
        """
        counted, self._counted = self._counted, None
        return await self._activity.read() if counted is None else counted

    async def boxes(self, **node: int | str) -> list[tuple[float, float, float, float]]:
        """Return left, top, right, bottom of each box of a node, in CSS pixels of the viewport.

        The node is given as ``backendNodeId`` or ``objectId``.
        """
        quads = (await self._cdp.send("DOM.getContentQuads", dict(node)))["quads"]
        return [(min(q[0::2]), min(q[1::2]), max(q[0::2]), max(q[1::2])) for q in quads]

    async def scroll_to(self, **node: int | str) -> None:
        """Scroll a node into view if it is not there."""
        self._seen = self._counted = None
        await self._cdp.send("DOM.scrollIntoViewIfNeeded", dict(node))

    async def scroll_least(self, node: int) -> None:
        """Scroll a node into view by as little as possible, so that nearby content stays in view.

        The node is in the tab's own frame, or in one of its origin.
        """
        self._seen = None
        own = await self.object(node, await self.main_frame())
        if own is not None:
            await self.ask(own, "show")

    async def main_frame(self) -> str:
        """Return the id of the tab's own frame."""
        return await main_frame(self._cdp)

    async def object(self, node: int, frame: str) -> str | None:
        """Return the object of a node in the isolated world of a frame.

        The answer is ``None`` if the node is not of that frame or gone.
        """
        params = {"backendNodeId": node, "executionContextId": await self.world(frame), "objectGroup": _GROUP}
        refusals = (*NODE_GONE, "Node with given id does not belong to the document")
        answer = await send_unless(refusals, self._cdp, "DOM.resolveNode", params)
        return answer["object"].get("objectId") if answer else None

    async def world(self, frame: str) -> int:
        """Return the execution context of the isolated world of a frame."""
        if frame not in self._worlds:
            self._worlds[frame] = await isolated_world(self._cdp, WORLD, frame)
        return self._worlds[frame]

    async def ask(self, own: str, what: str, other: Any = None) -> Any:
        """Return the answer of ``probe.js`` about an object; ``other`` is ``{"objectId": …}`` or a
        plain value."""
        return (await self._call(own, what, other, by_value=True)).get("value")

    async def follow(self, own: str, what: str, other: Any = None) -> str | None:
        """Return the object that ``probe.js`` gives for an object; ``None`` for null."""
        object_id: str | None = (await self._call(own, what, other, by_value=False)).get("objectId")
        return object_id

    async def facts(self, own: str) -> ElementFacts:
        """Return the current facts about an element."""
        raw = await self.ask(own, "facts")
        options = tuple(Option(**option) for option in raw.pop("options") or ())
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
        """Return the object of the focused element, in any frame or shadow root."""
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
        object_id: str = (await self._cdp.send("Runtime.evaluate", params))["result"]["objectId"]
        return object_id

    async def release(self) -> None:
        """Release all objects, so that the page can free its nodes."""
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
