"""The bookkeeping of requests, without a browser."""

from __future__ import annotations

from typing import Any

import pytest

from envs.settle.requests import ENDLESS_SECONDS, STALL_SECONDS, RequestTracker


class Page:
    """A session whose events are made by hand, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.handlers: dict[str, Any] = {}
        self.tracker = RequestTracker(clock=lambda: self.now)
        self.tracker.watch(self)

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        raise AssertionError("a tracker only listens")

    def on(self, event: Any, f: Any) -> None:
        self.handlers[event] = f

    def sent(self, name: str, kind: str = "Fetch", url: str = "http://a/x?q=1", frame: str = "F", **more: Any) -> None:
        event = {
            "requestId": name,
            "request": {"url": url, "method": "GET"},
            "type": kind,
            "frameId": frame,
            "loaderId": "L1",
            **more,
        }
        self.handlers["Network.requestWillBeSent"](event)

    def event(self, name: str, **params: Any) -> None:
        self.handlers[name](params)


@pytest.fixture
def page() -> Page:
    return Page()


def test_a_request_is_waited_for_until_it_ends(page: Page) -> None:
    page.sent("1")
    assert [request.url for request in page.tracker.waiting()] == ["http://a/x?q=1"]
    page.event("Network.loadingFinished", requestId="1")
    assert page.tracker.waiting() == [] and not page.tracker.open


def test_a_redirect_is_one_request(page: Page) -> None:
    page.sent("1", "Document")
    page.sent("1", "Document", url="http://a/y", redirectResponse={"status": 302})
    assert len(page.tracker.waiting()) == 1
    page.event("Network.loadingFinished", requestId="1")
    assert page.tracker.waiting() == []


def test_a_request_without_a_byte_is_given_up_and_not_waited_for_again(page: Page) -> None:
    page.sent("1", url="http://a/poll?since=1")
    page.now += STALL_SECONDS - 0.01
    assert page.tracker.expire_stalled() == [] and page.tracker.patience() == pytest.approx(0.01)
    page.now += 0.01
    assert len(page.tracker.expire_stalled()) == 1
    assert page.tracker.waiting() == [] and page.tracker.endless()
    page.event("Network.loadingFinished", requestId="1")
    assert not page.tracker.endless()
    page.sent("2", url="http://a/poll?since=2")
    assert page.tracker.waiting() == [] and page.tracker.endless()


def test_bytes_keep_a_request_alive_but_not_for_ever(page: Page) -> None:
    page.sent("1")
    began = page.now
    while page.now + 1 < began + ENDLESS_SECONDS:
        page.now += 1
        page.event("Network.dataReceived", requestId="1", dataLength=1)
        assert page.tracker.expire_stalled() == []
    page.now = began + ENDLESS_SECONDS
    assert len(page.tracker.expire_stalled()) == 1


@pytest.mark.parametrize("kind", ["Document", "Stylesheet", "Script"])
def test_what_makes_the_page_is_not_given_up(page: Page, kind: str) -> None:
    page.sent("1", kind)
    page.now += 1000
    assert page.tracker.expire_stalled() == [] and page.tracker.patience() == float("inf")


def test_streams_sockets_and_beacons_are_not_waited_for(page: Page) -> None:
    page.sent("1", "EventSource", url="http://a/events")
    assert page.tracker.waiting() == [] and page.tracker.endless() and page.tracker.unanswered == 1
    page.event("Network.eventSourceMessageReceived", requestId="1")
    assert page.tracker.unanswered == 0
    page.sent("2", "Ping", url="http://a/beacon")
    page.event("Network.loadingFinished", requestId="1")
    assert not page.tracker.endless()  # a beacon holds no clock


def test_a_navigation_forgets_the_requests_of_the_old_document(page: Page) -> None:
    page.event("Page.frameNavigated", frame={"id": "F", "loaderId": "L0"})
    page.sent("old", url="http://a/never", loaderId="L0")
    page.sent("new", "Document", url="http://a/next", loaderId="L1")
    page.event("Page.frameNavigated", frame={"id": "F", "loaderId": "L1"})
    assert [request.url for request in page.tracker.waiting()] == ["http://a/next"]


def test_a_frame_takes_its_requests_with_it(page: Page) -> None:
    page.event("Page.frameNavigated", frame={"id": "F", "loaderId": "L1"})
    page.sent("1", frame="child")
    page.sent("2", frame="F")
    page.event("Page.frameDetached", frameId="child", reason="remove")
    assert len(page.tracker.waiting()) == 1


def test_a_navigation_that_was_asked_for_is_waited_for(page: Page) -> None:
    page.event("Page.frameRequestedNavigation", frameId="F", url="http://a/next", disposition="currentTab")
    assert len(page.tracker.waiting()) == 1
    page.sent("1", "Document", url="http://a/next")
    page.event("Network.loadingFinished", requestId="1")
    assert page.tracker.waiting() == []


def test_a_worker_counts_until_the_next_document(page: Page) -> None:
    page.sent("1", "Script", url="http://a/worker.js", loaderId="")
    assert page.tracker.workers == 1 and page.tracker.waiting() == []
    page.event("Page.frameNavigated", frame={"id": "F", "loaderId": "L1"})
    assert page.tracker.workers == 0


def test_a_frame_that_is_loaded_is_no_navigation_of_the_page(page: Page) -> None:
    page.event("Page.frameNavigated", frame={"id": "F", "loaderId": "L1"})
    page.sent("1", "Document", frame="child")
    assert not page.tracker.navigating() and page.tracker.navigating(frames=True)
    page.sent("2", "Document")
    assert page.tracker.navigating()


def test_counts_and_the_status_of_the_main_document(page: Page) -> None:
    page.sent("1", "Document")
    assert page.tracker.main_status is None
    page.event("Network.responseReceived", requestId="1", type="Document", frameId="F", response={"status": 503})
    page.event("Page.frameNavigated", frame={"id": "F", "loaderId": "L1"})
    page.sent("2", "Document", frame="child")
    page.event("Network.responseReceived", requestId="2", type="Document", frameId="child", response={"status": 404})
    assert page.tracker.main_status == 503
    page.sent("3")
    page.event("Network.loadingFailed", requestId="3", canceled=True)
    page.sent("4")
    page.event("Network.loadingFailed", requestId="4")


def test_a_navigation_that_shows_no_page_is_told_once(page: Page) -> None:
    def answered(name: str, status: int, media: str = "text/html", frame: str = "F") -> None:
        page.sent(name, "Document", url=f"http://a/{name}", frame=frame)
        response = {"status": status, "mimeType": media}
        page.event("Network.responseReceived", requestId=name, type="Document", frameId=frame, response=response)

    def failed(name: str, **why: Any) -> None:
        page.event("Network.loadingFailed", requestId=name, **why)

    answered("shown", 404)
    page.event("Page.frameNavigated", frame={"id": "F", "loaderId": "L1"})
    answered("empty", 205)
    assert page.tracker.main_status == 205
    failed("empty", canceled=True)
    assert page.tracker.main_status == 404, "what is shown is still the page of before"
    assert page.tracker.drain_notices() == ["the answer was empty (HTTP 205): the page stays as it is"]
    answered("file", 200, "application/zip")
    failed("file", canceled=True)
    page.event("Page.downloadWillBegin", url="http://a/file", suggestedFilename="file.zip")
    assert page.tracker.drain_notices() == [
        "a file was sent (application/zip), which is not shown: the page stays as it is"
    ]
    page.event("Page.downloadWillBegin", url="http://a/file", suggestedFilename="file.zip")
    assert page.tracker.drain_notices() == ["a file was sent (file.zip), which is not shown: the page stays as it is"]
    page.sent("given up", "Document")
    failed("given up", canceled=True)
    answered("in a frame", 204, frame="G")
    failed("in a frame", canceled=True)
    assert page.tracker.drain_notices() == [] and page.tracker.main_status == 404
    page.sent("broken", "Document")
    failed("broken", canceled=False, errorText="net::ERR_EMPTY_RESPONSE")
    answered("alone", 500)
    failed("alone", canceled=False, errorText="net::ERR_HTTP_RESPONSE_CODE_FAILURE")
    assert page.tracker.drain_notices() == [
        "the page was not loaded: net::ERR_EMPTY_RESPONSE",
        "the page was not loaded: net::ERR_HTTP_RESPONSE_CODE_FAILURE (HTTP 500)",
    ]


def test_a_navigation_that_gives_way_to_another_leaves_the_status_to_it(page: Page) -> None:
    response = {"status": 200, "mimeType": "text/html"}
    page.sent("shown", "Document")
    page.event("Network.responseReceived", requestId="shown", type="Document", frameId="F", response=response)
    page.event("Page.frameNavigated", frame={"id": "F", "loaderId": "L1"})
    page.event("Network.loadingFinished", requestId="shown")
    page.sent("first", "Document")
    page.sent("second", "Document")
    page.event("Network.loadingFailed", requestId="first", canceled=True)
    assert page.tracker.main_status is None and page.tracker.drain_notices() == []
    page.event("Network.loadingFailed", requestId="second", canceled=False, errorText="net::ERR_EMPTY_RESPONSE")
    assert page.tracker.main_status is None, "what is shown is the browser's own page"


def test_a_page_with_ever_new_addresses_does_not_make_the_tracker_grow(page: Page) -> None:
    many = 2000
    answer = {"status": 200, "mimeType": "application/zip"}
    for n in range(many):
        page.sent("poll", url=f"http://a/poll/{n}")
        page.now += ENDLESS_SECONDS
        page.tracker.expire_stalled()
        page.event("Network.loadingFinished", requestId="poll")
        page.sent("file", "Document", url=f"http://a/file/{n}")
        page.event("Network.responseReceived", requestId="file", response=answer, type="Document", frameId="F")
        page.event("Network.loadingFailed", requestId="file", canceled=True)
        page.tracker.drain_notices()
    sizes = {name: len(value) for name, value in vars(page.tracker).items() if isinstance(value, dict | set | list)}
    assert max(sizes.values()) < many / 2, sizes
    page.sent("again", url=f"http://a/poll/{many - 1}")
    assert page.tracker.waiting() == [], "the newest are still known"
    page.event("Page.downloadWillBegin", url=f"http://a/file/{many - 1}", suggestedFilename="file.zip")
    assert page.tracker.drain_notices() == [], "its file has been reported"
