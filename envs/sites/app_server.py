"""Serves an ASGI application on loopback, in a thread that a busy event loop does not delay."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp

from envs.cancel_scope import finish_shielded
from envs.types import SiteError

T = TypeVar("T")

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
"""Real seconds until a server must answer."""

STOP_SECONDS = 10.0
"""Real seconds that a thread may take to end. It waits for a request in progress."""


class _Server(uvicorn.Server):
    """A server that another thread can stop at any time, also before it has started."""

    loop: asyncio.AbstractEventLoop | None = None
    _serving: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop, self._serving = asyncio.get_running_loop(), asyncio.current_task()
        if not self.should_exit:
            await super().serve(sockets)

    def stop(self) -> None:
        """Have it end: in its own way if it serves already, else at once."""
        self.should_exit = self.force_exit = True
        if not self.started and self.loop is not None and self._serving is not None:
            with suppress(RuntimeError):  # its loop is closed already
                self.loop.call_soon_threadsafe(self._serving.cancel)


class AppServer:
    """Serves ``app`` at ``origin``, or at a Unix socket. ``name`` names it in errors."""

    def __init__(self, app: ASGIApp, name: str, place: Path | None = None) -> None:
        """
        Args:
            place: Path of the Unix socket; without it a free port of loopback is bound.
        """
        self._app = app
        self._name = name
        self._place = place
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        self._origin: str | None = None
        self._changing = asyncio.Lock()
        """Held while it is started or closed, so that two concurrent starts make one server."""

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:<port>``; `SiteError` before ``start`` and at a Unix socket."""
        if self._origin is None:
            raise SiteError(f"the server of {self._name} is not started; call start() first")
        return self._origin

    async def start(self) -> None:
        """Bind the port or the socket and serve.

        A second start does nothing. A start that fails or is cancelled leaves nothing behind.

        Raises:
            SiteError: it does not answer in time.
        """
        async with self._changing:
            if self._thread is not None:
                return
            try:
                self._start_thread()
                await self._wait_until_started()
            except BaseException:
                await finish_shielded(self._stop_thread())
                raise

    async def close(self) -> None:
        """Stop serving and wait for the thread."""
        async with self._changing:
            await finish_shielded(self._stop_thread())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the server's thread."""
        server = self._server
        if server is None or server.loop is None:
            work.close()
            raise SiteError(f"the server of {self._name} is not started; call start() first")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, server.loop))

    def _start_thread(self) -> None:
        listener = self._listener = self._bound()
        server = self._server = _Server(
            uvicorn.Config(self._app, log_level="warning", access_log=False, lifespan="off")
        )

        def serve() -> None:
            with suppress(asyncio.CancelledError):  # stopped before it had started
                server.run(sockets=[listener])

        self._thread = threading.Thread(target=serve, name=self._name, daemon=True)
        self._thread.start()

    def _bound(self) -> socket.socket:
        if self._place is not None:
            return socket.create_server(str(self._place), family=socket.AF_UNIX)
        listener = socket.create_server(("127.0.0.1", 0))
        # asyncio sets this only on sockets that name their protocol, which these do not. Without it
        # a body waits 40 ms for the acknowledgement of the head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener

    async def _wait_until_started(self) -> None:
        server, thread, listener = self._server, self._thread, self._listener
        assert server is not None and thread is not None and listener is not None
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            if not thread.is_alive():
                raise SiteError(f"the server of {self._name} did not start: it ended by itself; its log says why")
            if time.monotonic() > deadline:
                raise SiteError(f"the server of {self._name} did not start within {START_SECONDS:g} s")
            await asyncio.sleep(0.01)
        if self._place is None:
            self._origin = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def _stop_thread(self) -> None:
        server, thread, listener = self._server, self._thread, self._listener
        self._server = self._thread = self._listener = self._origin = None
        if server is not None:
            server.stop()
        if thread is not None and thread.ident is not None:
            await asyncio.to_thread(thread.join, STOP_SECONDS)
            if thread.is_alive():
                logger.warning("the server of %s does not end; its thread is left behind", self._name)
        if listener is not None:
            listener.close()  # a server that had started has closed it
