"""Serves the pages of the monitor and of the browser of runs."""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from envs.types import ConfigError
from tasks_lib.monitor.flow_run_routes import FlowRunRoutes
from tasks_lib.monitor.gate import PageGate, check_host, read_token
from tasks_lib.monitor.static_files import PAGE, static_file

STOP_SECONDS = 2
"""Seconds that the requests in progress get when the server stops."""


class _SignalFreeServer(uvicorn.Server):
    """Leaves signals to the command, which ends the server."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(frozen=True)
class PageServer:
    """Address at which pages are served, and the readers' token; its text shows no token."""

    host: str = "127.0.0.1"
    port: int = 0
    """Port; 0 for a free one."""
    token: str = field(default="", repr=False)

    @classmethod
    def of(cls, options: argparse.Namespace) -> PageServer:
        """Make it from the options of a command (`add_options`).

        Raises:
            ConfigError: the token file cannot be used, or others could read without a token.
        """
        token = read_token(options.token_file) if options.token_file else ""
        check_host(options.host, token)
        return cls(options.host, options.port, token)

    def application(
        self,
        routes: Sequence[BaseRoute],
        lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
        root: Path | None = None,
    ) -> Starlette:
        """Return the application of these routes, of the pages' files, and of the flow runs under a
        root, behind the gate."""
        files = Route("/static/{name}", _page_file)
        flow_runs = FlowRunRoutes(root, bool(self.token)).routes()
        gate = Middleware(PageGate, token=self.token)
        return Starlette(routes=[files, *flow_runs, *routes], middleware=[gate], lifespan=lifespan)

    def listen(self) -> socket.socket:
        """Return the socket that it listens on.

        Raises:
            ConfigError: the port is in use, or the address is none of this machine's.
        """
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise ConfigError(
                f"--host {self.host} --port {self.port}: {error.strerror}; give another --port (0: a free one)"
            ) from error

    @asynccontextmanager
    async def serving(self, application: Starlette, end: Callable[[], None] = lambda: None) -> AsyncIterator[str]:
        """Serve inside, and yield the address, as ``http://127.0.0.1:8710``.

        Args:
            end: Ends the answers that go on, such as event streams.
        """
        with self.listen() as listening:
            config = uvicorn.Config(
                application, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_SECONDS
            )
            server = _SignalFreeServer(config)
            running = asyncio.create_task(server.serve([listening]), name="pages")
            host = f"[{self.host}]" if ":" in self.host else self.host
            try:
                yield f"http://{host}:{listening.getsockname()[1]}"
            finally:
                end()
                server.should_exit = True
                await running


def add_options(parser: argparse.ArgumentParser, port: int) -> None:
    """Add the options that say where pages are served."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; another than loopback needs a token")
    parser.add_argument("--port", type=int, default=port, help=f"port (default: {port}; 0: a free one)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with the token that readers give once as ?token="
    )


async def _page_file(request: Request) -> Response:
    return static_file(PAGE, request.path_params["name"], [path.name for path in PAGE.iterdir()])
