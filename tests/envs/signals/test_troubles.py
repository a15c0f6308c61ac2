"""Failures are counted from CDP events, each kind once, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envs.signals.troubles import MAX_OPEN, TEXT_CHARS, Troubles
from envs.types.signals import MAX_TROUBLES, Trouble


class Events:
    """A CDP session that only has events."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[dict[str, Any]], Any]] = {}

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        raise AssertionError(f"{method} was called")

    def on(self, event: str, f: Callable[[dict[str, Any]], Any]) -> None:
        self.handlers[event] = f

    def fire(self, event: str, **params: Any) -> None:
        self.handlers[event](params)

    def response(self, status: int, *, kind: str = "Fetch", frame: str = "main", **headers: str) -> None:
        response = {"status": status, "url": "http://127.0.0.1/a?token=1#x", "headers": headers}
        self.fire("Network.responseReceived", requestId="1", type=kind, frameId=frame, response=response)


def listening() -> tuple[Events, Troubles]:
    events = Events()
    return events, Troubles(events, "main")


def test_what_our_proxy_refused_is_told_from_what_the_site_refused() -> None:
    events, troubles = listening()
    events.response(403)
    events.response(403, **{"X-Rollwright-Blocked": "loopback"})
    events.response(200)
    counts, first = troubles.take()
    assert counts == {Trouble.HTTP_ERROR: 1, Trouble.BLOCKED_REQUEST: 1}
    assert [(each.text, each.url) for each in first] == [
        ("403", "http://127.0.0.1/a"),
        ("loopback", "http://127.0.0.1/a"),
    ]
    assert troubles.take() == ({}, ())


def test_the_status_is_of_the_main_frame() -> None:
    events, troubles = listening()
    events.response(503, kind="Document")
    events.response(404, kind="Document", frame="inner")
    events.response(500)
    assert troubles.status == 503
    events.response(0, kind="Document")
    assert troubles.status is None


def test_a_request_that_the_page_took_back_is_no_failure() -> None:
    events, troubles = listening()
    for number, canceled in enumerate((True, False)):
        events.fire("Network.requestWillBeSent", requestId=str(number), request={"url": f"http://h/{number}"})
        events.fire("Network.loadingFailed", requestId=str(number), canceled=canceled, errorText="net::ERR_FAILED")
    events.fire("Network.loadingFailed", requestId="unknown", errorText="", blockedReason="mixed-content")
    events.fire("Network.webSocketCreated", requestId="w", url="ws://h/s")
    events.fire("Network.webSocketFrameError", requestId="w", errorMessage="refused")
    counts, first = troubles.take()
    assert counts == {Trouble.FAILED_REQUEST: 3}
    assert [(each.text, each.url) for each in first] == [
        ("net::ERR_FAILED", "http://h/1"),
        ("mixed-content", ""),
        ("refused", "ws://h/s"),
    ]


def test_a_page_cannot_fill_the_memory() -> None:
    events, troubles = listening()
    for number in range(2 * MAX_OPEN):
        events.fire("Network.requestWillBeSent", requestId=str(number), request={"url": "http://h/" + "x" * 10_000})
        events.fire("Runtime.consoleAPICalled", type="error", args=[{"type": "string", "value": "y" * 10_000}])
    assert len(troubles._urls) == MAX_OPEN
    counts, first = troubles.take()
    assert counts == {Trouble.CONSOLE_ERROR: 2 * MAX_OPEN}
    assert len(first) == MAX_TROUBLES and {len(each.text) for each in first} == {TEXT_CHARS}
