"""Tracks the requests of a page from the Network events of its session.

Pure bookkeeping: it takes events, answers questions, and wakes whoever waits (`wait_event`).
Whether a page waits for a request depends on its kind: an event stream, a beacon or a request that
was found to never end is open but not waited for. A request whose address was once found to never
end (a long poll) is not waited for when it is made again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envs.egress.message import ERROR_HEADER, PROBLEM_HEADER

if TYPE_CHECKING:
    from envs.cdp import Cdp

STAYS = "the page stays as it is"

UNWAITED = frozenset({"EventSource", "WebSocket", "Ping", "Preflight"})
"""Kinds that have no end of their own, or whose end is not seen. A preflight belongs to a request
that is waited for."""

FREE = frozenset({"WebSocket", "Ping", "Preflight"})
"""Kinds that do not hold a clock that waits for requests."""

PATIENT = frozenset({"Document", "Stylesheet", "Script"})
"""Kinds without which a page is not the page: never given up for being slow, only by the real-time
budget."""

PARTS = {
    "Document": "frame",
    "Font": "font",
    "Image": "picture",
    "Media": "recording",
    "Script": "script",
    "Stylesheet": "style sheet",
}
"""Kinds that belong to what a page shows, by what they are called where one does not come. Others
may be meant to stay open."""

STALL_SECONDS = 2.0
"""Real seconds without a byte after which a request does not end. Sites of this project answer
within 0.5 s on loaded machines; a long poll holds its answer for 20 s or more."""

ENDLESS_SECONDS = 3.0
"""Real seconds after which a request that still sends bytes does not end: a stream that is read by
script."""

MAX_ADDRESSES = 500
"""Addresses of endless requests, and of files, that are remembered for a page."""


@dataclass
class Request:
    """One request in flight."""

    url: str
    kind: str
    """Its resource type: Document, Script, XHR, Fetch…"""
    frame: str
    loader: str
    """The document load that it belongs to."""
    began: float
    """Time of `RequestTracker.clock`, s."""
    heard: float
    """Time of the last sign of life."""
    endless: bool = False
    """Not waited for any more."""
    status: int | None = None
    """Status of the answer; ``None`` before it."""
    media: str = ""
    """Type of its answer."""

    @property
    def place(self) -> str:
        """Address without query and fragment."""
        return self.url.split("?", 1)[0].split("#", 1)[0]


LEFT_OPEN = "did not come, and the page is without it"
"""Text of a notice about a part of a page that was waited for long enough."""

MAX_PROBLEM = 300
"""Characters of a site's reason that are kept; any site may send the header."""


