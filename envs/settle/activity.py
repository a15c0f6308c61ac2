"""Probes whether scripts or events ran in a page since its frame was drawn.

If the page stood still although its clock went on, the picture of that frame is the picture of the
page.

The observer of the document does not tell: it sees neither canvases, nor what scripts do to style
sheets, nor closed shadow roots, nor boxes that scripts scroll. That nothing of the page has *run*
tells more. Chromium counts the time of all callbacks of scripts, and the bytes that scripts have on
their heap grow with what else runs of them (the rest of a function that waited for a promise). On a
page at rest both stay as they are (Chromium 156), also while a frame is copied. What moves without
a script and without an event is not noticed: videos, animated images, SVG's own animations. The
picture then shows an earlier moment of them. Nor is what runs in the millisecond between the frame
and the mark; a picture is copied some thirty later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envs.types import BrowserError

if TYPE_CHECKING:
    from envs.cdp import Cdp
    from envs.settle.requests import RequestTracker

HEAP = "JSHeapUsedSize"
SCRIPTS = "ScriptDuration"
COUNTERS = frozenset({SCRIPTS, "Nodes", "LayoutCount", "RecalcStyleCount", HEAP})
"""Metrics read of ``Performance.getMetrics``: seconds of callbacks, nodes, how often layout and
styles were computed, and bytes."""

HEAP_BYTES = 16
"""Bytes by which the heap may grow at rest: 8 after keys were typed (Chromium 156). The first run
of a function's rest took 2,600."""


class ActivityProbe:
    """Two readings of a page, and whether anything ran between them."""

    def __init__(self, cdp: Cdp, requests: RequestTracker) -> None:
        self._cdp = cdp
        self._requests = requests
        self._counting = False
        self._events_seen = 0
        self._marked: dict[str, float] | None = None
        self.last: dict[str, float] = {}
        """The counters when they were read last."""

    def attached_again(self) -> None:
        """The session was bound to its page anew and counts no more."""
        self._counting, self._marked = False, None

    def listen(self) -> None:
        """Begin to listen: no event of a request or a navigation may come from now on."""
        self._events_seen = self._requests.events_seen

    @property
    def marked(self) -> bool:
        """True after `mark`: `holds` can then be asked."""
        return self._marked is not None

    async def mark(self) -> None:
        """Read the counters: nothing may run from now on. The page's clock must stand."""
        self._marked = await self.read() or None

    def unmark(self) -> None:
        """It is not worth knowing any more."""
        self._marked = None

    async def holds(self) -> bool:
        """True if nothing came and nothing ran; False without a mark.

        Ask before a script of ours runs in the page.
        """
        marked, self._marked = self._marked, None
        now = await self.read() if marked else {}
        if not marked or not now:
            return False
        grown = now.pop(HEAP) - marked.pop(HEAP)
        return now == marked and 0 <= grown <= HEAP_BYTES and self._events_seen == self._requests.events_seen

    async def read(self) -> dict[str, float]:
        """The counters.

        Empty where the browser has none to tell (one without thread times, or a connection that is
        lost: the next call says so).
        """
        try:
            if not self._counting:
                await self._cdp.send(
                    "Performance.enable", {"timeDomain": "threadTicks"}
                )  # not the page's, which is held
                self._counting = True
            metrics = (await self._cdp.send("Performance.getMetrics"))["metrics"]
        except BrowserError:
            metrics = []
        self.last = {metric["name"]: metric["value"] for metric in metrics if metric["name"] in COUNTERS}
        return self.last
