"""Terminates TLS for the hosts of a group of sites, and forwards each request to the instance.

An episode has a socket of its own, to which only its browser context's egress listener connects.
The ``Host`` header chooses the instance. A connection serves one request: the instance is asked to
close after it.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from envs.egress.certificates import local_key
from envs.egress.message import HEAD_END, MAX_HEAD, PROBLEM_HEADER
from envs.loop_thread import LoopThread
from envs.sites.recipes.template import own_folder
from envs.types import SiteError

T = TypeVar("T")

SHUTDOWN_SECONDS = 1.0
"""Real seconds that a browser has to confirm the end of a connection."""
PORT = 443
"""Port of all hosts."""
PIECE = 1 << 16
"""Bytes that are passed on at once."""
_LINE = b"\r\n"
_OURS = (b"connection", b"keep-alive", b"x-forwarded-proto", b"x-forwarded-for", b"x-forwarded-host")


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Address that answers the requests to a host."""

    place: Path | int
    """Unix socket, or a port of loopback."""
    cookie: str = field(default="", repr=False)
    """Cookie that is sent besides the browser's."""


FindInstance = Callable[[str], Awaitable[HostAddress | None]]
"""Returns the address of a host's instance; ``None`` if the episode has no such host."""
ExplainFailure = Callable[[str], Awaitable[str]]
"""Returns why a host's instance fails; empty if it cannot be seen."""


class HostGateway:
    """The TLS servers of a group's episodes, in one thread."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = tuple(hosts)
        self._thread = LoopThread("host-gateway")
        self._context: ssl.SSLContext | None = None
        self._folder: Path | None = None
        self._held = ExitStack()
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Make the certificate and the folder of sockets, and start the thread. A second start does
        nothing."""
        if self._folder is not None:
            return
        self._folder = await asyncio.to_thread(self._held.enter_context, own_folder())
        self._context = await asyncio.to_thread(lambda: local_key().server_context(self._hosts))
        self._thread.start()

    async def close(self) -> None:
        """End the thread. Episodes are closed before."""
        await self._thread.close()
        self._held.close()
        self._folder = None

    def new_socket(self) -> Path:
        """Return a path for a Unix socket, which goes when this is closed."""
        assert self._folder is not None, "start it first"
        return self._folder / f"{next(self._numbers)}.socket"

    async def open(self, find: FindInstance, explain: ExplainFailure) -> EpisodeServer:
        """Serve an episode on a Unix socket.

        Args:
            find: Asked in the caller's event loop, as is ``explain``.
        """
        assert self._context is not None, "start it first"
        episode = EpisodeServer(self.new_socket(), asyncio.get_running_loop(), find, explain, self._thread)
        await self._thread.run(episode.listen(self._context))
        return episode


class EpisodeServer:
    """The TLS server of one episode."""

    def __init__(
        self,
        socket: Path,
        loop: asyncio.AbstractEventLoop,
        find: FindInstance,
        explain: ExplainFailure,
        thread: LoopThread,
    ) -> None:
        self.socket = socket
        """Unix socket that is connected to."""
        self._loop = loop
        self._find = find
        self._explain = explain
        self._thread = thread
        self._server: asyncio.Server | None = None
        self._forwarding: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop listening and end the connections."""
        if self._thread.running:
            await self._thread.run(self._close())
        self.socket.unlink(missing_ok=True)

    # --- in the gateway's thread

    async def listen(self, context: ssl.SSLContext) -> None:
        """Listen on the socket."""
        self._server = await asyncio.start_unix_server(
            self._begin, str(self.socket), ssl=context, ssl_shutdown_timeout=SHUTDOWN_SECONDS, limit=MAX_HEAD
        )

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._forwarding:
            task.cancel()
        await asyncio.gather(*self._forwarding, return_exceptions=True)

    async def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._forwarding.add(task)
        try:
            await self._forward_request(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the browser has closed the connection, or sends no HTTP; it gets no answer
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            self._forwarding.discard(task)
            writer.close()

    async def _forward_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one request to its instance, and relay the answer."""
        head = await reader.readuntil(HEAD_END)
        host = _host_of(head)
        try:
            address = await self._await_on_caller_loop(self._find(host))
        except SiteError as error:
            writer.write(_error_answer(b"502 Bad Gateway", str(error)))
            return
        if address is None:
            writer.write(_error_answer(b"421 Misdirected Request", "this episode has no such host"))
            return
        if isinstance(address.place, int):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", address.place, limit=MAX_HEAD)
        else:
            up_reader, up_writer = await asyncio.open_unix_connection(str(address.place), limit=MAX_HEAD)
        try:
            up_writer.write(_request_head(head, address.cookie))
            sending = asyncio.ensure_future(_pass_on(reader, up_writer))
            answering = asyncio.ensure_future(self._relay_answer(host, up_reader, writer))
            # When the browser closes first, the answer has no reader.
            ended, pending = await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for task in ended:
                task.result()
        finally:
            up_writer.close()

    async def _relay_answer(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(HEAD_END)
        except (OSError, asyncio.IncompleteReadError):
            why = await self._await_on_caller_loop(self._explain(host)) or f"the server of {host} closed the connection"
            writer.write(_error_answer(b"502 Bad Gateway", why))
            await writer.drain()
            return
        failed = head.split(b" ", 2)[1][:1] == b"5"
        writer.write(_with_problem(head, await self._await_on_caller_loop(self._explain(host)) if failed else ""))
        await _pass_on(reader, writer)

    async def _await_on_caller_loop(self, question: Awaitable[T]) -> T:
        """Await this on the caller's event loop and return the result."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(question), self._loop))


async def _awaited(question: Awaitable[T]) -> T:
    return await question


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()


def _host_of(head: bytes) -> str:
    """Return the host that a request names, without a port."""
    for line in head.split(_LINE)[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"host":
            return value.strip().decode("latin-1").lower().partition(":")[0]
    return ""


def _request_head(head: bytes, cookie: str) -> bytes:
    """Return the head for the instance: marked as HTTPS, with no further request after it."""
    first, *lines = head.removesuffix(HEAD_END).split(_LINE)
    upgraded = any(line.lower().startswith(b"upgrade:") for line in lines)
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _OURS]
    connection = b"Connection: Upgrade" if upgraded else b"Connection: close"
    ours = [f"Cookie: {cookie}".encode()] if cookie else []
    return _LINE.join([first, *kept, *ours, b"X-Forwarded-Proto: https", connection]) + HEAD_END


def _with_problem(head: bytes, problem: str) -> bytes:
    """Return the head for the browser, with our reason for a failure."""
    ours = PROBLEM_HEADER.encode() + b":"
    lines = [line for line in head.removesuffix(HEAD_END).split(_LINE) if not line.lower().startswith(ours)]
    return _LINE.join([*lines, *([ours + b" " + _one_line(problem)] if problem else [])]) + HEAD_END


def _error_answer(status: bytes, text: str) -> bytes:
    """Return an answer of our own."""
    content = _one_line(text)
    headers = [b"HTTP/1.1 " + status, PROBLEM_HEADER.encode() + b": " + content, b"Content-Type: text/plain"]
    length = f"Content-Length: {len(content)}".encode()
    return _LINE.join([*headers, length, b"Connection: close"]) + HEAD_END + content


def _one_line(text: str) -> bytes:
    return " ".join(text.split()).encode("latin-1", "replace")
