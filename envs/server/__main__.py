"""Serve environments: ``python -m envs.server --port 8700 --max-sessions 32``.

SIGTERM drains: no session is opened any more, the open ones may end within --drain-seconds, then
they are closed. A second SIGTERM closes them at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from envs.host import MAX_SESSIONS, EnvHost
from envs.server import omniboxes
from envs.server.app import MAX_BODY, REQUEST_SECONDS, EnvServer
from envs.server.devtools import DevToolsFront
from envs.server.gate import check_listens, read_keys
from envs.server.requests import ClientRules
from envs.server.sessions import LEASE_SECONDS, MIN_FREE_MB, SessionTable
from envs.supply import DevToolsSupply
from envs.types import ConfigError, RollwrightError

logger = logging.getLogger("envs.server")

PORT = 8700
DRAIN_SECONDS = 60.0
STOP_SECONDS = 5
"""Seconds that the requests in progress get when the server stops."""


class DrainingServer(uvicorn.Server):
    """A server that a signal drains, and a second signal stops."""

    def __init__(self, config: uvicorn.Config, table: SessionTable, drain_seconds: float) -> None:
        super().__init__(config)
        self._table, self._drain_seconds = table, drain_seconds
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and print the address."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"serving {self._table.capacity} sessions at http://{shown}:{port}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain, or stop if it drains already."""
        if self._table.draining:
            self.should_exit = True
        self._table.draining = True  # at once; the rest when the event loop comes to it

    async def on_tick(self, counter: int) -> bool:
        """Begin to drain after a signal; uvicorn calls it ten times a second."""
        if self._table.draining and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        try:
            left = await self._table.drain(self._drain_seconds)
            logger.info("drained; %d sessions are closed by the server", left)
        finally:
            self.should_exit = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if it cannot serve."""
    options = read_options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(options))
    except RollwrightError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _serve(options: argparse.Namespace) -> None:
    keys = read_keys(options.key_file) if options.key_file else {}
    check_listens(options.host, keys)
    rules = ClientRules(
        allow_code=options.allow_code,
        reach=tuple(options.reach),
        addresses=dict(_named(address) for address in options.address),
    )
    rules.live()  # wrong origins are refused before a browser starts
    async with (
        EnvHost(max_sessions=options.max_sessions, browsers=options.browsers) as host,
        SessionTable(host, lease_seconds=options.lease_seconds, min_free_mb=options.min_free_mb) as table,
        DevToolsSupply(host, host=options.host, public_host=options.public_host) as supply,
    ):
        server = EnvServer(
            table,
            rules=rules,
            keys=keys,
            max_per_owner=options.max_per_key,
            max_body=options.max_body,
            request_seconds=options.request_seconds,
            fronts=[DevToolsFront(supply).routes, *([omniboxes.routes] if options.omniboxes else [])],
        )
        config = uvicorn.Config(
            server.app(),
            host=options.host,
            port=options.port,
            log_level="warning",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        await DrainingServer(config, table, options.drain_seconds).serve()


def _named(address: str) -> tuple[str, str]:
    name, _, url = address.partition("=")
    if not name or "://" not in url:
        raise ConfigError(f"--address {address}: write NAME=http://HOST:PORT")
    return name, url


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command's arguments."""
    parser = argparse.ArgumentParser(prog="python -m envs.server", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="Address to listen on; others than loopback need keys.")
    add("--port", type=int, default=PORT, help="Port; 0 for a free one, which is printed.")
    add("--max-sessions", type=int, default=MAX_SESSIONS, help="Sessions at a time.")
    add("--max-per-key", type=int, help="Sessions of one key at a time.")
    add("--browsers", type=int, default=1, help="Chromium processes.")
    add("--key-file", type=Path, help="File of keys, one a line, as NAME:KEY or KEY.")
    add("--lease-seconds", type=float, default=LEASE_SECONDS, help="Seconds without a call that close a session.")
    add("--drain-seconds", type=float, default=DRAIN_SECONDS, help="Seconds that open sessions get after SIGTERM.")
    add("--request-seconds", type=float, default=REQUEST_SECONDS, help="Seconds until a request is answered.")
    add("--min-free-mb", type=float, default=MIN_FREE_MB, help="Free memory below which no session is opened.")
    add("--max-body", type=int, default=MAX_BODY, help="Bytes of a request.")
    add("--reach", action="append", default=[], metavar="ORIGIN", help="Origin that live tasks may reach; repeat it.")
    add("--address", action="append", default=[], metavar="NAME=URL", help="Address of a live site; repeat it.")
    add("--allow-code", action="store_true", help="Clients may name module:function, which the server imports.")
    add("--public-host", help="Name of this machine in DevTools addresses; --host if not given.")
    add("--omniboxes", action="store_true", help="Also speak the Omniboxes protocol (WebGym).")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
