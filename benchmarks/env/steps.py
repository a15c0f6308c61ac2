"""Click and observation at 1280x720: our sessions in a Dask worker against the bare Playwright loop
and BrowserGym, arms in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import distributed

from benchmarks import Figure
from benchmarks.env.pages import PAGES, VIEWPORT, page_task
from benchmarks.peers import PAGE, peer_arms
from benchmarks.rates import Rate, cpu_seconds, interleave
from envs.browser import BrowserPool, PageStep, WebSession
from envs.garbage import collect_seldom
from envs.sites.static_server import StaticSite
from envs.types import Click
from tasks_lib.processes.dask_clients import worker_settings

SESSIONS = (4, 8)
ROUNDS = 3
SECONDS = 15.0
"""Of each arm and round: a hundred steps or more of ours, about forty of BrowserGym's."""
WARM_STEPS = 3


async def figures() -> list[Figure]:
    """Medians over the rounds, as ratios of rates of the same run; about ten minutes, the first
    time also BrowserGym's environment is made."""
    found: list[Figure] = []
    site = StaticSite("pages", PAGES, viewport=VIEWPORT)
    await site.start()
    try:
        async with dask_worker() as client:
            for sessions in SESSIONS:
                rates = await interleave(_arms(client, f"{site.origin}/{PAGE}", sessions), ROUNDS)
                found += _figures(sessions, rates)
    finally:
        await site.close()
    return found


@asynccontextmanager
async def dask_worker() -> AsyncIterator[distributed.Client]:
    """A Dask worker with the environment that a run gives its own."""
    with dask.config.set(worker_settings(1)):
        async with (
            distributed.LocalCluster(
                n_workers=1, threads_per_worker=2, processes=True, asynchronous=True, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster, asynchronous=True) as client,
        ):
            yield client


def _arms(client: distributed.Client, url: str, sessions: int) -> dict[str, Callable[[], Awaitable[Rate]]]:
    ours = partial(our_rate, client, sessions, SECONDS)
    peers = peer_arms(url, sessions, SECONDS)
    names = dict(zip(("bare", "gym", "gym without waits"), peers.values(), strict=True))
    mine: dict[str, Callable[[], Awaitable[Rate]]] = {"ours": ours, "ours, two Chromiums": partial(ours, browsers=2)}
    return {**mine, **names}


async def our_rate(client: distributed.Client, sessions: int, seconds: float, **options: Any) -> Rate:
    """What so many sessions do in a worker; ``options`` are their pool's."""
    rate: Rate = await client.submit(_rate, str(PAGES), sessions, seconds, options, pure=False)
    return rate


def _figures(sessions: int, rates: dict[str, Rate]) -> list[Figure]:
    ours = rates["ours"]

    def ratio(name: str, mine: Rate = ours) -> float:
        return mine.steps_per_second / rates[name].steps_per_second

    return [
        Figure(f"steps per second, {sessions} environments", ours.steps_per_second, "1/s", ""),
        Figure(f"ours / bare Playwright, {sessions}", ratio("bare"), "ratio", ">= 0.8"),
        Figure(
            f"two Chromiums / bare Playwright, {sessions}", ratio("bare", rates["ours, two Chromiums"]), "ratio", ""
        ),
        Figure(f"ours / BrowserGym, {sessions}", ratio("gym"), "ratio", ">= 6"),
        Figure(f"ours / BrowserGym without waits, {sessions}", ratio("gym without waits"), "ratio", ">= 3"),
        Figure(f"CPU of a step, {sessions}", ours.cpu_ms_per_step, "ms", "<= 60"),
        Figure(f"CPU of a bare step, {sessions}", rates["bare"].cpu_ms_per_step, "ms", ""),
    ]


def _rate(folder: str, sessions: int, seconds: float, options: dict[str, Any]) -> Rate:
    """In the worker, whose plugin does the same; ``options`` are the pool's."""
    collect_seldom()
    return asyncio.run(_measured(folder, sessions, seconds, options))


async def _measured(folder: str, sessions: int, seconds: float, options: dict[str, Any]) -> Rate:
    site = StaticSite("pages", Path(folder), viewport=VIEWPORT)
    await site.start()
    try:
        async with BrowserPool(max_sessions=sessions, **options) as pool:
            together, over = asyncio.Barrier(sessions + 1), asyncio.Event()
            loops = [asyncio.create_task(_loop(pool, site, together, over, seconds)) for _ in range(sessions)]
            await together.wait()
            cpu, started = cpu_seconds(), time.perf_counter()
            await together.wait()
            # The pages are open still: the processor time of a process that has ended could not be
            # read.
            seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
            over.set()
            steps = sum(await asyncio.gather(*loops))
            return Rate(steps / seconds, 1000 * cpu / steps, 0.0)
    finally:
        await site.close()


async def _loop(
    pool: BrowserPool, site: StaticSite, together: asyncio.Barrier, over: asyncio.Event, seconds: float
) -> int:
    async with pool.lease(site) as session:
        buttons = _buttons(await session.reset(page_task(f"/{PAGE}"), 0))
        for number in range(WARM_STEPS):
            buttons = await _step(session, buttons, number)
        await together.wait()
        end, steps = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            buttons = await _step(session, buttons, steps)
            steps += 1
        await together.wait()
        await over.wait()
        return steps


async def _step(session: WebSession, buttons: list[int], number: int) -> list[int]:
    """Click one of the buttons; those that are seen then."""
    result = await session.step(Click(element=buttons[number % len(buttons)]))
    assert result.observation.error is None, result.observation.error
    return _buttons(result)


def _buttons(result: PageStep) -> list[int]:
    return [element.index for element in result.observation.elements if element.tag == "button"]
