"""Calls of a session: repeated, out of order, at the same time, cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from envs.actions import ActionError
from envs.browser import BrowserPool, WebSession
from envs.browser.dispatcher import Dispatcher
from envs.browser.page_step import PageStep
from envs.sites import MiniWobSite
from envs.types import (
    BrowserError,
    Click,
    ErrorCode,
    Needs,
    StopReason,
    Terminate,
    WebTask,
)
from tests.builders import make_observation, page_task

COUNTER = "<button onclick='this.textContent = Number(this.textContent) + 1'>0</button><a href=#>other</a>"
SLOW = "<button onclick='for (;;) {}'>hang</button>"

Scenario = Callable[[BrowserPool, WebSession, WebTask], Awaitable[None]]


def play(pages: Any, body: str, scenario: Scenario, **options: Any) -> None:
    async def run() -> None:
        async with pages({"index.html": body}, **options) as (pool, site), pool.lease(site) as session:
            await session.reset(page_task("/index.html"), 0)
            await scenario(pool, session, page_task("/index.html"))

    asyncio.run(run())


def test_a_repeated_step_is_carried_out_once(pages: Any) -> None:
    async def scenario(_: BrowserPool, session: WebSession, task: WebTask) -> None:
        once = await session.step(Click(element=1), epoch=1, step_id=0)
        again = await session.step(Click(element=1), epoch=1, step_id=0)
        assert again is once and once.observation.elements[0].text == "1"
        assert (await session.step(Click(element=1), epoch=1, step_id=1)).observation.elements[0].text == "2"
        with pytest.raises(BrowserError, match="step 0 of epoch 1 cannot be carried out; the next one is 2"):
            await session.step(Click(element=1), epoch=1, step_id=0)
        with pytest.raises(BrowserError, match="step 5"):
            await session.step(Click(element=1), step_id=5)
        with pytest.raises(BrowserError, match="another action"):
            await session.step(Click(element=2), step_id=1)
        await session.reset(task, 0)
        with pytest.raises(BrowserError, match="epoch 2, not 1"):
            await session.step(Click(element=1), epoch=1, step_id=0)
        assert (await session.step(Click(element=1))).observation.elements[0].text == "1"

    play(pages, COUNTER, scenario)


def test_a_session_has_one_owner(pages: Any) -> None:
    async def scenario(_: BrowserPool, session: WebSession, __: WebTask) -> None:
        first = asyncio.create_task(session.step(Click(element=1)))
        await asyncio.sleep(0)
        with pytest.raises(BrowserError, match="one owner"):
            await session.step(Click(element=1))
        assert (await first).observation.elements[0].text == "1"

    play(pages, COUNTER, scenario)


def test_a_cancelled_step_leaves_nothing_behind(pages: Any) -> None:
    async def scenario(pool: BrowserPool, session: WebSession, task: WebTask) -> None:
        before = asyncio.all_tasks()
        step = asyncio.create_task(session.step(Click(element=1)))
        await asyncio.sleep(0.3)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert asyncio.all_tasks() == before
        with pytest.raises(BrowserError, match=r"call reset\(\) first"):
            await session.step(Click(element=1))
        frame = await session.reset(task, 0)  # on another page: the first one hangs
        assert frame.observation.elements[0].text == "hang"
        assert pool.counters.contexts_broken == 1 and pool.metrics()["lent"] == 1
        assert sum(browser["contexts"] for browser in pool.metrics()["browsers"]) == 1

    play(pages, SLOW, scenario)


CALLS: dict[str, Callable[[WebSession, WebTask], Any]] = {
    "reset": lambda session, task: session.reset(task, 0),
    "step": lambda session, _: session.step(Click(element=1)),
    "evidence": lambda session, _: session.evidence(Needs()),
    "look": lambda session, _: session.look(lambda page: page.url()),
    "server": lambda session, _: asyncio.sleep(0, session.server),
}


async def test_a_session_is_used_no_more_after_its_lease(pages: Any) -> None:
    task = page_task("/index.html")
    async with pages({"index.html": COUNTER}) as (pool, site):
        async with pool.lease(site) as played:
            await played.reset(task, 0)
        async with pool.lease(site) as never_begun:
            pass
        for session in (played, never_begun):
            for name, call in CALLS.items():
                with pytest.raises(BrowserError, match=rf"{name} after the session was closed; .*lease"):
                    await call(session, task)
            await session.close()
        assert pool.metrics()["lent"] == 0 and pool.counters.episodes == 1


async def test_a_lease_that_ends_while_a_reset_waits_for_its_page_leaves_nothing() -> None:
    """Whoever asked for the reset is another task than the one whose lease it is."""

    given, released = asyncio.Event(), list[Any]()

    async def acquire(*_: Any) -> Any:
        await given.wait()
        return SimpleNamespace(broken=False, reusable=True)

    async def release(context: Any, _: Any) -> None:
        released.append(context)

    browsers = SimpleNamespace(has_one=True)
    contexts: Any = SimpleNamespace(acquire=acquire, release=release, lead=lambda *_: None, browser_set=browsers)
    session = WebSession(contexts, Dispatcher(), MiniWobSite(), step_deadline=60)
    resetting = asyncio.create_task(session.reset(page_task("/miniwob/click-test.html"), 0))
    await asyncio.sleep(0.01)
    await session.close()
    given.set()
    with pytest.raises(BrowserError, match="after the session was closed"):
        await resetting
    assert len(released) == 1


@pytest.mark.parametrize("error", [None, ActionError(ErrorCode.BAD_ACTION, "no")], ids=["memory", "refused"])
def test_what_did_not_touch_the_page_reports_nothing_of_the_step_before(error: ActionError | None) -> None:
    seen = make_observation(notices=("Saved!",))
    once = PageStep(seen, b"", done=False, point=(1, 1)).unchanged(error)
    twice = once.unchanged(error)
    for result in (once, twice):
        now = result.observation
        assert now.notices == () and result.point is None
        assert result.error == (error.code if error else None) and result.earlier_notices == ("Saved!",)
        assert now.model_copy(update={"notices": seen.notices, "error": None}) == seen


def test_an_alert_is_reported_once_and_graded_until_the_next_look(pages: Any) -> None:
    async def scenario(_: BrowserPool, session: WebSession, __: WebTask) -> None:
        actions = [Click(element=1), Click(element=99), Click(element=2), Click(element=1), Click(element=99)]
        results = [await session.step(action) for action in actions]
        results.append(await session.step(Terminate(status="success")))
        assert [result.observation.notices for result in results] == [("Saved!",), (), (), ("Saved!",), (), ()]
        assert [result.earlier_notices for result in results] == [(), ("Saved!",), (), (), ("Saved!",), ("Saved!",)]
        assert results[-1].stop is StopReason.TERMINATED

    play(pages, "<button onclick=\"alert('Saved!')\">save</button><button>other</button>", scenario)


class Held:
    """A session that holds a context, downloads and a server's state, all of them stand-ins that
    note when they are given back."""

    def __init__(self, *, stateless: bool = True, broken: bool = False, fails: str = "") -> None:
        self.given_back: list[str] = []
        self.fails = fails
        self.waits = asyncio.Event()
        self.waits.set()
        context = SimpleNamespace(reusable=not broken, broken=broken)
        folder = SimpleNamespace(deny=lambda: self.back("deny"), remove=lambda: self.back("files"))
        queues = SimpleNamespace(close=lambda error: self.given_back.append("queues"))
        contexts: Any = SimpleNamespace(release=lambda *_: self.back("context"))
        site: Any = SimpleNamespace(stateless_pages=stateless)
        session: Any = WebSession(contexts, Dispatcher(), site, step_deadline=1)
        session._context, session._site_episode = context, SimpleNamespace(close=lambda: self.back("state"))
        session._page = SimpleNamespace(queues=queues, downloads=folder)
        self.session: WebSession = session

    async def back(self, what: str) -> None:
        await self.waits.wait()
        self.given_back.append(what)
        if what == self.fails:
            raise BrowserError(f"{what} failed")


async def test_pages_are_given_back_before_what_they_write_and_ask() -> None:
    for options, wanted in (
        ({}, ["queues", "deny", "context", "files", "state"]),
        ({"broken": True}, ["queues", "context", "files", "state"]),
        ({"stateless": False}, ["queues", "context", "files", "state"]),
        ({"fails": "deny"}, ["queues", "deny", "context", "files", "state"]),  # the context is broken then
    ):
        held = Held(**options)  # type: ignore[arg-type]
        await held.session.close()
        assert held.given_back == wanted
        await held.session.close()
        assert held.given_back == wanted


@pytest.mark.parametrize("what", ["context", "files", "state"])
async def test_what_cannot_be_given_back_keeps_nothing_else(what: str) -> None:
    held = Held(fails=what)
    with pytest.raises(BrowserError, match=f"{what} failed"):
        await held.session.close()
    assert held.given_back == ["queues", "deny", "context", "files", "state"]


async def test_a_cancellation_while_a_session_is_given_back_leaves_nothing() -> None:
    before = asyncio.all_tasks()
    held = Held()
    held.waits.clear()
    closing = asyncio.create_task(held.session.close())
    for _ in range(3):
        await asyncio.sleep(0.01)
        closing.cancel()
    await asyncio.sleep(0.01)
    assert not closing.done() and held.given_back == ["queues"]
    held.waits.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert held.given_back == ["queues", "deny", "context", "files", "state"]
    assert asyncio.all_tasks() == before
