"""An environment server on a Dask worker, as a node of ``flows.serve_environments``.

Who runs, and who waits for whom::

    master (main thread)      its Dask client (a thread)       Dask worker
    ────────────────────      ──────────────────────────       ───────────
    look, every second ─────> which workers are there?
                              submit serve_node ─────────────> a thread: browsers, uvicorn
                              run node_address ──────────────> Dask's loop: its address
    add or remove nodes <──── addresses
    a client's request ──────────────────────────────────────> the thread answers it
    SIGTERM ────────────────> run drain_node ────────────────> the server drains, the task ends

The task takes all ``browser`` places of its worker, so that rollouts wait until it has ended. It
ends with its worker, and when no client waits for its result, as after the master's death.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import distributed

from envs.garbage import collect_seldom
from envs.server import DrainingServer, EnvServerOptions, open_server

LOOK_SECONDS = 0.5
"""Seconds between two looks whether the server is still wanted."""

_nodes: dict[str, tuple[DrainingServer, str]] = {}
"""Servers of this process that listen, and their addresses, by worker."""


def serve_node(options: EnvServerOptions) -> None:
    """Serve environments on this worker until the server has drained; run as a Dask task.

    It listens where the worker does.

    Args:
        options: Options of the server, without its host.

    Raises:
        ConfigError, BrowserError: The server does not start.
    """
    worker = distributed.get_worker()
    collect_seldom()
    host = urlsplit(worker.address).hostname or options.host
    asyncio.run(_serve(replace(options, host=host), worker, worker.get_current_task()))


async def _serve(options: EnvServerOptions, worker: Any, task: Any) -> None:
    def announce(address: str) -> None:
        _nodes[worker.address] = server, address

    async with open_server(options, announce) as server:
        watching = asyncio.create_task(_watch(server, worker, task))
        try:
            await server.serve()
        finally:
            watching.cancel()
            _nodes.pop(worker.address, None)


async def _watch(server: DrainingServer, worker: Any, task: Any) -> None:
    """Stop the server when its worker closes, or no client waits for its task."""
    while worker.status is distributed.Status.running or worker.status is distributed.Status.paused:
        state = worker.state.tasks.get(task)
        if state is None or state.state == "cancelled":
            break
        await asyncio.sleep(LOOK_SECONDS)
    server.should_exit = True


def node_address(dask_worker: Any) -> str:
    """Return the address of the worker's server; empty before it listens."""
    return _nodes[dask_worker.address][1] if dask_worker.address in _nodes else ""


def drain_node(dask_worker: Any) -> None:
    """Have the worker's server drain."""
    if dask_worker.address in _nodes:
        _nodes[dask_worker.address][0].drain()


def close_node(dask_worker: Any) -> None:
    """Have the worker's server close its sessions and end."""
    if dask_worker.address in _nodes:
        _nodes[dask_worker.address][0].should_exit = True
