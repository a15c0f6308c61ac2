"""Errors of tasks that no caller waits for: a page that went away is no fault, everything else is
seen, once."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from envs.browser import BrowserPool
from envs.browser.context import BrowserContext
from envs.browser.options import ContextOptions, Device, PoolOptions
from envs.browser.playwright_session import PlaywrightSession
from envs.browser.process.browser import Browser
from envs.browser.process.connection import Connection
from envs.browser.process.states import ConnectionState
from envs.browser.tab import FirstRequest
from envs.cdp import CdpError
from envs.cdp.client import CdpSession
from envs.observation import ObservationOptions
from envs.settle import PROCESS_ARGS, SettleReason, VirtualClock
from envs.types import BrowserError, FailureLog
from tests.envs.devtools import chromium
from tests.envs.driving import open_driven
from tests.envs.dynamic_site import DynamicSite

GONE = [
    CdpError("Network.enable", "Session with given id not found.", -32001),
    CdpError("Network.enable", "Inspected target navigated or closed", -32000),
    CdpError("Network.enable", "any words", -32001),
]
FAULTS = [KeyError("a fault of ours"), CdpError("Network.enable", "Invalid parameters", -32602), BrowserError("closed")]


class Refusing:
    """A session whose every call fails."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.handlers: dict[str, Any] = {}
        self.target_id = "1"

    def on(self, event: str, handler: Any) -> None:
        self.handlers[event] = handler

    async def send(self, method: str, params: Any = None) -> Any:
        await asyncio.sleep(0)
        raise self._error


def errors_of(caplog: pytest.LogCaptureFixture, work: Coroutine[Any, Any, None]) -> list[BaseException]:
    """What was logged as an error while ``work`` ran, asyncio's own "never retrieved" too."""

    async def run() -> None:
        await work
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()

    caplog.set_level(logging.WARNING)
    asyncio.run(run())
    gc.collect()
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record.getMessage() for record in records if "never retrieved" in record.getMessage()]
    assert all(record.exc_info is not None for record in records), [record.getMessage() for record in records]
    return [record.exc_info[1] for record in records if record.exc_info and record.exc_info[1] is not None]


async def worker(error: BaseException) -> None:
    page: Any = Refusing(RuntimeError("not called"))
    VirtualClock(page, open_session=lambda _id: Refusing(error))  # type: ignore[arg-type,return-value]
    page.handlers["Target.attachedToTarget"]({"sessionId": "w", "targetInfo": {"type": "worker"}})


async def page_of_another_client(error: BaseException) -> None:
    async def connect(_seconds: float) -> Any:
        raise AssertionError("no connection is needed")

    Browser(None, connect, "a browser", None).connection.on_new_page({}, Refusing(error))  # type: ignore


async def window(error: BaseException) -> None:
    context = BrowserContext(None, "1", ContextOptions("", Device(width=100, height=100)))  # type: ignore[arg-type]
    context.adopt(Refusing(error), has_opener=False)  # type: ignore[arg-type]


async def preparing(error: BaseException) -> None:
    pool = BrowserPool(PoolOptions(prewarm=1))

    async def fail(_options: Any) -> None:
        raise error

    pool.contexts._prewarm = fail  # type: ignore[method-assign]
    site: Any = type(
        "Site",
        (),
        {"stateless_pages": False, "name": "", "viewport": (1, 1), "style": "", "observation": ObservationOptions()},
    )()
    site.background = False
    pool.contexts.record_episode(site, loaded=True)
    await asyncio.sleep(0)
    await pool.close()


@pytest.mark.parametrize("place", [worker, page_of_another_client, window, preparing])
def test_that_a_page_went_away_is_no_fault(place: Any, caplog: pytest.LogCaptureFixture) -> None:
    for error in GONE:
        assert errors_of(caplog, place(error)) == []


@pytest.mark.parametrize("place", [worker, page_of_another_client, preparing])
def test_a_fault_of_a_task_is_logged_once_with_its_traceback(place: Any, caplog: pytest.LogCaptureFixture) -> None:
    for error in FAULTS:
        caplog.clear()
        assert errors_of(caplog, place(error)) == [error]


def test_repeated_work_logs_each_failure_once(caplog: pytest.LogCaptureFixture) -> None:
    first, same, other = ValueError("one"), ValueError("one"), ValueError("other")

    async def work() -> None:
        log = FailureLog(logging.getLogger("rounds"), "a round failed")
        for error in (first, same, other, None, same, same):
            log.note(error)

    assert errors_of(caplog, work()) == [first, other, same]


def sessions() -> list[tuple[CdpSession, Any]]:
    """A session of each kind, and what hands it an event."""
    playwright: Any = SimpleNamespace(handlers=list[Any](), on=lambda _event, f: playwright.handlers.append(f))
    ours = CdpSession("1")
    return [
        (ours, lambda event: ours.handle(event, {})),
        (PlaywrightSession("2", playwright), lambda _event: [handler(None) for handler in playwright.handlers]),
    ]


@pytest.mark.parametrize("number", range(2), ids=["ours", "Playwright's"])
def test_a_failed_handler_is_logged_and_stops_no_other(number: int, caplog: pytest.LogCaptureFixture) -> None:
    session, hand = sessions()[number]
    fault, heard, faults = KeyError("a fault of ours"), list[Any](), list[str]()

    def fails(_params: Any) -> None:
        raise fault

    async def work() -> None:
        session.on_fault = faults.append
        session.on("Page.loaded", fails)
        session.on("Page.loaded", heard.append)
        hand("Page.loaded")

    assert errors_of(caplog, work()) == [fault] and heard == [{}]
    assert faults == ["Page.loaded of the browser could not be handled: KeyError('a fault of ours')"]


def test_a_window_that_closes_while_it_is_caught_leaves_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Ends(Refusing):
        async def send(self, method: str, params: Any = None) -> Any:
            if method == "Fetch.enable":
                self.handlers["Fetch.requestPaused"]({"requestId": "1", "request": {"url": "", "method": "GET"}})
                return {}
            await asyncio.sleep(0)
            raise CdpError(method, "Session with given id not found.", -32001)  # a stored one would keep the task alive

    async def work() -> None:
        with pytest.raises(CdpError):
            await FirstRequest.catch(Ends(GONE[0]))

    assert errors_of(caplog, work()) == []


def test_a_connection_whose_watch_fails_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    fault = KeyError("a fault of ours")

    async def work() -> None:
        async def nothing(*_: Any) -> Any:
            return None

        async def fail() -> str:
            raise fault

        connection = Connection(nothing)
        connection._connect, connection._watch = nothing, fail  # type: ignore[method-assign]
        await connection.open()
        with pytest.raises(BrowserError):
            async with asyncio.timeout(60):
                await connection.ready()
        assert connection.state is ConnectionState.CLOSED and "a fault of ours" in (connection.given_up or "")

    assert errors_of(caplog, work()) == [fault]


def test_workers_that_end_at_once_leave_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        with DynamicSite() as site:
            async with chromium(*PROCESS_ARGS) as browser:
                page = await open_driven(browser)
                await page.load(f"{site.origin}/rest.html")
                await page.cdp.evaluate(
                    "for (let n = 0; n < 10; n++) { const w = new Worker(URL.createObjectURL(new Blob(['close()'])));"
                    " if (n % 2) w.terminate() }"
                )
                settled = await page.clock.settle()
                assert settled.reason is SettleReason.BACKGROUND and settled.complete

    assert errors_of(caplog, work()) == []
