"""Keeps an episode's requests, and writes them as an HTTP archive (HAR 1.2).

The archive says what was asked and answered, without the answers' bodies. The headers of cookies
and credentials are left out. The bodies of requests are kept: they hold what a page sends, such as
a typed password or a site's own token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from envs.cdp import Cdp

MAX_REQUESTS = 10_000
"""Requests of an episode that are kept; a page that polls for hours makes more."""

SECRET_HEADERS = frozenset(["authorization", "cookie", "proxy-authorization", "set-cookie"])
"""Names of headers that are left out."""

CREATOR = {"name": "Rollwright", "version": "0.1.0"}

Headers = list[dict[str, str]]


@dataclass(slots=True)
class LoggedRequest:
    """One request, and its answer as far as it came."""

    url: str
    method: str
    started: float
    """Seconds since 1970, on the machine's clock."""
    begun: float
    """Monotonic seconds of the browser."""
    resource: str
    """Chromium's type: ``Document``, ``XHR``, ``Fetch``, ``Image``…"""
    headers: Headers = field(default_factory=list)
    sent: bool = False
    """True if the headers are those that were sent, with what the network stack added."""
    body: str | None = None
    response: dict[str, Any] | None = None
    """Chromium's ``Network.Response``; ``None`` while there is no answer."""
    answered: float | None = None
    ended: float | None = None
    size: int = 0
    """Bytes of the answer as they were sent."""
    error: str = ""
    """Chromium's error for a request that failed, such as ``net::ERR_ABORTED``."""


class NetworkLog:
    """Requests of all tabs of one browser context, in the order in which they began."""

    def __init__(self) -> None:
        self.requests: list[LoggedRequest] = []
        self.left_out = 0
        """Number of requests after the first `MAX_REQUESTS`."""
        self._open: dict[tuple[int, str], LoggedRequest] = {}
        self._sent: dict[tuple[int, str], Headers] = {}
        """Headers that were reported before their requests."""

    def watch(self, cdp: Cdp) -> None:
        """Log the requests of a tab, whose ``Network`` domain is enabled."""
        tab = id(cdp)
        cdp.on("Network.requestWillBeSent", lambda event: self._on_request(tab, event))
        cdp.on("Network.requestWillBeSentExtraInfo", lambda event: self._on_sent(tab, event))
        cdp.on("Network.responseReceived", lambda event: self._on_response(tab, event))
        cdp.on("Network.loadingFinished", lambda event: self._on_end(tab, event))
        cdp.on("Network.loadingFailed", lambda event: self._on_end(tab, event))

    def clear(self) -> None:
        """Forget all requests: another episode begins."""
        self.requests.clear()
        self._open.clear()
        self._sent.clear()
        self.left_out = 0

    def _on_request(self, tab: int, event: dict[str, Any]) -> None:
        key, request = (tab, event["requestId"]), event["request"]
        if (redirected := event.get("redirectResponse")) and (before := self._open.pop(key, None)):
            before.response, before.answered, before.ended = redirected, event["timestamp"], event["timestamp"]
        if request["url"].startswith(("data:", "blob:")):
            return
        if len(self.requests) >= MAX_REQUESTS:
            self.left_out += 1
            return
        logged = LoggedRequest(
            url=request["url"] + request.get("urlFragment", ""),
            method=request["method"],
            started=event["wallTime"],
            begun=event["timestamp"],
            resource=event.get("type", "Other"),
            headers=_headers(request.get("headers", {})),
            body=request.get("postData"),
        )
        self._open[key] = logged
        self.requests.append(logged)
        if (sent := self._sent.pop(key, None)) is not None:
            logged.headers, logged.sent = sent, True

    def _on_sent(self, tab: int, event: dict[str, Any]) -> None:
        """Take the headers as they were sent (``Accept``, ``Sec-Fetch-Mode``…), in either order."""
        key, headers = (tab, event["requestId"]), _headers(event["headers"])
        logged = self._open.get(key)
        if logged is not None and not logged.sent:
            logged.headers, logged.sent = headers, True
        elif len(self._sent) < MAX_REQUESTS:  # of a redirect that follows, or of a request to come
            self._sent[key] = headers

    def _on_response(self, tab: int, event: dict[str, Any]) -> None:
        if logged := self._open.get((tab, event["requestId"])):
            logged.response, logged.answered = event["response"], event["timestamp"]

    def _on_end(self, tab: int, event: dict[str, Any]) -> None:
        if logged := self._open.pop((tab, event["requestId"]), None):
            logged.ended, logged.size = event["timestamp"], int(event.get("encodedDataLength", 0))
            logged.error = event.get("errorText", "")

    def har(self) -> dict[str, Any]:
        """Return the requests so far as an HTTP archive: ``{"log": {"entries": […], …}}``."""
        return {
            "log": {
                "version": "1.2",
                "creator": dict(CREATOR),
                "pages": [],
                "entries": [_entry(request) for request in self.requests],
            }
        }


def _entry(request: LoggedRequest) -> dict[str, Any]:
    response = request.response or {}
    answered = request.answered if request.answered is not None else request.ended
    wait = -1.0 if answered is None else max(0.0, (answered - request.begun) * 1000)
    receive = -1.0 if answered is None or request.ended is None else max(0.0, (request.ended - answered) * 1000)
    protocol = str(response.get("protocol", "")) or "http/1.1"
    entry: dict[str, Any] = {
        "startedDateTime": datetime.fromtimestamp(request.started, UTC).isoformat(timespec="milliseconds"),
        "time": max(0.0, wait) + max(0.0, receive),
        "request": {
            "method": request.method,
            "url": request.url,
            "httpVersion": protocol,
            "cookies": [],
            "headers": request.headers,
            "queryString": [
                {"name": name, "value": value}
                for name, value in parse_qsl(urlsplit(request.url).query, keep_blank_values=True)
            ],
            "headersSize": -1,
            "bodySize": len(request.body.encode()) if request.body is not None else 0,
        },
        "response": {
            "status": int(response.get("status", 0)),
            "statusText": str(response.get("statusText", "")),
            "httpVersion": protocol,
            "cookies": [],
            "headers": _headers(response.get("headers", {})),
            "content": {"size": request.size, "mimeType": str(response.get("mimeType", ""))},
            "redirectURL": _header(response.get("headers", {}), "location"),
            "headersSize": -1,
            "bodySize": request.size,
        },
        "cache": {},
        "timings": {"send": 0, "wait": wait, "receive": receive},
        "_resourceType": request.resource.lower(),
    }
    if request.body is not None:
        kind = next((header["value"] for header in request.headers if header["name"].lower() == "content-type"), "")
        entry["request"]["postData"] = {"mimeType": kind, "text": request.body}
    if request.error:
        entry["response"]["_error"] = request.error
    return entry


def _headers(given: dict[str, str]) -> Headers:
    return [{"name": name, "value": value} for name, value in given.items() if name.lower() not in SECRET_HEADERS]


def _header(given: dict[str, str], wanted: str) -> str:
    return next((value for name, value in given.items() if name.lower() == wanted), "")
