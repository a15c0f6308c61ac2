"""A folder served on loopback, and the plainest site made of one."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from envs.observation import FULL
from envs.types import SiteError, WebTask

START_SECONDS = 10.0
"""Real seconds until a server must answer."""


class _CachedFiles(StaticFiles):
    """Files that do not change while they are served, so that a browser context asks for each of them once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "max-age=86400, immutable"
        return response


class StaticServer:
    """Serves ``folder`` at ``origin``, in a thread of its own so that a busy event loop does not delay the pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._origin: str | None = None

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:<port>``; `SiteError` before ``start``."""
        if self._origin is None:
            raise SiteError(f"the server of {self.folder} is not started; call start() first")
        return self._origin

    async def start(self) -> None:
        """Bind a free port of loopback and serve. Starting twice is one start."""
        if self._thread is not None:
            return
        if not self.folder.is_dir():
            raise SiteError(f"{self.folder} is no folder; nothing to serve")
        listener = socket.create_server(("127.0.0.1", 0))
        # asyncio sets this only on sockets that name their protocol, which these do not. Without it a body waits 40 ms for the head's receipt.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        app = Starlette(routes=[Mount("/", _CachedFiles(directory=self.folder, html=True))])
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="static-site", daemon=True)
        thread.start()
        await asyncio.to_thread(_wait_until_started, server, thread)
        self._server, self._thread = server, thread
        self._origin = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def close(self) -> None:
        """Stop serving and wait for the thread."""
        server, thread = self._server, self._thread
        self._server = self._thread = self._origin = None
        if server is not None and thread is not None:
            server.should_exit = server.force_exit = True
            await asyncio.to_thread(thread.join)


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise SiteError("the static server did not start")
        thread.join(0.01)


class StaticSite:
    """Pages of a folder, with a browser context of its own for each episode. The task gives the instruction; nothing
    declares an end."""

    stateless_pages = False
    final_screenshot = True
    style = ""
    exclude = ""
    hosts: tuple[str, ...] = ()
    background = False
    observation = FULL

    def __init__(self, name: str, folder: Path, *, viewport: tuple[int, int] = (448, 448)) -> None:
        self.name = name
        self.viewport = viewport
        self._server = StaticServer(folder)

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:<port>``."""
        return self._server.origin

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def close(self) -> None:
        """Stop serving."""
        await self._server.close()

    def reload_for(self, task: WebTask) -> bool:
        """Every episode begins with a load."""
        return True

    def reset_script(self, task: WebTask, seed: int) -> str:
        """Nothing: a fresh context is the reset."""
        return ""

    def ready_script(self, task: WebTask) -> str:
        """The load is enough."""
        return "true"

    def facts_script(self, task: WebTask) -> str:
        """Nothing: no facts, never done."""
        return ""
