"""Collects console errors, exceptions and failed requests of a page over CDP."""

from __future__ import annotations

from collections import Counter
from typing import Any

from envs.cdp import Cdp
from envs.types.signals import MAX_TROUBLES, PageTrouble, Trouble

TEXT_CHARS = 200
"""Length of a kept message or URL, in characters; a page may log megabytes."""
MAX_OPEN = 512
"""Requests whose URL is remembered while they run; the oldest are forgotten first."""
CONSOLE = frozenset({"error", "assert"})
BLOCKED_HEADER = "x-rollwright-blocked"


class Troubles:
    """Listens to a page; `take` returns what happened since the last call.

    The session needs its Runtime and Network domains enabled.
    """

    def __init__(self, cdp: Cdp, main_frame: str) -> None:
        self.status: int | None = None
        """HTTP status of the last document of the main frame."""
        self._main_frame = main_frame
        self._counts: Counter[Trouble] = Counter()
        self._first: list[PageTrouble] = []
        self._urls: dict[str, str] = {}
        cdp.on("Runtime.consoleAPICalled", self._on_console)
        cdp.on("Runtime.exceptionThrown", self._on_exception)
        cdp.on("Network.requestWillBeSent", self._on_request)
        cdp.on("Network.responseReceived", self._on_response)
        cdp.on("Network.loadingFinished", lambda event: self._urls.pop(event["requestId"], None))
        cdp.on("Network.loadingFailed", self._on_failed)
        cdp.on("Network.webSocketCreated", lambda event: self._remember(event["requestId"], event["url"]))
        cdp.on("Network.webSocketFrameError", self._on_socket_error)

    def take(self) -> tuple[dict[Trouble, int], tuple[PageTrouble, ...]]:
        """Return counts by kind and the first few, since the last call."""
        counts, first = dict(self._counts), tuple(self._first)
        self._counts.clear()
        self._first.clear()
        return counts, first

    def _add(self, kind: Trouble, text: str, url: str = "") -> None:
        self._counts[kind] += 1
        if len(self._first) < MAX_TROUBLES:
            bare = url.partition("?")[0].partition("#")[0]
            self._first.append(PageTrouble(kind=kind, text=text[:TEXT_CHARS], url=bare[:TEXT_CHARS]))

    def _remember(self, request_id: str, url: str) -> None:
        if len(self._urls) >= MAX_OPEN:
            del self._urls[next(iter(self._urls))]
        self._urls[request_id] = url[: 2 * TEXT_CHARS]

    def _on_console(self, event: dict[str, Any]) -> None:
        if event["type"] in CONSOLE:
            text = " ".join(str(arg.get("value", arg.get("description", arg["type"]))) for arg in event["args"])
            self._add(Trouble.CONSOLE_ERROR, text)

    def _on_exception(self, event: dict[str, Any]) -> None:
        details = event["exceptionDetails"]
        thrown = details.get("exception", {})
        text = str(thrown.get("description", thrown.get("value", details["text"])))
        self._add(Trouble.EXCEPTION, text.partition("\n")[0], details.get("url", ""))

    def _on_request(self, event: dict[str, Any]) -> None:
        self._remember(event["requestId"], event["request"]["url"])

    def _on_response(self, event: dict[str, Any]) -> None:
        response = event["response"]
        status = int(response["status"])
        if event["type"] == "Document" and event.get("frameId") == self._main_frame:
            self.status = status or None
        if status >= 400:
            headers = {name.lower(): value for name, value in response["headers"].items()}
            if reason := headers.get(BLOCKED_HEADER):
                self._add(Trouble.BLOCKED_REQUEST, reason, response["url"])
            else:
                self._add(Trouble.HTTP_ERROR, str(status), response["url"])

    def _on_failed(self, event: dict[str, Any]) -> None:
        url = self._urls.pop(event["requestId"], "")
        if not event.get("canceled"):  # a page or navigation that cancels a request is no failure
            self._add(Trouble.FAILED_REQUEST, event.get("errorText") or str(event.get("blockedReason")), url)

    def _on_socket_error(self, event: dict[str, Any]) -> None:
        self._add(Trouble.FAILED_REQUEST, event["errorMessage"], self._urls.pop(event["requestId"], ""))
