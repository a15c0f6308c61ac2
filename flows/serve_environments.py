"""Serve environments from the workers of a Dask cluster, at one address.

Each worker with the ``browser`` resource runs an environment server, behind one master
(docs/environment-server.md).

    python -m flows.serve_environments --workers 2 --port 8700
    python -m flows.serve_environments --scheduler tcp://10.0.0.1:8786 --host 0.0.0.0 --key-file mine/keys

SIGTERM drains: no session is opened any more, the open ones may end within --drain-seconds, then
all servers end. A second SIGTERM ends them at once. Ends with 2 for what is refused before it
serves, 130 after a signal before that.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

import distributed

from envs.server import DrainingServer, EnvServerOptions, Master, add_server_arguments, server_options
from envs.types import RollwrightError
from tasks_lib.config import ClusterConfig, resolve
from tasks_lib.processes.startup_interrupt import NOTHING_HAS_BEGUN, STATUS, raise_on_interrupt
from tasks_lib.rollouts.cluster import open_cluster
from tasks_lib.rollouts.environment_nodes import EnvironmentNodes

SESSIONS = 16
"""Default number of places of a local worker; a session takes one."""


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit status."""
    given = read_arguments(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    raise_on_interrupt()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the server handles it
    try:
        options = server_options(given)
        cluster = resolve(ClusterConfig, {"address": given.scheduler, "workers": given.workers}, "--workers")
        with open_cluster(cluster, given.sessions) as client:
            asyncio.run(serve(client, options))
    except KeyboardInterrupt:
        print(NOTHING_HAS_BEGUN, file=sys.stderr)
        return STATUS
    except RollwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


async def serve(client: distributed.Client, options: EnvServerOptions) -> None:
    """Serve from the workers of a cluster until a signal.

    Clients' keys stay in this process. The servers know one key, made here, which travels through
    Dask alone.

    Args:
        client: Client of the cluster.
        options: Those of the master, and of the servers except for keys and address.
    """
    node_key = secrets.token_urlsafe(32)
    master = Master(keys=options.keys, node_key=node_key)
    nodes = EnvironmentNodes(client, master, replace(options, port=0, keys={}, master_key=node_key))

    def announce(address: str) -> None:
        print(f"serving the workers of {client.scheduler.address} at {address}", flush=True)

    async with nodes.watched():
        await DrainingServer(
            master.app(),
            nodes,
            host=options.host,
            port=options.port,
            drain_seconds=options.drain_seconds,
            announce=announce,
        ).serve()


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.serve_environments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_arguments(parser)
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help="A Dask scheduler; a local cluster without.")
    parser.add_argument("--workers", type=int, default=1, help="Workers of the local cluster.")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="Sessions of each local worker.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
