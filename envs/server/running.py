"""An environment server's options and parts, and how a server drains after a signal.

::

    async with open_server(EnvServerOptions(max_sessions=8)) as server:
        await server.serve()

``python -m envs.server`` serves with it, and so does each Dask worker of
``flows.serve_environments``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp

from envs.host import MAX_SESSIONS, EnvHost
from envs.server import omniboxes
from envs.server.app import MAX_BODY, REQUEST_SECONDS, EnvServer
from envs.server.devtools import DevToolsFront
from envs.server.gate import check_listens, read_keys
from envs.server.requests import ClientRules
from envs.server.sessions import LEASE_SECONDS, MIN_FREE_MB, SessionTable
from envs.supply import DevToolsSupply
from envs.types import ConfigError

logger = logging.getLogger("envs.server")

PORT = 8700
DRAIN_SECONDS = 60.0
STOP_SECONDS = 5
"""Seconds that the requests in progress get when the server stops."""


@dataclass(frozen=True)
class EnvServerOptions:
    """Options of an environment server; its text shows no key."""

    host: str = "127.0.0.1"
    """Address to listen on; others than loopback need keys."""
    port: int = 0
    """Port; 0 for a free one."""
    max_sessions: int = MAX_SESSIONS
    browsers: int = 1
    """Chromium processes."""
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Keys by owner."""
    master_key: str = field(default="", repr=False)
    """Key of a master, which names the owners of its requests."""
    max_per_key: int | None = None
    """Sessions of one owner at a time."""
    lease_seconds: float = LEASE_SECONDS
    drain_seconds: float = DRAIN_SECONDS
    """Seconds that open sessions get when it drains."""
    request_seconds: float = REQUEST_SECONDS
    min_free_mb: float = MIN_FREE_MB
    max_body: int = MAX_BODY
    rules: ClientRules = field(default_factory=ClientRules)
    public_host: str | None = None
    """Name of this machine in DevTools addresses; ``host`` if not given."""
    omniboxes: bool = False


class Drainable(Protocol):
    """Sessions that a server drains: those of a `SessionTable`, or of a master's nodes."""

    draining: bool

    async def drain(self, seconds: float) -> int:
        """Wait until no session is open, and return how many still are."""
        ...


class DrainingServer(uvicorn.Server):
    """A server that a signal drains, and a second signal stops."""

    def __init__(
        self,
        app: ASGIApp,
        drained: Drainable,
        *,
        host: str,
        port: int,
        drain_seconds: float,
        announce: Callable[[str], None],
    ) -> None:
        """
        Args:
            app: ASGI application.
            drained: Its sessions, which are drained before it stops.
            announce: Called with the address when it listens.
        """
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="warning",
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )
        self._drained, self._drain_seconds, self._announce = drained, drain_seconds, announce
        self._work: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and return the address."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self._announce(f"http://{shown}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain, or stop if it drains already."""
        if self._drained.draining:
            self.should_exit = True
        self.drain()

    def drain(self) -> None:
        """Begin to drain; may be called in any thread, and in a signal's handler."""
        self._drained.draining = True  # at once; the rest when the event loop comes to it

    async def on_tick(self, counter: int) -> bool:
        """Begin to drain after a signal; uvicorn calls it ten times a second."""
        if self._drained.draining and self._work is None:
            self._work = asyncio.create_task(self._drain())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        try:
            left = await self._drained.drain(self._drain_seconds)
            logger.info("drained; %d sessions are closed by the server", left)
        finally:
            self.should_exit = True


@asynccontextmanager
async def open_server(
    options: EnvServerOptions, announce: Callable[[str], None] = lambda address: None
) -> AsyncIterator[DrainingServer]:
    """Open an environment server's browsers and sessions; its ``serve`` serves them.

    Args:
        options: Options of the server.
        announce: Called with the address when it listens.

    Raises:
        ConfigError: It would serve other machines without keys, or an option is wrong.
    """
    check_listens(options.host, options.keys if not options.master_key else {"master": options.master_key})
    options.rules.live()  # wrong origins are refused before a browser starts
    async with (
        EnvHost(max_sessions=options.max_sessions, browsers=options.browsers) as host,
        SessionTable(host, lease_seconds=options.lease_seconds, min_free_mb=options.min_free_mb) as table,
        DevToolsSupply(host, host=options.host, public_host=options.public_host) as supply,
    ):
        server = EnvServer(
            table,
            rules=options.rules,
            keys=options.keys,
            master_key=options.master_key,
            max_per_owner=options.max_per_key,
            max_body=options.max_body,
            request_seconds=options.request_seconds,
            fronts=[DevToolsFront(supply).routes, *([omniboxes.routes] if options.omniboxes else [])],
        )
        yield DrainingServer(
            server.app(),
            table,
            host=options.host,
            port=options.port,
            drain_seconds=options.drain_seconds,
            announce=announce,
        )


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every command has which serves environments."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="Address to listen on; others than loopback need keys.")
    add("--port", type=int, default=PORT, help="Port; 0 for a free one, which is printed.")
    add("--key-file", type=Path, help="File of keys, one a line, as NAME:KEY or KEY.")
    add("--lease-seconds", type=float, default=LEASE_SECONDS, help="Seconds without a call that close a session.")
    add("--drain-seconds", type=float, default=DRAIN_SECONDS, help="Seconds that open sessions get after SIGTERM.")
    add("--request-seconds", type=float, default=REQUEST_SECONDS, help="Seconds until a request is answered.")
    add("--min-free-mb", type=float, default=MIN_FREE_MB, help="Free memory below which no session is opened.")
    add("--max-body", type=int, default=MAX_BODY, help="Bytes of a request.")
    add("--reach", action="append", default=[], metavar="ORIGIN", help="Origin that live tasks may reach; repeat it.")
    add("--address", action="append", default=[], metavar="NAME=URL", help="Address of a live site; repeat it.")
    add("--allow-code", action="store_true", help="Clients may name module:function, which the server imports.")
    add("--omniboxes", action="store_true", help="Also speak the Omniboxes protocol (WebGym).")


def server_options(arguments: argparse.Namespace, **others: Any) -> EnvServerOptions:
    """Return the options that the arguments of `add_server_arguments` give.

    Args:
        others: Further fields of `EnvServerOptions`.

    Raises:
        ConfigError: The keys cannot be read, an address is none, or others would be served without
            keys.
    """
    rules = ClientRules(
        allow_code=arguments.allow_code,
        reach=tuple(arguments.reach),
        addresses=dict(_named(address) for address in arguments.address),
    )
    names = (
        "host",
        "port",
        "lease_seconds",
        "drain_seconds",
        "request_seconds",
        "min_free_mb",
        "max_body",
        "omniboxes",
    )
    keys = read_keys(arguments.key_file) if arguments.key_file else {}
    check_listens(arguments.host, keys)
    rules.live()  # raises at wrong origins
    return EnvServerOptions(**{name: getattr(arguments, name) for name in names}, keys=keys, rules=rules, **others)


def _named(address: str) -> tuple[str, str]:
    name, _, url = address.partition("=")
    if not name or "://" not in url:
        raise ConfigError(f"--address {address}: write NAME=http://HOST:PORT")
    return name, url
