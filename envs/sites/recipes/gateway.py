"""Terminates TLS for the hosts of a group of sites, and forwards each request to the instance.

An episode has a socket of its own, to which only its browser context's egress listener connects.
The ``Host`` header chooses the address that answers. A connection serves one request: that address
is asked to close after it.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from envs.egress.certificates import local_key
from envs.egress.message import HEAD_END, MAX_HEAD, PROBLEM_HEADER, our_answer
from envs.loop_thread import LoopThread
from envs.sites.base import HostAddress
from envs.sites.recipes.template import own_folder
from envs.sites.site_guest.servers import pass_on
from envs.types import SiteError

SHUTDOWN_SECONDS = 1.0
"""Real seconds that a browser has to confirm the end of a connection."""
PORT = 443
"""Port of all hosts."""
_LINE = b"\r\n"
_OURS = (b"connection", b"keep-alive", b"x-forwarded-proto", b"x-forwarded-for", b"x-forwarded-host")


FindInstance = Callable[[str], Coroutine[Any, Any, HostAddress | None]]
"""Returns the address of a host; ``None`` if the episode has no such host."""


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

    async def open(self, find: FindInstance) -> EpisodeServer:
        """Serve an episode on a Unix socket.

        Args:
            find: Asked in the caller's event loop.
        """
        assert self._context is not None and self._folder is not None, "start it first"
        place = self._folder / f"{next(self._numbers)}.socket"
        episode = EpisodeServer(place, asyncio.get_running_loop(), find, self._thread)
        await self._thread.run(episode.listen(self._context))
        return episode


class EpisodeServer:
    """The TLS server of one episode."""

    def __init__(self, socket: Path, loop: asyncio.AbstractEventLoop, find: FindInstance, thread: LoopThread) -> None:
        self.socket = socket
        """Unix socket that is connected to."""
        self._loop = loop
        self._find = find
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
        """Forward one request to its host, and relay the answer."""
        head = await reader.readuntil(HEAD_END)
        host = _host_of(head)
        try:
            finding = asyncio.run_coroutine_threadsafe(self._find(host), self._loop)
            address = await asyncio.wrap_future(finding)
        except SiteError as error:
            writer.write(_error_answer("502 Bad Gateway", str(error)))
            return
        if address is None:
            writer.write(_error_answer("421 Misdirected Request", "this episode has no such host"))
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", address.port)
        up_writer.write(_request_head(head, address.cookie))
        await asyncio.gather(pass_on(reader, up_writer), pass_on(up_reader, writer))


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


def _error_answer(status: str, text: str) -> bytes:
    line = " ".join(text.split()).encode("latin-1", "replace").decode("latin-1")
    return our_answer(status, (PROBLEM_HEADER, line), line)
