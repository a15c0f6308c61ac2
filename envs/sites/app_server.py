"""An ASGI application served on loopback, in a thread of its own so that a busy event loop does not delay the pages."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import uvicorn
from starlette.types import ASGIApp

from envs.types import SiteError

START_SECONDS = 10.0
"""Real seconds until a server must answer."""


class AppServer:
    """Serves ``app`` at ``origin``; ``name`` says what it is in errors."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._name = name
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._origin: str | None = None

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:<port>``; `SiteError` before ``start``."""
        if self._origin is None:
            raise SiteError(f"the server of {self._name} is not started; call start() first")
        return self._origin

    async def start(self) -> None:
        """Bind a free port of loopback and serve. Starting twice is one start."""
        if self._thread is not None:
            return
        listener = socket.create_server(("127.0.0.1", 0))
        # asyncio sets this only on sockets that name their protocol, which these do not. Without it a body waits 40 ms for the head's receipt.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = uvicorn.Server(uvicorn.Config(self._app, log_level="warning", access_log=False, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name=self._name, daemon=True)
        thread.start()
        await asyncio.to_thread(self._wait_until_started, server, thread)
        self._server, self._thread = server, thread
        self._origin = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def close(self) -> None:
        """Stop serving and wait for the thread."""
        server, thread = self._server, self._thread
        self._server = self._thread = self._origin = None
        if server is not None and thread is not None:
            server.should_exit = server.force_exit = True
            await asyncio.to_thread(thread.join)

    def _wait_until_started(self, server: uvicorn.Server, thread: threading.Thread) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise SiteError(f"the server of {self._name} did not start")
            thread.join(0.01)
