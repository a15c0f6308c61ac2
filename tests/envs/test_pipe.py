"""The pipe to a Chromium of ours: messages in pieces, messages that are none, browsers that end or
hang."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from envs.browser.options import ContextOptions, Device
from envs.browser.process.browser import Browser
from envs.browser.process.chromium import LAUNCH_ARGS, ChromiumProcess, find_chromium
from envs.browser.process.connection import ConnectionTimes
from envs.browser.process.states import ConnectionState
from envs.cdp import cbor
from envs.cdp.client import ConnectionLost
from envs.cdp.envelopes import ENVELOPE, HEADER
from envs.cdp.pipe import Pipe
from envs.types import BrowserError

MAX_SIZE = 100_000


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Pipe, list[bytes], int, int]]:
    """A pipe, the messages that it hears, and the other side's ends: to read from and to write
    to."""
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    pipe = Pipe(ours_in, ours_out, max_size=MAX_SIZE)
    await pipe.open()
    heard: list[bytes] = []
    pipe.on_message = heard.append
    try:
        yield pipe, heard, theirs_in, theirs_out
    finally:
        pipe.close()
        for end in (theirs_in, theirs_out):
            os.close(end)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_messages_in_pieces_and_several_at_once() -> None:
    async with opened() as (_pipe, heard, _in, out):
        messages = [cbor.write({"id": number, "text": "x" * 20 * number}) for number in range(5)]
        raw = b"".join(messages)
        for at in range(0, len(raw), 7):
            os.write(out, raw[at : at + 7])
            await asyncio.sleep(0)
        os.write(out, raw)
        await until(lambda: len(heard) == 10)
        assert heard == messages * 2


async def test_what_is_sent_in_one_turn_is_written_at_once() -> None:
    async with opened() as (pipe, _heard, theirs, _out):
        transport = pipe._writing
        assert transport is not None
        written: list[int] = []
        write = transport.write
        transport.write = lambda data: (written.append(len(data)), write(data))[1]  # type: ignore[method-assign,assignment,arg-type,return-value]
        messages = [cbor.write({"id": number}) for number in range(3)]
        for message in messages:
            pipe.send(message)
        assert await asyncio.to_thread(os.read, theirs, 2**16) == b"".join(messages) and len(written) == 1


async def test_more_is_sent_than_a_browser_reads() -> None:
    """It is stopped, say: what is sent waits, and nobody is held up."""

    async with opened() as (pipe, _heard, theirs, _out):
        message = cbor.write({"id": 1, "text": "x" * 50_000})
        for _ in range(40):
            pipe.send(message)
        read = b""
        while len(read) < 40 * len(message):
            read += await asyncio.to_thread(os.read, theirs, 2**16)
        assert read == message * 40


async def test_what_is_no_message_ends_the_pipe() -> None:
    async with opened() as (pipe, heard, _in, out):
        os.write(out, b'{"id": 1, "result": {}}\0')
        assert "begins with 7b 22 69 64" in await asyncio.wait_for(pipe.ended, 5) and not heard


@pytest.mark.parametrize("longer", [1, 100_000])
async def test_a_message_that_is_too_long_is_left_out(longer: int, caplog: pytest.LogCaptureFixture) -> None:
    """A page can bring one about: the others' go on."""

    async with opened() as (_pipe, heard, _in, out):
        raw = ENVELOPE + (MAX_SIZE + longer).to_bytes(4, "big") + bytes(MAX_SIZE + longer)
        after = cbor.write({"id": 2})
        for part in (raw[:3], raw[3:20], raw[20:], after, raw + after):
            await asyncio.to_thread(os.write, out, part)
        await until(lambda: len(heard) == 2)
        assert heard == [after, after]
    assert f"a message of {MAX_SIZE + longer + HEADER} bytes was left out" in caplog.text


