"""Serves an ASGI application on loopback, in a thread that a busy event loop does not delay."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp

from envs.background import log_failure
from envs.cancel_scope import finish_shielded
from envs.loop_thread import LoopThread
from envs.types import SiteError

T = TypeVar("T")

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
"""Real seconds until a server must answer."""

STOP_SECONDS = 10.0
"""Real seconds that a thread may take to end. It waits for a request in progress."""


class AppServer:
    """Serves ``app`` at ``origin``. ``name`` names it in errors."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._name = name
        self._thread = LoopThread(name)
        self._running: tuple[uvicorn.Server, socket.socket, Future[None]] | None = None
        self._origin: str | None = None
        self._changing = asyncio.Lock()
        """Held while it is started or closed, so that two concurrent starts make one server."""

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:<port>``; `SiteError` before ``start``."""
        if self._origin is None:
            raise SiteError(f"the server of {self._name} is not started; call start() first")
        return self._origin

    async def start(self) -> None:
        """Bind a free port of loopback and serve.

        A second start does nothing. A start that fails or is cancelled leaves nothing behind.

        Raises:
            SiteError: it does not answer in time.
        """
        async with self._changing:
            if self._running is not None:
                return
            listener = socket.create_server(("127.0.0.1", 0))
            # asyncio sets this only on sockets that name their protocol, which these do not.
            # Without it a body waits 40 ms for the acknowledgement of the head.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            config = uvicorn.Config(self._app, log_level="warning", access_log=False, lifespan="off")
            server = uvicorn.Server(config)
            self._thread.start()
            serving = self._thread.begin(_serve(server, listener))
            serving.add_done_callback(log_failure)
            self._running = server, listener, serving
            try:
                await self._wait_until_started(server, serving)
            except BaseException:
                await finish_shielded(self._stop())
                raise
            self._origin = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def close(self) -> None:
        """Stop serving and wait for the thread."""
        async with self._changing:
            await finish_shielded(self._stop())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the server's thread."""
        if self._running is None:
            work.close()
            raise SiteError(f"the server of {self._name} is not started; call start() first")
        return await self._thread.run(work)

    async def _wait_until_started(self, server: uvicorn.Server, serving: Future[None]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            if serving.done():
                raise SiteError(f"the server of {self._name} did not start: it ended by itself; its log says why")
            if time.monotonic() > deadline:
                raise SiteError(f"the server of {self._name} did not start within {START_SECONDS:g} s")
            await asyncio.sleep(0.01)

    async def _stop(self) -> None:
        running, self._running, self._origin = self._running, None, None
        if running is None:
            return
        server, listener, serving = running
        server.should_exit = server.force_exit = True
        if not server.started:
            serving.cancel()
        await asyncio.to_thread(wait, [serving], STOP_SECONDS)
        if serving.done():
            await self._thread.close()
        else:
            logger.warning("the server of %s does not end; its thread is left behind", self._name)
            self._thread = LoopThread(self._name)
        listener.close()  # a server that had started has closed it


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    with suppress(SystemExit):  # which uvicorn raises where it cannot start; its log says why
        await server.serve(sockets=[listener])
