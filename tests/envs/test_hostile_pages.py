"""Pages that would wedge a browser: each ends in bounded time, says why, leaves nothing behind and
does not disturb the next episode."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psutil
import pytest

from envs.browser import BrowserPool, PageStep, WebSession
from envs.browser.context import MAX_TABS, PageCrashed
from envs.settle import SettleReason, VirtualClock
from envs.types import BrowserError, Click, Goto
from tests.envs.dynamic import GO, ServedSite, dynamic_pool, page

pytestmark = pytest.mark.chaos

DEADLINE = 60.0
"""Seconds; a machine with other work takes a third of them."""
GONE_SECONDS = 10.0
Scenario = Callable[[BrowserPool, ServedSite, WebSession], Awaitable[None]]


def play(path: str, scenario: Scenario, **options: object) -> None:
    """Reset a session on a page, let the scenario act, and see that an ordinary episode follows and
    nothing is left."""

    async def run() -> None:
        async with dynamic_pool(step_deadline=DEADLINE, **options) as (pool, site):
            async with pool.lease(site) as session:
                await session.reset(page(path), 0)
                await scenario(pool, site, session)
            async with pool.lease(site) as session:
                await session.reset(page("/rest.html"), 0)
                result = await session.step(GO)
                assert "done" in result.observation.text
            assert sum(browser["contexts"] for browser in pool.metrics()["browsers"]) == 0
            pids = pool.browser_pids()
        assert not await asyncio.to_thread(alive_after, GONE_SECONDS, pids)
        assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        asyncio.run(run())
        assert list(Path(folder).iterdir()) == []


def alive_after(seconds: float, pids: Sequence[int]) -> list[int]:
    """Which of these processes there still are after so long: one that was killed frees its memory
    first."""
    end = time.monotonic() + seconds
    while left := [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return left


async def step(session: WebSession, action: Click | Goto = GO) -> tuple[PageStep, float]:
    started = time.monotonic()
    result = await session.step(action)
    return result, time.monotonic() - started


@pytest.fixture
def short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that never settle are given up after 3 s instead of 10."""
    monkeypatch.setitem(VirtualClock.settle.__kwdefaults__, "seconds", 3.0)


def test_an_endless_loop_is_stopped_and_said(short_settling: None) -> None:
    async def scenario(_: BrowserPool, __: ServedSite, session: WebSession) -> None:
        result, seconds = await step(session)
        assert result.settled is not None and result.settled.reason is SettleReason.BUSY and not result.settled.complete
        assert seconds < DEADLINE

    play("/loop.html", scenario)


def test_endless_redirects_end() -> None:
    async def scenario(_: BrowserPool, __: ServedSite, session: WebSession) -> None:
        _, seconds = await step(session)
        assert seconds < DEADLINE

    play("/redirect-loop.html", scenario)


def test_a_storm_of_alerts_fails_its_own_episode() -> None:
    async def scenario(_: BrowserPool, __: ServedSite, session: WebSession) -> None:
        with pytest.raises(BrowserError, match="more than 10 alerts in one step"):
            await step(session)

    play("/alerts.html", scenario)


def test_forty_popups_are_a_few_tabs() -> None:
    async def scenario(pool: BrowserPool, _: ServedSite, session: WebSession) -> None:
        result, seconds = await step(session)
        assert 2 <= len(result.observation.tabs) <= MAX_TABS
        assert any("windows too many" in notice for notice in result.observation.notices)
        assert seconds < DEADLINE
        assert len(pool.browser_pids()) < 30

    play("/popups.html", scenario)


def test_a_page_of_200_megabytes_does_not_take_the_machine(short_settling: None) -> None:
    async def scenario(pool: BrowserPool, site: ServedSite, session: WebSession) -> None:
        started = time.monotonic()
        try:
            await session.step(Goto(url=f"{site.origin}/huge?mb=200"))
        except BrowserError as error:
            # the step was too long; or the renderer died; or it was still busy with the document
            # when the clock was stopped
            assert re.search("longer than|crashed|does not answer", str(error))
        assert time.monotonic() - started < DEADLINE + 5
        assert psutil.Process().memory_info().rss < 2 * 2**30

    play("/rest.html", scenario)


def test_a_renderer_that_dies_is_a_crash() -> None:
    async def scenario(pool: BrowserPool, _: ServedSite, session: WebSession) -> None:
        for pid in pool.browser_pids():
            if "--type=renderer" in psutil.Process(pid).cmdline():
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(PageCrashed):
            await step(session)

    play("/rest.html", scenario)


@pytest.mark.parametrize(
    "path", ["/long-poll.html", "/events.html", "/websocket.html", "/trickle.html", "/stalled.html"]
)
def test_what_never_ends_on_the_network_does_not_hold_a_step(path: str) -> None:
    async def scenario(_: BrowserPool, __: ServedSite, session: WebSession) -> None:
        result, seconds = await step(session)
        assert "done" in result.observation.text
        assert seconds < DEADLINE / 2

    play(path, scenario)


@pytest.mark.parametrize("path", ["/link.html", "/form.html", "/popup.html", "/cross-iframe.html", "/worker.html"])
def test_what_takes_several_steps_of_the_page_is_seen_whole(path: str) -> None:
    async def scenario(_: BrowserPool, __: ServedSite, session: WebSession) -> None:
        result, _ = await step(session)
        assert "done" in result.observation.text

    play(path, scenario)


def test_another_site_is_refused_with_a_reason() -> None:
    async def scenario(pool: BrowserPool, _: ServedSite, session: WebSession) -> None:
        result, _ = await step(session, Goto(url="http://example.com/"))
        assert result.observation.error is not None and result.observation.error.startswith("blocked_host")
        result, _ = await step(session, Goto(url="http://169.254.169.254/latest/meta-data"))
        assert result.observation.error is not None and result.observation.error.startswith("blocked_host")

    play("/rest.html", scenario)