async def test_closing_does_not_wait_for_a_browser_that_does_not_read() -> None:
    async with opened() as (pipe, _heard, theirs, _out):
        pipe.send(bytes(2**20))
        await asyncio.sleep(0.01)
        pipe.close()
        await asyncio.sleep(0.01)
        read = 0
        while part := await asyncio.wait_for(asyncio.to_thread(os.read, theirs, 2**16), 5):
            read += len(part)
        assert 0 < read < 2**20


@pytest.mark.parametrize("turns", range(8))
async def test_a_start_that_is_cancelled_leaves_nothing(
    turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptors, us = len(os.listdir("/proc/self/fd")), psutil.Process()

    before = set(us.children(recursive=True))
    starting = asyncio.create_task(ChromiumProcess.start(find_chromium(), LAUNCH_ARGS))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.sleep(0.01)  # the loop closes what it had
    assert not list(tmp_path.iterdir()) and not set(us.children(recursive=True)) - before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


async def test_a_browser_that_closes_its_end() -> None:
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    pipe = Pipe(ours_in, ours_out, max_size=MAX_SIZE)
    await pipe.open()
    os.close(theirs_out)
    assert await asyncio.wait_for(pipe.ended, 5) == "the browser closed it"
    os.close(theirs_in)
    pipe.send(b"to nobody")
    pipe.close()


# ----------------------------------------------------------------------------
# a real Chromium

TIMES = ConnectionTimes(connect=3, heartbeat=0.3, answer=0.5, backoff=0.05, longest_backoff=0.2, attempts=20)


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    browser = await Browser.launch(find_chromium(), LAUNCH_ARGS, TIMES)
    try:
        yield browser
    finally:
        await browser.close()


@pytest.mark.chaos
async def test_a_browser_that_hung_is_spoken_to_again_over_the_same_pipe() -> None:
    async with launched() as browser:
        context = await browser.open_context(ContextOptions("test", Device(width=300, height=200)))
        await context.active.load("data:text/html,<script>kept=41</script>")
        assert browser.process is not None
        os.kill(browser.process.pid, signal.SIGSTOP)
        with pytest.raises(BrowserError):
            await context.guard(context.active.evaluate("1"), 30, "it")
        await until(lambda: browser.connection.state is ConnectionState.RECONNECTING)
        os.kill(browser.process.pid, signal.SIGCONT)
        await until(lambda: browser.connection.reconnects == 1)
        assert await context.active.evaluate("kept + 1") == 42
        before = await context.active.evaluate("Date.now()")
        await context.active.clock.settle(250)
        assert await context.active.evaluate("Date.now()") == before + 250, "the page has two clocks, or none"
        # Of the sessions of before none is left, or each event would come twice.
        targets = (await browser.connection.browser.send("Target.getTargets"))["targetInfos"]
        assert sum(target["attached"] for target in targets) == 1


@pytest.mark.chaos
async def test_a_browser_that_is_killed_is_given_up_at_once() -> None:
    async with launched() as browser:
        assert browser.process is not None
        os.kill(browser.process.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while not browser.lost:
                await asyncio.sleep(0.01)
        assert browser.connection.given_up == "its process is gone"
        with pytest.raises(ConnectionLost):
            await browser.connection.browser.send("Browser.getVersion")


async def test_a_program_that_is_not_there_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(BrowserError, match="nowhere did not start"):
        await ChromiumProcess.start(tmp_path / "nowhere", ())
    assert not list(tmp_path.iterdir())


async def test_a_program_that_is_no_browser_is_named(tmp_path: Path) -> None:
    script = tmp_path / "chromium"
    script.write_text("#!/bin/sh\necho no display >&2\n")
    script.chmod(0o755)

    with pytest.raises(BrowserError, match=r"chromium did not start: .*: no display"):
        await ChromiumProcess.start(script, ())


async def test_nobody_else_can_speak_to_it() -> None:
    """It listens on no port."""

    async with launched() as browser:
        assert browser.process is not None
        listening = [each for member in browser.process.family() for each in member.net_connections("inet")]
        assert not [each for each in listening if each.status == "LISTEN"]
