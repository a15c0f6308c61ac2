"""A real Chromium behind a proxy that misbehaves: what was asked fails at once, pages live on,
every state is reached."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from envs.browser.context import BrowserContext
from envs.browser.options import ContextOptions, Device
from envs.browser.process.browser import Browser
from envs.browser.process.chromium import LAUNCH_ARGS, ChromiumProcess, find_chromium
from envs.browser.process.connection import ConnectionTimes
from envs.browser.process.states import ConnectionState
from envs.browser.tab import Tab
from envs.cdp.client import ConnectionLost
from envs.types import BrowserError
from envs.types.signals import Trouble
from tests.envs.raw_chromium import debugging_address
from tests.envs.tcp_proxy import TcpProxy

pytestmark = pytest.mark.chaos

TIMES = ConnectionTimes(connect=3, heartbeat=0.5, answer=1.0, backoff=0.05, longest_backoff=0.2, attempts=5)
PAGE = "data:text/html,<script>kept=41</script><p>still here"


@dataclass
class Rig:
    process: ChromiumProcess
    proxy: TcpProxy
    browser: Browser
    context: BrowserContext
    tab: Tab

    def states(self) -> list[ConnectionState]:
        return [entry.after for entry in self.browser.connection.machine.journal]

    async def until(self, *states: ConnectionState) -> None:
        async with asyncio.timeout(30):
            while self.browser.connection.state not in states:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def rig(*, signals: bool = False) -> AsyncIterator[Rig]:
    process = await ChromiumProcess.start(find_chromium(), (*LAUNCH_ARGS, "--remote-debugging-port=0"))
    port, path = re.findall(r":(\d+)(/.*)", await debugging_address(process))[0]
    try:
        async with TcpProxy(int(port)) as proxy:
            browser = await Browser.connect(f"ws://127.0.0.1:{proxy.port}{path}", TIMES)
            context = await browser.open_context(ContextOptions("test", Device(width=300, height=200), signals=signals))
            await context.active.load(PAGE)
            yield Rig(process, proxy, browser, context, context.active)
            await browser.close()
    finally:
        await process.stop()


def play(scenario: Callable[[Rig], Awaitable[None]], *, signals: bool = False) -> None:
    async def run() -> None:
        async with rig(signals=signals) as made:
            await scenario(made)

    asyncio.run(run())


async def hang(rig: Rig) -> float:
    """Ask for something that is never answered; seconds until it fails."""
    started = asyncio.get_running_loop().time()
    with pytest.raises(BrowserError):
        await rig.context.guard(
            rig.tab.cdp.send("Runtime.evaluate", {"expression": "new Promise(() => 0)", "awaitPromise": True}), 30, "it"
        )
    return asyncio.get_running_loop().time() - started


@pytest.mark.parametrize("fault", ["drop", "reset", "stall", "half_open"])
def test_pending_calls_fail_and_the_page_is_found_again(fault: str) -> None:
    async def scenario(rig: Rig) -> None:
        pending = asyncio.create_task(hang(rig))
        await asyncio.sleep(0.05)
        getattr(rig.proxy, fault)()
        await rig.until(ConnectionState.RECONNECTING, ConnectionState.CONNECTING)
        assert await pending < 15  # long before its own deadline
        await rig.until(ConnectionState.READY)
        assert await rig.tab.evaluate("kept + 1") == 42
        assert rig.browser.connection.reconnects == 1 and rig.proxy.connections == 2
        assert (ConnectionState.DEGRADED in rig.states()) == (fault in ("stall", "half_open"))

    play(scenario)


def test_a_wait_for_an_event_fails_with_its_socket() -> None:
    async def scenario(rig: Rig) -> None:
        waiting = asyncio.create_task(rig.context.guard(asyncio.Event().wait(), 30, "an event"))
        await asyncio.sleep(0.05)
        rig.proxy.drop()
        with pytest.raises(BrowserError, match="connection"):
            async with asyncio.timeout(30):
                await waiting

    play(scenario)


def test_the_clock_stands_still_while_nobody_is_connected() -> None:
    async def scenario(rig: Rig) -> None:
        before = await rig.tab.evaluate("Date.now()")
        rig.proxy.drop()
        await rig.until(ConnectionState.RECONNECTING)
        await rig.until(ConnectionState.READY)
        assert await rig.tab.evaluate("Date.now()") == before
        await rig.tab.clock.settle(250)
        assert await rig.tab.evaluate("Date.now()") == before + 250

    play(scenario)


def test_signals_are_read_on_a_new_socket_too() -> None:
    async def scenario(rig: Rig) -> None:
        reader = rig.tab.signals
        assert reader is not None
        first = await reader.read(virtual=True)
        rig.proxy.drop()
        await rig.until(ConnectionState.RECONNECTING)
        await rig.until(ConnectionState.READY)
        await rig.tab.evaluate("console.error('after all')")
        again = await reader.read(virtual=True)
        assert [(trouble.kind, trouble.text) for trouble in again.troubles] == [(Trouble.CONSOLE_ERROR, "after all")]
        assert again.document == first.document, "the document was counted a second time"
        assert again.heap_bytes and again.absent == first.absent
        set_up = len(rig.tab.cdp.enabled)
        await rig.tab.load(PAGE)
        assert (await reader.read(virtual=True)).document == first.document + 1
        assert len(rig.tab.cdp.enabled) == set_up, "readings are played back to every new socket"

    play(scenario, signals=True)


def test_nothing_is_kept_of_pages_that_were_closed() -> None:
    worker = "<script>new Worker(URL.createObjectURL(new Blob(['self.close()'])))</script>"

    async def scenario(rig: Rig) -> None:
        before = set(rig.browser.connection.sessions)
        for _ in range(3):
            context = await rig.browser.open_context(ContextOptions("test", Device(width=300, height=200)))
            await context.active.load("data:text/html," + worker)
            await rig.browser.close_context(context)
        async with asyncio.timeout(10):
            while set(rig.browser.connection.sessions) != before:
                await asyncio.sleep(0.01)

    play(scenario)


def test_a_short_stall_only_degrades() -> None:
    async def scenario(rig: Rig) -> None:
        rig.proxy.stall()
        await rig.until(ConnectionState.DEGRADED)
        rig.proxy.resume()
        await rig.until(ConnectionState.READY, ConnectionState.BUSY)
        assert rig.browser.connection.reconnects == 0 and rig.proxy.connections == 1
        assert await rig.tab.evaluate("kept") == 41

    play(scenario)


def test_a_stopped_chromium_is_given_up_or_found_again() -> None:
    async def scenario(rig: Rig) -> None:
        os.kill(rig.process.pid, signal.SIGSTOP)
        try:
            await rig.until(ConnectionState.DEGRADED)
            await rig.until(ConnectionState.RECONNECTING)
            assert await hang(rig) < 5  # a call fails at once while there is no connection
        finally:
            os.kill(rig.process.pid, signal.SIGCONT)
        await rig.until(ConnectionState.READY, ConnectionState.CLOSED)
        assert rig.browser.connection.state is ConnectionState.READY
        assert await rig.tab.evaluate("kept") == 41

    play(scenario)


def test_a_killed_chromium_is_given_up() -> None:
    async def scenario(rig: Rig) -> None:
        pending = asyncio.create_task(hang(rig))
        await asyncio.sleep(0.05)
        os.kill(rig.process.pid, signal.SIGKILL)
        assert await pending < 15  # long before its own deadline
        async with asyncio.timeout(30):
            while not rig.browser.lost:
                await asyncio.sleep(0)  # looks after every callback
        assert rig.context.lost, "the browser was given up before its contexts"
        assert rig.browser.connection.state is ConnectionState.CLOSED
        with pytest.raises(ConnectionLost, match="closed"):
            await rig.browser.connection.ready()

    play(scenario)


def test_a_page_that_went_away_meanwhile_is_dead() -> None:
    async def scenario(rig: Rig) -> None:
        rig.proxy.refuse = True
        rig.proxy.drop()
        await rig.until(ConnectionState.RECONNECTING)
        direct = await Browser.connect(await debugging_address(rig.process))  # somebody else closes the page
        await direct.connection.browser.send("Target.closeTarget", {"targetId": rig.tab.cdp.target_id})
        await direct.connection.close()
        rig.proxy.refuse = False
        await rig.until(ConnectionState.READY)
        assert rig.context.lost and await hang(rig) < 5

    play(scenario)


def test_every_state_is_reached() -> None:
    async def scenario(rig: Rig) -> None:
        rig.proxy.stall()
        await rig.until(ConnectionState.READY) if rig.browser.connection.reconnects else await rig.until(
            ConnectionState.RECONNECTING
        )
        await rig.until(ConnectionState.READY)
        await rig.browser.connection.close()
        assert set(rig.browser.connection.machine.seconds()) == set(map(str, ConnectionState))

    play(scenario)