@dataclass
class RequestTracker:
    """Tracks the requests of one page in flight; `watch` adds sessions (its own, its workers')."""

    clock: Callable[[], float] = time.monotonic
    open: dict[str, Request] = field(default_factory=dict)
    """Requests by id."""
    main_status: int | None = None
    """Status of the newest main document; ``None`` before its answer."""
    main_unreachable: bool = False
    """The egress proxy gave that answer itself: nothing answers at the address."""
    main_problem: str = ""
    """Reason that a site of ours gave for an error, in words."""
    workers: int = 0
    """Workers that the document has made, shared ones too."""
    unanswered: int = 0
    """Messages that the page sent on sockets since something came back."""
    heard_at: float = 0.0
    """Time of the last message on a socket or an event stream."""
    finished_at: float = 0.0
    """Time when a request began or ended last."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each event, and by whoever else wakes those in `wait_event`."""
    events_seen: int = 0
    """Events received."""
    _notices: list[str] = field(default_factory=list)
    _files: dict[str, None] = field(default_factory=dict)
    """Addresses of files that were announced before the browser said that they are downloads."""
    _endless_places: dict[str, None] = field(default_factory=dict)
    _main_frame: str = ""
    _main_method: str = ""
    _shown_status: int | None = None
    """Status of the main document that is shown."""

    def watch(self, cdp: Cdp) -> None:
        """Listen to a session; ``Network.enable`` (and ``Page.enable`` for a page) is the
        caller's."""
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "Network.requestWillBeSent": self._sent,
            "Network.responseReceived": self._answered,
            "Network.dataReceived": self._progressed,
            "Network.loadingFinished": self._ended,
            "Network.loadingFailed": self._failed,
            "Network.webSocketCreated": self._socket_sent,
            "Network.webSocketHandshakeResponseReceived": self._socket_heard,
            "Network.webSocketFrameSent": self._socket_sent,
            "Network.webSocketFrameReceived": self._socket_heard,
            "Network.webSocketClosed": self._socket_heard,
            "Network.eventSourceMessageReceived": self._socket_heard,
            "Page.frameNavigated": self._navigated,
            "Page.navigatedWithinDocument": lambda _event: None,  # to be heard of, no more
            "Page.frameDetached": self._detached,
            "Page.frameRequestedNavigation": self._navigation_requested,
            "Page.frameStoppedLoading": self._navigation_over,
            "Page.downloadWillBegin": self._download_began,
        }
        for event, handler in handlers.items():
            cdp.on(event, self._telling(handler))

    def waiting(self) -> list[Request]:
        """Requests that are worth waiting for."""
        return [request for request in self.open.values() if not request.endless]

    def endless(self) -> bool:
        """True if an endless request is open that holds the page's clock."""
        return any(request.endless and request.kind not in FREE for request in self.open.values())

    def navigating(self, *, frames: bool = False) -> bool:
        """True if a document of the main frame (of any frame) is being loaded or requested."""
        return any(
            request.kind in ("Document", "Navigation") and (frames or self._main_frame in ("", request.frame))
            for request in self.open.values()
        )

    def expire_stalled(self) -> list[Request]:
        """Find requests that have made no progress for long, and wait for them no more."""
        now = self.clock()
        stalled = [request for request in self.waiting() if now >= self._patience(request)]
        self._leave_open(stalled)
        return stalled

    def give_up(self) -> list[Request]:
        """Give up the parts of the page that have no time limit, and return them."""
        missing = [request for request in self.waiting() if request.kind in PATIENT]
        self._leave_open(missing)
        return missing

    def patience(self) -> float:
        """Seconds until `expire_stalled` may find something; infinite if it never will."""
        ends = [self._patience(request) for request in self.waiting()]
        return max(0.0, min(ends, default=float("inf")) - self.clock())

    @property
    def repeatable(self) -> bool:
        """True if the main document was requested by GET, and so may be requested again."""
        return self._main_method == "GET"

    async def wait_event(self, seconds: float) -> bool:
        """Wait for the next event for ``seconds``, which may be infinite; whether one came."""
        self.changed.clear()
        try:
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await self.changed.wait()
        except TimeoutError:
            return False
        return True

    def drain_notices(self) -> list[str]:
        """Return and clear the notices of navigations that showed no page.

        They led to a file, an empty answer, or an error.
        """
        notices, self._notices = self._notices, []
        return notices

    def _leave_open(self, requests: list[Request]) -> None:
        for request in requests:
            request.endless = True
            _keep(self._endless_places, request.place)
            if request.kind in PARTS and not self._is_main(request.kind, request.frame):
                self._notices.append(f"a {PARTS[request.kind]} {LEFT_OPEN}: {request.place}")

    def _patience(self, request: Request) -> float:
        if request.kind in PATIENT:
            return float("inf")
        return min(request.heard + STALL_SECONDS, request.began + ENDLESS_SECONDS)

    def _telling(self, handler: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        def tell(event: dict[str, Any]) -> None:
            handler(event)
            self.events_seen += 1
            self.changed.set()

        return tell

    def _sent(self, event: dict[str, Any]) -> None:
        url, kind = event["request"]["url"], event.get("type", "Other")
        if kind == "Script" and not event.get("loaderId"):
            self.workers += 1  # a worker's own script, whose end is not said here
            return
        if url.startswith(("data:", "blob:")):
            return
        if self._is_main(event.get("type"), event.get("frameId")):
            self._main_method = event["request"]["method"]
            if not event.get("redirectResponse"):
                self.main_status = None
        now = self.finished_at = self.clock()
        self.open.pop(_requested(event.get("frameId", "")), None)
        if kind == "EventSource":
            self.unanswered += 1
            self.heard_at = now
        request = Request(url, kind, event.get("frameId", ""), event.get("loaderId", ""), now, now)
        request.endless = kind in UNWAITED or request.place in self._endless_places
        self.open[event["requestId"]] = request

    def _answered(self, event: dict[str, Any]) -> None:
        status = int(event["response"]["status"])
        if self._is_main(event.get("type"), event.get("frameId")):
            self.main_status = status
            headers = event["response"].get("headers", {})
            self.main_unreachable = ERROR_HEADER in headers
            self.main_problem = headers.get(PROBLEM_HEADER, "")[:MAX_PROBLEM]
        request = self.open.get(event["requestId"])
        if request is not None:
            request.status, request.media = status, event["response"].get("mimeType", "")
        self._progressed(event)

    def _is_main(self, kind: str | None, frame: str | None) -> bool:
        # Before the first navigation nothing but the main document can be asked for.
        return kind == "Document" and self._main_frame in ("", frame)

    def _progressed(self, event: dict[str, Any]) -> None:
        request = self.open.get(event["requestId"])
        if request is not None:
            request.heard = self.clock()

    def _ended(self, event: dict[str, Any]) -> None:
        if self.open.pop(event["requestId"], None) is not None:
            self.finished_at = self.clock()

    def _failed(self, event: dict[str, Any]) -> None:
        request = self.open.get(event["requestId"])
        self._ended(event)
        if request is not None and self._is_main(request.kind, request.frame):
            self._no_page(request, "" if event.get("canceled") else event.get("errorText", ""))

    def _no_page(self, request: Request, error: str) -> None:
        """A navigation ended without its document.

        With an error, or canceled because there is nothing to show, or because it was given up.
        """
        if error:
            answer = "" if request.status is None else f" (HTTP {request.status})"
            self._notices.append(f"the page was not loaded: {error}{answer}")
            return
        if not any(self._is_main(other.kind, other.frame) and other.status is None for other in self.open.values()):
            self.main_status = self._shown_status  # else it gave way to another navigation, which has no answer yet
        if request.status in (204, 205):
            self._notices.append(f"the answer was empty (HTTP {request.status}): {STAYS}")
        elif request.status is not None:
            _keep(self._files, request.url)
            self._notices.append(f"a file was sent ({request.media}), which is not shown: {STAYS}")

    def _download_began(self, event: dict[str, Any]) -> None:
        if event["url"] in self._files:
            del self._files[event["url"]]
        else:
            self._notices.append(f"a file was sent ({event['suggestedFilename']}), which is not shown: {STAYS}")

    def _socket_sent(self, _event: dict[str, Any]) -> None:
        self.unanswered += 1
        self.heard_at = self.clock()

    def _socket_heard(self, _event: dict[str, Any]) -> None:
        self.unanswered = 0
        self.heard_at = self.clock()

    def _navigated(self, event: dict[str, Any]) -> None:
        frame = event["frame"]
        main = "parentId" not in frame
        if main:
            self._main_frame = frame["id"]
            self._shown_status = self.main_status
            self.unanswered = self.workers = 0
        # The requests of the document that is gone: for some of them no end is ever said.
        self._forget(lambda request: (main or request.frame == frame["id"]) and request.loader != frame["loaderId"])

    def _navigation_requested(self, event: dict[str, Any]) -> None:
        # A script or a click asked for it; its request is said by the browser's own process, which
        # may be later than the page's end of time.
        if event.get("disposition") == "currentTab":
            now = self.clock()
            self.open[_requested(event["frameId"])] = Request(
                event["url"], "Navigation", event["frameId"], "", now, now
            )

    def _navigation_over(self, event: dict[str, Any]) -> None:
        self.open.pop(_requested(event["frameId"]), None)

    def _detached(self, event: dict[str, Any]) -> None:
        if event.get("reason") != "swap":
            self._forget(lambda request: request.frame == event["frameId"])

    def _forget(self, gone: Callable[[Request], bool]) -> None:
        self.open = {name: request for name, request in self.open.items() if not gone(request)}


def _keep(addresses: dict[str, None], address: str) -> None:
    """Keep an address, and forget the oldest where there are too many.

    A page may make up a new one for each request.
    """
    addresses.pop(address, None)
    addresses[address] = None
    if len(addresses) > MAX_ADDRESSES:
        del addresses[next(iter(addresses))]


def _requested(frame: str) -> str:
    """Stands for the request of a navigation that was asked for but not begun."""
    return f"navigation of {frame}"
