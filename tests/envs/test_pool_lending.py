"""Which browser and how many contexts sessions get, for every order of openings and closings: real
pool, contexts that open and close on request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.browser import BrowserPool
from envs.browser.context import BrowserContext
from envs.browser.process.browser import Browser
from envs.browser.process.connection import Connection
from envs.egress import AllowList, EgressProxy
from envs.observation import ObservationOptions
from envs.types import BrowserError, Click
from tests.builders import page_task


class Opened:
    """A context of a browser that may end under it."""

    def __init__(self, options: Any, machine: Machine) -> None:
        self.owner, self.path, self.episodes = options.owner, "/index.html", 0
        self.broken = False
        self.reusable = True
        self.date: float | None = None
        self.now = 0.0
        self.lost: BrowserError | None = None
        self.options = options
        self.machine = machine

    def fits(self, _options: Any) -> bool:
        return self.owner == ""

    def fail(self, error: BrowserError) -> None:
        self.lost, self.broken = self.lost or error, True

    async def close(self) -> None:
        self.machine.closing.append(self)
        try:
            await self.machine.may_close.wait()
        finally:
            self.machine.alive.remove(self)  # the browser was asked to, whoever waits for its answer


class Machine:
    """Opens contexts and closes them when it may; counts those that are there."""

    def __init__(self) -> None:
        self.may_open, self.may_close = asyncio.Event(), asyncio.Event()
        self.may_open.set()
        self.may_close.set()
        self.opening: list[Any] = []
        self.closing: list[Any] = []
        self.alive: list[Any] = []
        self.most_alive = 0
        self.browsers: list[Browser] = []
        self.fails = False

    async def open(self, connection: Any, options: Any) -> Any:
        self.opening.append(connection)
        await self.may_open.wait()
        if self.fails:
            raise BrowserError("it was not opened")
        if connection.state == "closed":
            raise BrowserError("there is no connection to the browser")
        context = Opened(options, self)
        self.alive.append(context)
        self.most_alive = max(self.most_alive, len(self.alive))
        return context

    async def launch(self, *_: Any) -> Browser:
        async def connect(_timeout: float) -> Any:
            raise AssertionError("it is not connected to")

        browser = Browser(None, connect, f"Chromium {len(self.browsers)}", None)
        browser.connection.ready = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
        self.browsers.append(browser)
        return browser

    def ended(self) -> list[bool]:
        return [str(browser.connection.state) == "closed" for browser in self.browsers]


class Place:
    """What a pool asks of a site."""

    def __init__(self, name: str, *, stateless: bool = True) -> None:
        self.name, self.stateless_pages, self.foreign = name, stateless, False
        self.origin, self.hosts, self.viewport = f"http://{name}.example", (), (10, 10)
        self.style, self.background, self.observation = "", False, ObservationOptions()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Machine]]:
    def make() -> Machine:
        made = Machine()
        monkeypatch.setattr("envs.browser.process.browser.BrowserContext.open", made.open)
        monkeypatch.setattr("envs.browser.process.browsers.Browser.launch", made.launch)
        monkeypatch.setattr("envs.browser.process.browsers.find_chromium", lambda: Path("chromium"))
        return made

    yield make


TASK: Any = SimpleNamespace(path="/index.html", task_id="t", date="")


async def turns(count: int = 20) -> None:
    """Let everything go as far as it goes by itself."""
    for _ in range(count):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("step", ["context", "way out"])
async def test_a_browser_that_is_being_given_back_is_given_to_no_other_episode(
    machine: Callable[[], Machine], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its episode's context is closed first, then its way out, then the browser: at each moment
    another session may be reset."""

    made, site = machine(), Place("one")
    async with BrowserPool(browser_per_episode=True, max_sessions=2) as pool:
        first = await pool.contexts.acquire(site, TASK)  # type: ignore[arg-type]
        gate = made.may_close
        if step == "way out":
            gate = asyncio.Event()
            close = type(pool.contexts.cache.listeners[first]).close

            async def slowly(listener: Any) -> None:
                await gate.wait()
                await close(listener)

            monkeypatch.setattr("envs.egress.proxy.Listener.close", slowly)
        gate.clear()
        giving_back = asyncio.create_task(pool.contexts.release(first, site))  # type: ignore[arg-type]
        await turns()
        second = await pool.contexts.acquire(site, TASK)  # type: ignore[arg-type]
        gate.set()
        await giving_back
        assert made.ended() == [True, False]
        assert pool.contexts.cache.browsers[second] is made.browsers[1] and not second.broken
        await pool.contexts.release(second, site)  # type: ignore[arg-type]
        assert made.ended() == [True, True] and pool.metrics()["browsers"] == []


