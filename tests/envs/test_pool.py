"""The pool against kills, hangs and wear."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from envs.browser import BrowserPool, find_chromium
from envs.browser.process.chromium import CHROMIUM_VARIABLE
from envs.types import BrowserError, Click, Type, WebTask
from tests.builders import page_task


@pytest.mark.chaos
def test_a_killed_chromium_fails_pending_calls_and_comes_back_once(
    miniwob: Any, miniwob_tasks: dict[str, WebTask]
) -> None:
    task = miniwob_tasks["enter-text"]

    async def episode(pool: BrowserPool, site: Any, kill: bool) -> float:
        async with pool.lease(site) as session:
            await session.reset(task, 5)
            started = time.monotonic()
            if kill:
                os.kill(pool.browser_pids()[0], signal.SIGKILL)
            await session.step(Type(element=1, text="a long text that is still being typed"))
            return time.monotonic() - started

    async def run() -> None:
        async with miniwob(max_sessions=4, step_deadline=60) as (pool, site):
            first = pool.browser_pids()[0]
            started = time.monotonic()
            with pytest.raises(BrowserError):
                await episode(pool, site, kill=True)
            assert time.monotonic() - started < 30  # at once, not at the deadline
            await asyncio.gather(*(episode(pool, site, kill=False) for _ in range(4)))
            assert pool.counters.launches == 2 and pool.counters.browsers_lost == 1
            assert pool.browser_pids()[0] != first

    asyncio.run(run())


@pytest.mark.chaos
async def test_a_session_can_be_reset_after_a_kill(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    async with miniwob() as (pool, site), pool.lease(site) as session:
        await session.reset(miniwob_tasks["click-test"], 5)
        psutil.Process(pool.browser_pids()[0]).kill()
        with pytest.raises(BrowserError):
            await session.step(Click(element=1))
        with pytest.raises(BrowserError, match="call reset"):
            await session.step(Click(element=1))
        await session.reset(miniwob_tasks["click-test"], 5)
        found = (await session.step(Click(element=1))).done
    assert found


@pytest.mark.chaos
async def test_a_kill_while_pages_are_opened_fails_them_at_once(
    miniwob: Any, miniwob_tasks: dict[str, WebTask]
) -> None:
    async with miniwob(max_sessions=4, step_deadline=60) as (pool, site):

        async def reset(kind: str) -> None:
            async with pool.lease(site) as session:
                await session.reset(miniwob_tasks[kind], 1)

        async def start_chromium() -> None:
            try:
                await reset("click-test")
            except BrowserError:  # a kill that hit nobody is found out by who comes next
                await reset("click-test")

        async def killed_after(seconds: float) -> list[BaseException | None]:
            await start_chromium()
            kinds = ("click-tab", "click-link", "click-test", "enter-text")
            tasks = [asyncio.create_task(reset(kind)) for kind in kinds]
            await asyncio.sleep(seconds)
            started = time.monotonic()
            psutil.Process(pool.browser_pids()[0]).kill()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(end is None or isinstance(end, BrowserError) for end in ends)
            assert time.monotonic() - started < 30
            return ends

        # Before the first page and after the last one a kill hits nobody; when that is depends on
        # the machine.
        hit = [any(await killed_after(seconds)) for seconds in (0.05, 0.1, 0.2, 0.4, 0.8)]
        assert any(hit)


@pytest.mark.chaos
async def test_a_crashed_page_fails_only_its_own_session(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    async with miniwob(step_deadline=60) as (pool, site), pool.lease(site) as one, pool.lease(site) as other:
        await one.reset(miniwob_tasks["click-test"], 5)
        before = set(pool.browser_pids())
        await other.reset(miniwob_tasks["click-test-2"], 5)
        for pid in set(pool.browser_pids()) - before:
            if "--type=renderer" in psutil.Process(pid).cmdline():
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(BrowserError):
            await other.step(Click(element=1))
        assert (await one.step(Click(element=1))).done
        assert pool.counters.launches == 1


async def test_an_event_that_is_not_handled_fails_only_its_own_session(
    miniwob: Any, miniwob_tasks: dict[str, WebTask]
) -> None:
    async with miniwob() as (pool, site), pool.lease(site) as one, pool.lease(site) as other:
        await one.reset(miniwob_tasks["click-test"], 5)
        await other.reset(miniwob_tasks["click-test-2"], 5)
        cdp = other.page.context.active.cdp
        cdp.on("Runtime.consoleAPICalled", lambda params: params["no such key"])
        await cdp.send("Runtime.enable")
        await cdp.send("Runtime.evaluate", {"expression": "console.log(1)"})
        with pytest.raises(BrowserError, match="consoleAPICalled of the browser could not be handled: KeyError"):
            await other.step(Click(element=1))
        assert (await one.step(Click(element=1))).done
        await other.reset(miniwob_tasks["click-test"], 5)
        assert (await other.step(Click(element=1))).done
        assert pool.counters.launches == 1


async def test_a_page_that_hangs_hits_the_deadline(pages: Any) -> None:
    hang = "<button onclick='for (;;) {}'>hang</button>"

    async with pages({"index.html": hang}, step_deadline=3.0) as (pool, site):
        async with pool.lease(site) as session:
            await session.reset(page_task("/index.html"), 0)
            with pytest.raises(BrowserError, match="longer than 3 s") as caught:
                await session.step(Click(element=1))
            assert isinstance(caught.value.__cause__, TimeoutError)
        async with pool.lease(site) as session:  # the others go on
            await session.reset(page_task("/index.html"), 0)
        assert pool.counters.contexts_broken == 1
        lowered = pool.metrics()["browsers"][0]["priorities_lowered"]
        assert lowered >= 1, "it had no core to itself"  # more often where it starves beside other processes


async def test_close_leaves_no_process(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    async with miniwob() as (pool, site), pool.lease(site) as session:
        await session.reset(miniwob_tasks["click-test"], 5)
        pids = pool.browser_pids()
    assert len(pids) >= 3
    alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert alive == []


async def test_pages_are_used_again_and_retired(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    async with miniwob(recycle_after=3) as (pool, site):
        for seed in range(6):
            async with pool.lease(site) as session:
                await session.reset(miniwob_tasks["click-test"], seed)
        found = pool.counters.contexts_opened, pool.counters.contexts_recycled, pool.counters.navigations
    assert found == (2, 2, 2)


async def test_more_leases_than_sessions_wait(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    async with miniwob(max_sessions=2) as (pool, site):

        async def episode(kind: str) -> None:
            async with pool.lease(site) as session:
                await session.reset(miniwob_tasks[kind], 0)

        await asyncio.gather(*(episode(kind) for kind in ("click-test", "click-tab", "click-link", "enter-text")))
        found = pool.counters.contexts_opened
    assert found == 2


def test_a_closed_pool_lends_nothing(miniwob: Any) -> None:
    async def run() -> None:
        async with miniwob() as (pool, site):
            await pool.close()
            async with pool.lease(site):
                pass

    with pytest.raises(BrowserError, match="closed"):
        asyncio.run(run())


def test_a_wrong_executable_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CHROMIUM_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(BrowserError, match=f"{CHROMIUM_VARIABLE}=.*none is no executable file"):
        find_chromium()
    monkeypatch.delenv(CHROMIUM_VARIABLE)
    monkeypatch.setattr("envs.browser.process.chromium.CANDIDATES", ())
    monkeypatch.setattr("envs.browser.process.chromium.PINNED_FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(BrowserError, match="make setup"):
        find_chromium()


async def test_a_context_is_not_used_past_its_clock(
    miniwob: Any, miniwob_tasks: dict[str, WebTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page's clock is set ahead of ours by hours; a context that is older than half of them is
    not used, however long it waited."""

    opened = []
    async with miniwob() as (pool, site):
        for seconds in (3600.0, 3600.0, 0.0, 0.0):
            monkeypatch.setattr("envs.browser.context.CONTEXT_SECONDS", seconds)
            async with pool.lease(site) as session:
                await session.reset(miniwob_tasks["click-test"], 1)
            opened.append(pool.counters.contexts_opened)
    first, *rest = opened
    assert rest == [first, first + 1, first + 2]
