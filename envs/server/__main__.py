"""Serve environments: ``python -m envs.server --port 8700 --max-sessions 32``.

SIGTERM drains: no session is opened any more, the open ones may end within --drain-seconds, then
they are closed. A second SIGTERM closes them at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence

from envs.garbage import collect_seldom
from envs.host import MAX_SESSIONS
from envs.server.running import PORT, EnvServerOptions, add_server_arguments, open_server, server_options
from envs.types import RollwrightError

__all__ = ["PORT", "main", "read_options"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if it cannot serve."""
    given = read_options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    collect_seldom()
    try:
        others = ("max_sessions", "browsers", "max_per_key", "public_host")
        asyncio.run(_serve(server_options(given, **{name: getattr(given, name) for name in others})))
    except RollwrightError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _serve(options: EnvServerOptions) -> None:
    def announce(address: str) -> None:
        print(f"serving {options.max_sessions} sessions at {address}", flush=True)

    async with open_server(options, announce) as server:
        await server.serve()


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command's arguments."""
    parser = argparse.ArgumentParser(prog="python -m envs.server", description=__doc__)
    add_server_arguments(parser)
    add = parser.add_argument
    add("--max-sessions", type=int, default=MAX_SESSIONS, help="Sessions at a time.")
    add("--max-per-key", type=int, help="Sessions of one key at a time.")
    add("--browsers", type=int, default=1, help="Chromium processes.")
    add("--public-host", help="Name of this machine in DevTools addresses; --host if not given.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
