"""Probes a page from an isolated world: changes, drawn frames, its clock.

The world shares the document with the page and nothing else, so the page can neither see the
observer nor break it by replacing ``Date`` or ``requestAnimationFrame``. The document is written to
by nothing in it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from envs.cdp import Cdp, isolated_world, main_frame, script_beside
from envs.cdp.messages import DOCUMENT_REPLACED, refused_with
from envs.types import BrowserError

WORLD = "rollwright"
"""Name of the JavaScript world, as developer tools show it."""

FRAME_SECONDS = 0.5
"""Real seconds that a frame may take to be drawn: 16 ms, or 100 ms where eight pages share two
loaded cores. A page that is not shown draws none, and is then looked at as it is."""


NodePath = tuple[int, ...]
"""Path to an element: its place among the elements of each parent, from the document down; -1 is a
step into a shadow root, -2 one into a frame."""


@dataclass(frozen=True, slots=True)
class FieldStates:
    """States of a page and its fields that a snapshot does not have.

    Those in closed shadow roots and in frames of other origins are not seen.
    """

    mixed: tuple[NodePath, ...] = ()
    """Checkboxes that are neither on nor off (``indeterminate``)."""
    invalid: tuple[tuple[NodePath, str], ...] = ()
    """Fields that were found wrong when their form was sent, or after they were changed, and what
    the browser says of them."""
    hidden: tuple[tuple[NodePath, tuple[int, ...]], ...] = ()
    """Lists, and the places of those of their options that they do not show."""
    view: tuple[float, float, float] | None = None
    """Scale, left and top of what is seen of the page (the visual viewport, in CSS pixels of the
    page); ``None`` where nothing is scaled, and that is where the page is scrolled to."""

    @classmethod
    def of(cls, value: dict[str, Any]) -> FieldStates:
        """Read the result of ``fields.js``."""
        mixed, invalid, hidden = (value.get(name, ()) for name in ("mixed", "invalid", "hidden"))
        view = value.get("view")
        return cls(
            tuple(map(tuple, mixed)),
            tuple((tuple(path), message) for path, message in invalid),
            tuple((tuple(path), tuple(places)) for path, places in hidden),
            None if view is None else (float(view[0]), float(view[1]), float(view[2])),
        )


NO_FIELDS = FieldStates()


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a page."""

    now: float
    """The page's clock, ms since 1970; 0 where the document was being replaced."""
    changed: bool
    """The document changed since the look before."""
    animating: bool
    """An animation of the document runs, or is about to."""
    ready: str
    """``document.readyState``."""
    focus: tuple[int, ...] | None = None
    """`NodePath` of the element with the keyboard focus, as far as a script can see; ``None`` when
    it is the page itself."""
    modal: tuple[int, ...] | None = None
    """The open modal ``<dialog>``, without which nothing of the document can be used, as `focus`;
    ``None`` for none, or one in a shadow root."""
    picker: str = ""
    """Kind of the field whose list, calendar or colour chooser is open as a window of its own,
    which gets the keys and no click; empty for none."""
    fields: FieldStates = NO_FIELDS
    """Only of a `PageProbe.look`."""


REPLACED = Look(0.0, True, False, "loading")
"""The document went away while it was looked at."""


def fields_script() -> str:
    """Defines ``rollwrightFields`` in a world of its own, with ``fields()`` for
    `FieldStates.of`."""
    return script_beside(__file__, "fields.js")


class PageProbe:
    """Observes one page from an isolated world. Not safe for concurrent calls."""

    def __init__(self, cdp: Cdp, *, fields: bool = True) -> None:
        """``fields``: a `look` reads the states of fields, for which it walks over all elements."""
        self._cdp = cdp
        self._fields = fields
        self.world: int | None = None
        """Its execution context; ``None`` before a document was looked at."""
        cdp.on("Page.frameNavigated", self._navigated)

    async def clock(self) -> float:
        """Read the page's clock, in ms since 1970; 0 where the document is being replaced.

        It makes no `look`.
        """
        return (await self._evaluate({"clock": True})).now

    async def look(self) -> Look:
        """Look at the page now."""
        return await self._evaluate({"fields": self._fields})

    async def frame(self) -> Look:
        """Look after the next drawn frame, or after `FRAME_SECONDS` without one."""
        try:
            async with asyncio.timeout(FRAME_SECONDS):
                return await self._evaluate({"frame": True})
        except TimeoutError:
            return await self.look()

    async def quiet(self, milliseconds: float) -> Look:
        """Look at the page once nothing has changed for so long. Its clock must run."""
        return await self._evaluate({"quietMs": milliseconds})

    def _navigated(self, event: dict[str, Any]) -> None:
        if "parentId" not in event["frame"]:
            self.world = None

    async def _evaluate(self, options: dict[str, Any]) -> Look:
        try:
            if self.world is None:
                self.world = await self._make_world()
            params = {
                "expression": f"rollwrightLook({json.dumps(options)})",
                "contextId": self.world,
                "awaitPromise": True,
                "returnByValue": True,
            }
            answer = await self._cdp.send("Runtime.evaluate", params)
        except BrowserError as error:
            if not refused_with(error, DOCUMENT_REPLACED):
                raise
            self.world = None
            return REPLACED
        value = answer["result"].get("value")
        if "exceptionDetails" in answer or value is None:
            self.world = None  # the script was stopped, or there is no document to look at
            return REPLACED
        focus, modal = value.get("focus"), value.get("modal")
        return Look(
            float(value["now"]),
            bool(value["changed"]),
            bool(value["animating"]),
            str(value["ready"]),
            None if focus is None else tuple(focus),
            None if modal is None else tuple(modal),
            str(value.get("picker", "")),
            FieldStates.of(value),
        )

    async def _make_world(self) -> int:
        world = await isolated_world(self._cdp, WORLD, await main_frame(self._cdp))
        script = fields_script() + script_beside(__file__, "page_probe.js")
        await self._cdp.send("Runtime.evaluate", {"expression": script, "contextId": world, "returnByValue": True})
        return world