async def test_a_single_episode_browser_is_lent_once_while_its_context_opens(
    machine: Callable[[], Machine],
) -> None:
    made, site = machine(), Place("one")
    async with BrowserPool(browser_per_episode=True, max_sessions=4) as pool:
        made.may_open.clear()
        asked = [asyncio.create_task(pool.contexts.acquire(site, TASK)) for _ in range(4)]  # type: ignore[arg-type]
        while len(made.opening) < 4:
            await turns(1)
        assert len(set(made.opening)) == 4
        made.may_open.set()
        contexts = await asyncio.gather(*asked)
        await pool.contexts.release(contexts[0], site)  # type: ignore[arg-type]
        assert sum(made.ended()) == 1 and [context.broken for context in contexts[1:]] == [False] * 3


@pytest.mark.parametrize("end", ["fails", "cancelled"])
async def test_a_browser_on_which_no_context_could_be_opened_is_ended(machine: Callable[[], Machine], end: str) -> None:
    made, site = machine(), Place("one")
    async with BrowserPool(browser_per_episode=True) as pool:
        made.may_open.clear()
        asked = asyncio.create_task(pool.contexts.acquire(site, TASK))  # type: ignore[arg-type]
        await turns()
        if end == "cancelled":
            asked.cancel()
        made.fails = True
        made.may_open.set()
        with pytest.raises(BrowserError if end == "fails" else asyncio.CancelledError):
            await asked
        made.fails = False
        assert made.ended() == [True] and pool.metrics()["browsers"] == []
        await pool.contexts.acquire(site, TASK)  # type: ignore[arg-type]
        assert made.ended() == [True, False]


