"""An environment server in the test's process, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import httpx
import uvicorn

from envs import EnvHost
from envs.server import EnvServer, RemoteEnv, SessionTable
from envs.server.master import Master

URL = "http://127.0.0.1"


@asynccontextmanager
async def served(host: EnvHost, *, lease_seconds: float = 60.0, **options: Any) -> AsyncIterator[EnvServer]:
    """A server on a host's browsers."""
    async with SessionTable(host, lease_seconds=lease_seconds, min_free_mb=0) as table:
        yield EnvServer(table, **options)


@asynccontextmanager
async def client_of(server: EnvServer | Master, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose requests go to a server without a network; errors of the server are raised."""
    transport = httpx.ASGITransport(server.app())
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers=headers, timeout=60) as client:
        yield client


def remote(client: httpx.AsyncClient, task: Any, **options: Any) -> RemoteEnv:
    """An environment of the server that a client talks to."""
    return RemoteEnv(URL, task, client=client, **options)


def refused(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, which has a message."""
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"} and set(error) == {"code", "message"} and error["message"]
    return answer.status_code, error["code"]


@asynccontextmanager
async def listening(server: EnvServer) -> AsyncIterator[str]:
    """A server on a free port of loopback, in this event loop; its address."""
    config = uvicorn.Config(server.app(), port=0, log_level="warning", timeout_graceful_shutdown=2)
    listener = config.bind_socket()
    running = uvicorn.Server(config)
    with patch.object(running, "capture_signals", nullcontext):
        serving = asyncio.create_task(running.serve([listener]))
        while not running.started:
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            running.should_exit = True
            await serving
