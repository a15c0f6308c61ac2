"""A server of a monitor's pages in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from playwright.sync_api import Page
from starlette.routing import BaseRoute

from tasks_lib.monitor.serving import PageServer


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """``serve(routes, lifespan=None, end=…)`` serves until the test ends; the address."""
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, threading.Thread]] = []

    def start(routes: Sequence[BaseRoute], lifespan: Any = None, end: Callable[[], None] = lambda: None) -> str:
        started, stop, here = threading.Event(), asyncio.Event(), []

        async def run() -> None:
            server = PageServer()
            async with server.serving(server.application(routes, lifespan), end) as address:
                here.extend((address, asyncio.get_running_loop()))
                started.set()
                await stop.wait()

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        assert started.wait(120)
        ends.append((here[1], stop, thread))
        return str(here[0])

    yield start
    for loop, stop, thread in ends:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@pytest.fixture
def watch() -> Callable[[Page], list[str]]:
    """``watch(page)``: the page's complaints, as they come."""

    def complaints_of(page: Page) -> list[str]:
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return complaints

    return complaints_of
