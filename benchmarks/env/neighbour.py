"""What seven environments lose beside an eighth that hangs all the time, and how soon its place is free again."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import Figure
from benchmarks.env.pages import page_task, static_pages
from envs.browser import BrowserPool
from envs.sites.base import Site
from envs.sites.miniwob import MiniWobSite, import_tasks
from envs.types import BrowserError, Click

HANG = "<!DOCTYPE html><body><button onclick='for (;;) {}'>hang</button>"
NEIGHBOURS = 7
DEADLINE = 4.0
"""Seconds that a step may take."""
HUNG_EPISODES = 2
"""Of each turn beside a hung one; a turn without is as long."""
TURNS = 8
"""Of each arm, one after the other: a machine that others use too is never the same for long."""
SECONDS = HUNG_EPISODES * DEADLINE
WARM_SECONDS = 3.0
PAUSE = 1.0
"""Seconds before each turn that are not counted: what is left of the turn before is cleared away in them."""


@dataclass
class _Count:
    episodes: int = 0
    over: bool = False


async def figures() -> list[Figure]:
    """The rate of the seven beside a hung one against their rate beside nobody, in turns of one pool; about three minutes."""
    backs: list[float] = []
    rates: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hang.html").write_text(HANG)
        async with (
            static_pages(Path(folder)) as hanging,
            BrowserPool(max_sessions=NEIGHBOURS + 1, step_deadline=DEADLINE) as pool,
            _neighbours(pool) as count,
        ):
            await asyncio.sleep(WARM_SECONDS)
            before = len(pool.browser_pids())
            for hung in (False, True) * TURNS:
                await asyncio.sleep(PAUSE)
                episodes, started = count.episodes, time.perf_counter()
                if hung:
                    backs += [await _hang(pool, hanging) for _ in range(HUNG_EPISODES)]
                else:
                    await asyncio.sleep(SECONDS)
                rates[hung].append((count.episodes - episodes) / (time.perf_counter() - started))
            await asyncio.sleep(PAUSE)
            left = len(pool.browser_pids()) - before
    return [
        Figure("seven beside a hung one / seven alone", sum(rates[True]) / sum(rates[False]), "ratio", ">= 0.95"),
        Figure("hung slot back after its deadline", max(backs) - DEADLINE, "s", "<= 5"),
        Figure("processes left by hung pages", float(max(0, left)), "processes", "<= 0"),
    ]


@asynccontextmanager
async def _neighbours(pool: BrowserPool) -> AsyncIterator[_Count]:
    """Seven sessions that play episode after episode, and how many they have played."""
    task = next(task for task in import_tasks() if task.kind == "click-test")
    site, count = MiniWobSite(), _Count()

    async def play(number: int) -> None:
        seed = 1_000_000 * number
        while not count.over:
            async with pool.lease(site) as session:
                await session.reset(task, seed)
                await session.step(Click(element=1))
            seed, count.episodes = seed + 1, count.episodes + 1

    await site.start()
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(NEIGHBOURS):
                group.create_task(play(number))
            yield count
            count.over = True
    finally:
        await site.close()


async def _hang(pool: BrowserPool, site: Site) -> float:
    """Seconds from the click that never ends until its place is free again."""
    started = time.perf_counter()
    with suppress(BrowserError):  # that is what is measured
        async with pool.lease(site) as session:
            await session.reset(page_task("/hang.html"), 0)
            started = time.perf_counter()
            await session.step(Click(element=1))
    return time.perf_counter() - started
