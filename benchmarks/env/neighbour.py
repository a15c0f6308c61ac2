"""What seven environments lose beside an eighth that hangs all the time, and how soon its place is
free again."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks import Figure
from benchmarks.env.pages import page_task, static_pages
from envs.browser import BrowserPool, WebSession
from envs.sites.base import Site
from envs.sites.miniwob import MiniWobSite, import_tasks
from envs.types import BrowserError, Click

HANG = "<!DOCTYPE html><body><button onclick='for (;;) {}'>hang</button>"
NEIGHBOURS = 7
HUNG_STEPS = 2
"""Of each turn in one episode with the deadlines of a run: each hangs for some twenty seconds, then
its script is ended and the episode goes on."""
DEADLINE = 4.0
"""Seconds that a step may take where each that hangs is to cost its place."""
HUNG_EPISODES = 5
"""Of each turn with that deadline."""
TURNS = 6
"""Of each arm, one after the other: a machine that others use too is never the same for long."""
SECONDS = HUNG_EPISODES * DEADLINE
"""Of a turn beside nobody; the others take about as long."""
WARM_SECONDS = 3.0
PAUSE = 1.0
"""Seconds before each turn that are not counted: what is left of the turn before is cleared away in
them."""


class Neighbour(StrEnum):
    """What is beside the seven."""

    NOBODY = "nobody"
    HUNG = "hung"
    """An environment whose page hangs in every step."""
    LOST = "lost"
    """One that is lost and replaced every `DEADLINE` seconds."""


@dataclass
class _Count:
    episodes: int = 0
    over: bool = False


async def figures() -> list[Figure]:
    """The rate of the seven beside a hung one against their rate beside nobody, in turns of one
    pool; about seven minutes."""
    backs: list[float] = []
    rates: dict[Neighbour, list[float]] = {beside: [] for beside in Neighbour}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hang.html").write_text(HANG)
        async with (
            static_pages(Path(folder)) as hanging,
            BrowserPool(max_sessions=NEIGHBOURS + 1) as pool,
            _neighbours(pool) as count,
        ):
            await asyncio.sleep(WARM_SECONDS)
            before = len(pool.browser_pids())
            for beside in tuple(Neighbour) * TURNS:
                await asyncio.sleep(PAUSE)
                episodes, started = count.episodes, time.perf_counter()
                match beside:
                    case Neighbour.NOBODY:
                        await asyncio.sleep(SECONDS)
                    case Neighbour.HUNG:
                        await _hang(pool, hanging)
                    case Neighbour.LOST:
                        backs += [await _lose(pool, hanging) for _ in range(HUNG_EPISODES)]
                rates[beside].append((count.episodes - episodes) / (time.perf_counter() - started))
            await asyncio.sleep(PAUSE)
            left = len(pool.browser_pids()) - before
    alone = sum(rates[Neighbour.NOBODY])
    return [
        Figure("seven beside a hung one / seven alone", sum(rates[Neighbour.HUNG]) / alone, "ratio", ">= 0.95"),
        Figure("the same where its place is lost every 4 s", sum(rates[Neighbour.LOST]) / alone, "ratio", ""),
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


async def _hang(pool: BrowserPool, site: Site) -> None:
    """An episode in which every step hangs, as a run would play it."""
    async with pool.lease(site) as session:
        await session.reset(page_task("/hang.html"), 0)
        for _ in range(HUNG_STEPS):
            await session.step(Click(element=1))


async def _lose(pool: BrowserPool, site: Site) -> float:
    """Seconds from the click that never ends until its place is free again."""
    started = time.perf_counter()
    session = WebSession(pool.contexts, pool.dispatcher, site, step_deadline=DEADLINE)
    try:
        await session.reset(page_task("/hang.html"), 0)
        started = time.perf_counter()
        with suppress(BrowserError):  # that is what is measured
            await session.step(Click(element=1))
    finally:
        await session.close()
    return time.perf_counter() - started