async def test_sessions_that_begin_during_a_release_are_not_disturbed(
    pages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real browsers, one for each episode."""

    close, held, go_on = BrowserContext.close, asyncio.Event(), asyncio.Event()

    async def slowly(context: BrowserContext) -> None:
        held.set()
        await go_on.wait()
        await close(context)

    monkeypatch.setattr(BrowserContext, "close", slowly)
    task = page_task("/index.html")
    button = "<button onclick=\"this.textContent = 'seen'\">go</button>"
    async with (
        pages({"index.html": button}, browser_per_episode=True, max_sessions=3) as (pool, site),
        pool.lease(site) as one,
        pool.lease(site) as two,
        pool.lease(site) as three,
    ):
        others = [two, three]
        await one.reset(task, 0)
        giving_back = asyncio.create_task(one.close())
        await held.wait()
        await asyncio.gather(*(session.reset(task, 0) for session in others))
        go_on.set()
        await giving_back
        seen = await asyncio.gather(*(session.step(Click(element=1)) for session in others))
        assert [result.observation.elements[0].text for result in seen] == ["seen", "seen"]
        found = pool.counters.launches
    assert found == 3


@pytest.mark.parametrize("stateless", [True, False], ids=["pages used again", "pages not used again"])
@pytest.mark.parametrize("old", [0, 3, 8])
@pytest.mark.parametrize("gate", ["opening", "closing"])
async def test_no_more_contexts_than_sessions_are_there_at_any_time(
    machine: Callable[[], Machine], stateless: bool, old: int, gate: str
) -> None:
    """Eight contexts of one site wait, some of which may not be used again, and eight episodes of
    another site begin at once."""

    made, first, second = machine(), Place("one"), Place("two", stateless=stateless)
    async with BrowserPool(max_sessions=8) as pool:
        idle = [await pool.contexts.acquire(first, TASK) for _ in range(8)]  # type: ignore[arg-type]
        for context in idle:
            await pool.contexts.release(context, first)  # type: ignore[arg-type]
        for context in idle[:old]:
            context.reusable = False  # type: ignore[misc]
        event = made.may_open if gate == "opening" else made.may_close
        event.clear()
        asked = [asyncio.create_task(pool.contexts.acquire(second, TASK)) for _ in range(8)]  # type: ignore[arg-type]
        await turns()
        event.set()
        lent = await asyncio.gather(*asked)
        assert made.most_alive == 8 and len(set(map(id, made.alive))) == 8
        assert pool.metrics()["lent"] == 8 and pool.metrics()["idle"] == 0
        for context in lent:
            await pool.contexts.release(context, second)  # type: ignore[arg-type]
        assert len(made.alive) == (8 if stateless else 0)


async def test_a_context_has_its_place_until_it_is_closed(machine: Callable[[], Machine]) -> None:
    """Two places: one idle context, and one that is broken and closes slowly. The next episode
    waits for neither and takes the idle one's place."""

    made, one, two = machine(), Place("one"), Place("two")
    async with BrowserPool(max_sessions=2) as pool:
        idle, broken = [await pool.contexts.acquire(one, TASK) for _ in range(2)]  # type: ignore[arg-type]
        await pool.contexts.release(idle, one)  # type: ignore[arg-type]
        broken.broken, broken.reusable = True, False  # type: ignore[misc]
        made.may_close.clear()
        closing = asyncio.create_task(pool.contexts.release(broken, one))  # type: ignore[arg-type]
        await turns()
        asked = asyncio.create_task(pool.contexts.acquire(two, TASK))  # type: ignore[arg-type]
        await turns()
        assert not asked.done()
        made.may_close.set()
        await asyncio.gather(closing, asked)
        assert made.most_alive == 2


@pytest.mark.parametrize("gate", ["open", "close"])
async def test_an_episode_cancelled_while_its_context_opens_frees_its_place(
    machine: Callable[[], Machine], gate: str
) -> None:
    made, one, two = machine(), Place("one"), Place("two")
    async with BrowserPool(max_sessions=1) as pool:
        await pool.contexts.release(await pool.contexts.acquire(one, TASK), one)  # type: ignore[arg-type]
        event = made.may_open if gate == "open" else made.may_close
        event.clear()
        asked = asyncio.create_task(pool.contexts.acquire(two, TASK))  # type: ignore[arg-type]
        while not (made.opening[1:] if gate == "open" else made.closing):
            await turns(1)
        asked.cancel()
        event.set()
        with pytest.raises(asyncio.CancelledError):
            await asked
        context = await pool.contexts.acquire(two, TASK)  # type: ignore[arg-type]
        await pool.contexts.release(context, two)  # type: ignore[arg-type]
        assert await pool.contexts.acquire(two, TASK) is context  # type: ignore[arg-type]
        assert made.most_alive == 1


async def test_a_prewarmed_context_takes_a_place_when_it_is_lent(
    machine: Callable[[], Machine],
) -> None:
    made, one, two = machine(), Place("one"), Place("two", stateless=False)
    async with BrowserPool(max_sessions=1, prewarm=1) as pool:
        await pool.contexts.release(await pool.contexts.acquire(one, TASK), one)  # type: ignore[arg-type]
        pool.contexts.record_episode(two, loaded=True)  # type: ignore[arg-type]
        await turns()
        assert pool.metrics()["ready"] == 1 and len(made.alive) == 2
        ready = await pool.contexts.acquire(two, TASK)  # type: ignore[arg-type]
        assert made.alive == [ready] and pool.metrics()["idle"] == 0


@pytest.mark.parametrize("end", ["fails", "cancelled"])
async def test_a_pool_that_cannot_be_entered_leaves_nothing(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Its way out is there before its browser is, and has a thread of its own."""

    before = {thread.ident for thread in threading.enumerate() if thread.name == "egress-proxy"}
    launching = asyncio.Event()

    async def launch(*_: Any) -> Browser:
        launching.set()
        if end == "cancelled":
            await asyncio.sleep(3600)
        raise BrowserError("it does not start")

    monkeypatch.setattr("envs.browser.process.browsers.Browser.launch", launch)
    monkeypatch.setattr("envs.browser.process.browsers.find_chromium", lambda: Path("chromium"))
    pool = BrowserPool()
    entering = asyncio.create_task(pool.__aenter__())
    await launching.wait()
    if end == "cancelled":
        entering.cancel()
    with pytest.raises(asyncio.CancelledError if end == "cancelled" else BrowserError):
        await entering
    assert {thread.ident for thread in threading.enumerate() if thread.name == "egress-proxy"} == before
    assert pool.contexts.egress.listeners == set()


async def test_a_way_out_that_nobody_waits_for_any_more_is_closed() -> None:
    async with EgressProxy() as proxy:
        opening = asyncio.create_task(proxy.open(AllowList.of()))
        for _ in range(3):  # as far as it goes in this loop
            await asyncio.sleep(0)
        while not proxy.listeners:  # it is opened in the proxy's thread, which this loop has not heard of yet
            time.sleep(0.001)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert proxy.listeners == set()


async def test_a_connection_that_is_given_up_while_it_is_opened_is_closed() -> None:
    closed, waiting = list[str](), asyncio.Event()

    async def call(*_: Any) -> Any:
        waiting.set()
        await asyncio.sleep(3600)

    client: Any = SimpleNamespace(call=call, on_event=lambda _: None, close=closed.append)

    async def connect(_: float) -> Any:
        return client

    opening = asyncio.create_task(Connection(connect).open())
    await waiting.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert len(closed) == 1
