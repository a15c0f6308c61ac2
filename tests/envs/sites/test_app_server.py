"""A server that cannot be started, or whose start is given up, leaves no thread and no port."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from envs.sites.app_server import AppServer
from envs.types import SiteError

NAME = "the server under test"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


async def never(self: uvicorn.Server, sockets: Any = None) -> None:
    await asyncio.sleep(3600)


async def dies(self: uvicorn.Server, sockets: Any = None) -> None:
    raise SystemExit(1)  # as uvicorn does where it cannot listen


async def late(self: uvicorn.Server, sockets: Any = None) -> None:
    while not self.should_exit:
        await asyncio.sleep(0.01)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("startup", "cancelled", "message"),
    [(never, False, "within 0.1 s"), (late, False, "within 0.1 s"), (dies, False, "by itself"), (never, True, None)],
    ids=["never", "late", "dies", "cancelled"],
)
async def test_a_start_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, startup: Callable[..., Any], cancelled: bool, message: str | None
) -> None:
    made = list[socket.socket]()
    create = socket.create_server

    def creating(*args: Any, **options: Any) -> socket.socket:
        made.append(create(*args, **options))
        return made[-1]

    server = AppServer(Starlette(), NAME)
    with monkeypatch.context() as patch:
        patch.setattr("envs.sites.app_server.socket.create_server", creating)
        patch.setattr("envs.sites.app_server.START_SECONDS", 3600.0 if cancelled else 0.1)
        patch.setattr("uvicorn.Server.startup", startup)
        starting = asyncio.create_task(server.start())
        if cancelled:
            while not threads():
                await asyncio.sleep(0.01)
            starting.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else SiteError, match=message):
            await starting
    assert threads() == [] and made[0].fileno() == -1
    with pytest.raises(SiteError, match=r"call start\(\) first"):
        _ = server.origin
    await server.close()
    await server.start()  # as if nothing had been
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(server.origin)).status_code == 404
    await server.close()
    assert threads() == []


async def test_two_starts_at_once_are_one_and_two_closes_too() -> None:
    server = AppServer(Starlette(), NAME)
    await asyncio.gather(server.start(), server.start())
    assert len(threads()) == 1
    await asyncio.gather(server.close(), server.close())
    assert threads() == []
