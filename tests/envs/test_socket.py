"""The WebSocket to a browser, against servers that behave and servers that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus, WebSocketException

from envs.cdp.socket import WebSocket

MAX_SIZE = 10_000


@asynccontextmanager
async def connected(
    handler: Callable[[ServerConnection], Awaitable[None]],
) -> AsyncIterator[tuple[WebSocket, list[str]]]:
    """A socket to a server with this handler, and the messages that it hears."""
    async with serve(handler, "127.0.0.1", 0, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        socket = await WebSocket.connect(f"ws://127.0.0.1:{port}/devtools", max_size=MAX_SIZE)
        heard: list[str] = []
        socket.on_message = lambda message: heard.append(message.decode())
        try:
            yield socket, heard
        finally:
            socket.abort()


async def _echo(server: ServerConnection) -> None:
    async for message in server:
        assert isinstance(message, str), "the browser refuses binary messages"
        await server.send(message)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """Address of a server that says something else than a WebSocket would, and closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_messages_come_back_in_order() -> None:
    async with connected(_echo) as (socket, heard):
        for number in range(20):
            socket.send(f"message {number} ä".encode())
        await _until(lambda: len(heard) == 20)
        assert heard == [f"message {number} ä" for number in range(20)]


async def test_what_is_sent_in_one_turn_is_written_at_once() -> None:
    async with connected(_echo) as (socket, heard):
        transport = socket._transport
        assert transport is not None
        written: list[int] = []
        write = transport.write
        transport.write = lambda data: (written.append(len(data)), write(data))[1]  # type: ignore[method-assign]
        for _ in range(3):
            socket.send(b"press")
        await _until(lambda: len(heard) == 3)
        assert len(written) == 1


async def test_a_message_in_pieces_is_put_together() -> None:
    async def pieces(server: ServerConnection) -> None:
        await server.recv()
        await server.send(["one ", "two ", "three"])
        await server.send("whole")
        await server.wait_closed()

    async with connected(pieces) as (socket, heard):
        socket.send(b"go")
        await _until(lambda: len(heard) == 2)
        assert heard == ["one two three", "whole"]


async def test_a_ping_is_answered() -> None:
    answered = asyncio.Event()

    async def ping(server: ServerConnection) -> None:
        await (await server.ping())
        answered.set()

    async with connected(ping):
        async with asyncio.timeout(60):
            await answered.wait()


async def test_a_message_that_is_too_long_ends_the_connection_and_says_so() -> None:
    async def long(server: ServerConnection) -> None:
        await server.recv()
        await server.send("x" * (MAX_SIZE + 1))
        await server.wait_closed()

    async with connected(long) as (socket, heard):
        socket.send(b"go")
        async with asyncio.timeout(60):
            assert str(MAX_SIZE) in await socket.ended
        assert heard == []


async def test_a_goodbye_ends_the_connection() -> None:
    async def leave(server: ServerConnection) -> None:
        await server.close()

    async with connected(leave) as (socket, _):
        async with asyncio.timeout(60):
            await socket.ended
        socket.send(b"into nothing")  # dropped: whoever waits for an answer hears of the end


async def test_an_abort_ends_the_connection() -> None:
    async with connected(_echo) as (socket, _):
        socket.abort()
        async with asyncio.timeout(60):
            await socket.ended


async def test_a_refusal_is_told_with_its_status() -> None:
    async with raw_server(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as url:
        with pytest.raises(InvalidStatus, match="404"):
            await WebSocket.connect(url, max_size=MAX_SIZE)


@pytest.mark.parametrize("answer", [b"", b"not even HTTP\r\n\r\n"])
async def test_what_is_no_websocket_is_told(answer: bytes) -> None:
    async with raw_server(answer) as url:
        with pytest.raises((WebSocketException, OSError)):
            async with asyncio.timeout(60):
                await WebSocket.connect(url, max_size=MAX_SIZE)


async def test_nobody_there_is_an_os_error() -> None:
    async with await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    with pytest.raises(OSError):
        await WebSocket.connect(f"ws://127.0.0.1:{port}/", max_size=MAX_SIZE)
