"""Several browsers, one for each episode, somebody else's, contexts opened beforehand, browsers
replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from envs.browser import BrowserPool, find_chromium
from envs.browser.options import Device
from envs.browser.process.chromium import LAUNCH_ARGS, ChromiumProcess
from envs.settle import SettleReason
from envs.types import BrowserError, Click, Goto, WebTask
from tests.builders import page_task
from tests.envs.raw_chromium import debugging_address

TITLE = "<button onclick=\"this.textContent = 'seen'\">go</button>"


async def episode(pool: BrowserPool, site: Any, task: WebTask) -> str:
    async with pool.lease(site) as session:
        await session.reset(task, 0)
        return (await session.step(Click(element=1))).observation.elements[0].text


async def test_contexts_are_shared_over_the_processes(pages: Any) -> None:
    async with (
        pages({"index.html": TITLE}, browsers=2, max_sessions=4) as (pool, site),
        pool.lease(site) as one,
        pool.lease(site) as two,
        pool.lease(site) as three,
    ):
        await asyncio.gather(*(session.reset(page_task("/index.html"), 0) for session in (one, two, three)))
        found = sorted(browser["contexts"] for browser in pool.metrics()["browsers"])
    assert found == [1, 2]


async def test_a_process_for_each_episode_ends_with_it(pages: Any) -> None:
    async with pages({"index.html": TITLE}, browser_per_episode=True) as (pool, site):
        assert [await episode(pool, site, page_task("/index.html")) for _ in range(2)] == ["seen", "seen"]
        launches = pool.counters.launches
        left = pool.browser_pids()
    assert launches >= 2 and left == ()


@pytest.mark.chaos
async def test_a_browser_of_one_episode_that_dies_concerns_no_other(pages: Any) -> None:
    """The next episode finds the dead browser and removes it; the episode that was on it gives it
    back afterwards."""
    task = page_task("/index.html")

    async with pages({"index.html": TITLE}, browser_per_episode=True, max_sessions=3) as (pool, site):
        async with pool.lease(site) as other:
            await other.reset(task, 0)
            async with pool.lease(site) as dying:
                before = set(pool.browser_pids())
                await dying.reset(task, 0)
                browser = pool.contexts.browser_set.browsers[-1]
                assert browser.process is not None and browser.process.pid not in before
                os.kill(browser.process.pid, signal.SIGKILL)
                with pytest.raises(BrowserError):
                    await dying.step(Click(element=1))
                async with asyncio.timeout(30):
                    while not browser.lost:
                        await asyncio.sleep(0.01)
                assert await episode(pool, site, task) == "seen"
                assert browser not in pool.contexts.browser_set.browsers and pool.counters.browsers_lost == 1
            assert (await other.step(Click(element=1))).observation.elements[0].text == "seen"
        assert pool.browser_pids() == () and not pool.contexts.cache.browsers and not pool.contexts.cache.listeners


async def test_a_session_that_outlives_its_pool_gives_back_what_is_gone(pages: Any) -> None:
    for options in ({}, {"browser_per_episode": True}):
        async with pages({"index.html": TITLE}, **options) as (pool, site), pool.lease(site) as session:
            await session.reset(page_task("/index.html"), 0)
            await pool.close()


async def test_a_browser_that_is_removed_is_ended_whoever_gives_up_meanwhile() -> None:
    """The next episode removes a lost browser, within its own deadline; its process must not
    outlive that."""

    pool, ended, go_on = BrowserPool(), list[str](), asyncio.Event()

    async def close() -> None:
        await go_on.wait()
        ended.append("browser")

    browser: Any = SimpleNamespace(contexts=set(), close=close)
    pool.contexts.browser_set.browsers.append(browser)
    removing = asyncio.create_task(pool.contexts.browser_set.remove(browser))
    await asyncio.sleep(0.01)
    removing.cancel()
    await pool.contexts.browser_set.remove(browser)  # there is nothing left to do for others
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await removing
    assert ended == ["browser"] and pool.browser_pids() == ()


async def test_a_browser_that_gives_no_page_holds_grading_up_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        pool = BrowserPool(step_deadline=0.05)

        async def never(_: object) -> None:
            await asyncio.Event().wait()

        async def work(_: object) -> None:
            raise AssertionError("there is no tab")

        monkeypatch.setattr(pool.contexts.browser_set, "open_context", never)
        try:
            for _ in range(3):  # more than may be apart at a time: none of them keeps its place
                with pytest.raises(BrowserError, match=r"no page for a picture within 0\.05 s"):
                    await pool.scratch_tab(Device(width=100, height=100), work, deadline=1, what="a picture")
        finally:
            await pool.close()

    async with asyncio.timeout(10):
        await run()


async def settled(pool: BrowserPool, site: Any, task: WebTask) -> SettleReason:
    """How a page was waited for."""
    async with pool.lease(site) as session:
        result = await session.reset(task, 0)
    assert result.settled is not None
    return result.settled.reason


async def test_an_external_browser_is_used_and_left_running(pages: Any) -> None:
    theirs = await ChromiumProcess.start(find_chromium(), (*LAUNCH_ARGS, "--remote-debugging-port=0"))
    try:
        socket = await debugging_address(theirs)
        http = "http://" + socket.removeprefix("ws://").split("/")[0]
        for address in (socket, http):
            async with pages({"index.html": TITLE}, browser_address=address) as (pool, site):
                assert await episode(pool, site, page_task("/index.html")) == "seen"
                assert pool.counters.launches == 0
                # It was not started so that its pages have one clock.
                assert await settled(pool, site, page_task("/index.html")) is SettleReason.NO_CLOCK
            async with pages({"index.html": TITLE}, browser_address=address, virtual_time=True) as (pool, site):
                assert await settled(pool, site, page_task("/index.html")) is SettleReason.RESTED
        assert theirs.running
    finally:
        await theirs.stop()
    assert not theirs.running


def test_nobody_at_the_address_is_named(pages: Any) -> None:
    async def run() -> None:
        async with pages({"index.html": ""}, browser_address="http://127.0.0.1:9") as (pool, site), pool.lease(site):
            pass

    with pytest.raises(BrowserError, match=r"no browser answers at http://127\.0\.0\.1:9"):
        asyncio.run(run())


async def test_a_context_is_ready_for_the_next_episode_of_whatever_site(pages: Any) -> None:
    async with (
        pages({"index.html": TITLE}, prewarm=1, max_sessions=1) as (pool, site),
        pages({"index.html": TITLE}) as (
            _,
            other,
        ),
    ):
        other.name = "other"
        for number, at in enumerate((site, other, site)):
            async with pool.lease(at) as session:
                await session.reset(page_task("/index.html", site=at.name), 0)
                async with asyncio.timeout(10):
                    while not pool.metrics()["ready"]:
                        await asyncio.sleep(0.01)
                assert pool.counters.contexts_opened == number + 2  # the first had to open its own
                assert pool.metrics()["lent"] == 1 and pool.metrics()["idle"] == 0
                elsewhere = await session.step(Goto(url=f"{(other if at is site else site).origin}/index.html"))
                assert (elsewhere.observation.error or "").startswith("blocked_host")
        assert len(pool.contexts.cache.listeners) == len(pool.contexts.cache.browsers) == 1


async def test_a_context_that_was_ready_for_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch, pages: Any) -> None:
    async with pages({"index.html": TITLE}, prewarm=1) as (pool, site):
        await episode(pool, site, page_task("/index.html"))
        async with asyncio.timeout(10):
            while not pool.contexts.cache.ready:
                await asyncio.sleep(0.01)
        old = pool.contexts.cache.ready[0]
        monkeypatch.setattr(
            "envs.browser.context.CONTEXT_SECONDS", 0.0
        )  # frames come only while its clock is ahead of ours
        assert await episode(pool, site, page_task("/index.html")) == "seen"
        async with asyncio.timeout(10):
            while old in pool.contexts.cache.browsers:
                await asyncio.sleep(0.01)
        assert pool.counters.contexts_broken == 0


async def test_a_context_that_was_idle_for_too_long_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, miniwob: Any, miniwob_tasks: dict[str, WebTask]
) -> None:
    task = miniwob_tasks["click-test"]
    async with miniwob() as (pool, site):
        for _ in range(2):
            async with pool.lease(site) as session:
                await session.reset(task, 0)
        [old] = pool.contexts.cache.idle
        assert pool.counters.contexts_opened == 1
        monkeypatch.setattr("envs.browser.context.CONTEXT_SECONDS", 0.0)
        async with pool.lease(site) as session:
            await session.reset(task, 0)
            assert pool.counters.contexts_opened == 2 and pool.contexts.cache.idle == []
        async with asyncio.timeout(10):
            while old in pool.contexts.cache.browsers:
                await asyncio.sleep(0.01)
        assert pool.counters.contexts_broken == 0


async def test_contexts_of_another_kind_make_room(pages: Any) -> None:
    async with pages({"index.html": TITLE}, prewarm=2) as (pool, site):
        for style in ("", "body {color: red}"):
            site.style = style
            for _ in range(2):
                await episode(pool, site, page_task("/index.html"))
            async with asyncio.timeout(10):
                while [context._options.style for context in pool.contexts.cache.ready] != [style, style]:
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            while len(pool.contexts.cache.listeners) != 2:
                await asyncio.sleep(0.01)


async def test_an_old_browser_is_replaced_when_its_pages_are_back(
    monkeypatch: pytest.MonkeyPatch, miniwob: Any, miniwob_tasks: dict[str, WebTask]
) -> None:
    monkeypatch.setattr("envs.browser.process.browsers.WATCH_SECONDS", 0.05)

    async with miniwob(retire_after=2) as (pool, site):
        first = pool.browser_pids()[0]
        for seed in range(2):
            async with pool.lease(site) as session:
                await session.reset(miniwob_tasks["click-test"], seed)
        async with asyncio.timeout(10):
            while pool.browser_pids():
                await asyncio.sleep(0.02)
        async with pool.lease(site) as session:
            await session.reset(miniwob_tasks["click-test"], 9)
            assert pool.browser_pids()[0] != first
        assert pool.counters.browsers_retired == 1 and pool.counters.browsers_lost == 0
        async with asyncio.timeout(10):
            while psutil.pid_exists(first):
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_sessions": 0}, r"max_sessions: .* greater than or equal to 1 \(got 0\)"),
        ({"step_deadline": 0.0}, r"step_deadline: .* greater than 0 \(got 0\.0\)"),
        ({"sessions": 2}, "sessions: Extra inputs are not permitted"),
        ({"browser_address": "ws://x", "browser_per_episode": True}, "choose browser_address or browser_per_episode"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BrowserError, match=message):
        BrowserPool(**options)
