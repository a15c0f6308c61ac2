"""What an environment costs: time to its first observation, memory, growth over thousands of episodes, and the price of a hung neighbour."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

from benchmarks import Figure
from benchmarks.env.pages import PAGES, VIEWPORT, page_task
from envs.browser import BrowserPool, WebSession
from envs.sites.base import Site
from envs.sites.miniwob import MiniWobSite, import_tasks
from envs.sites.static_server import StaticSite
from envs.types import BrowserError, Click, WebTask

HANG = "<!DOCTYPE html><body><button onclick='for (;;) {}'>hang</button>"
FRESH_EPISODES = 30
FRESH_PAUSE = 0.3
"""Seconds from the first observation to the episode's end."""
ENVIRONMENTS = 8
SLOPE_EPISODES = 2_000
SLOPE_WARM = 400
"""Episodes before the slope is taken: caches fill at first."""
SLOPE_EVERY = 200
HUNG_SECONDS = 16.0
"""Of each arm; the arms take turns twice."""
HUNG_DEADLINE = 4.0


async def figures() -> list[Figure]:
    """All of them; about four minutes."""
    return [*await _fresh_contexts(), *await _memory(), *await _slope(), *await _hung_neighbour()]


async def _fresh_contexts() -> list[Figure]:
    """With a pause between episodes, as when a model thinks: the next one's context is prepared in it, or is not and is opened on demand."""
    medians = {}
    for prewarm in (1, 0):
        async with _static(PAGES) as site, BrowserPool(prewarm=prewarm) as pool:
            seconds = []
            for _ in range(FRESH_EPISODES):
                started = time.perf_counter()
                async with pool.lease(site) as session:
                    await session.reset(page_task("/cards.html"), 0)
                    seconds.append(time.perf_counter() - started)
                    await asyncio.sleep(FRESH_PAUSE)
            medians[prewarm] = 1000 * statistics.median(seconds)
    return [
        Figure("fresh context to first observation", medians[1], "ms", "<= 200"),
        Figure("fresh context, opened on demand", medians[0], "ms", ""),
    ]


async def _memory() -> list[Figure]:
    async with _static(PAGES) as site, BrowserPool() as pool:

        async def hold(held: asyncio.Event) -> None:
            async with pool.lease(site) as session:
                await session.reset(page_task("/cards.html"), 0)
                await session.step(Click(element=1))
                await held.wait()

        readings: list[float] = []
        expected = 0
        for count in (1, 1 + ENVIRONMENTS):
            release = asyncio.Event()
            tasks = [asyncio.create_task(hold(release)) for _ in range(count)]
            expected += count
            while pool.counters.episodes < expected:
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)  # until the last steps are over and the processes have started
            readings.append(_memory_mb(pool))
            release.set()
            await asyncio.gather(*tasks)
    return [Figure("memory of one more environment", (readings[1] - readings[0]) / ENVIRONMENTS, "MB", "<= 40")]


async def _slope() -> list[Figure]:
    """Growth per 1,000 episodes, each in a context of its own, of Chromium and of this process."""
    async with _static(PAGES) as site, BrowserPool(max_sessions=4) as pool:

        async def play() -> None:
            async with pool.lease(site) as session:
                await session.reset(page_task("/cards.html"), 0)

        readings: list[tuple[int, float, float]] = []
        for done in range(0, SLOPE_EPISODES + 1, 4):
            if done >= SLOPE_WARM and done % SLOPE_EVERY == 0:
                own = psutil.Process().memory_info().rss / 2**20
                readings.append((done, _memory_mb(pool), own))
            await asyncio.gather(*(play() for _ in range(4)))
    episodes = [done for done, *_ in readings]
    return [
        Figure(f"growth of {name} per 1,000 episodes", 1000 * _slope_of(episodes, values), "MB", "<= 10")
        for name, values in (("Chromium", [r[1] for r in readings]), ("the worker", [r[2] for r in readings]))
    ]


async def _hung_neighbour() -> list[Figure]:
    """The rate of seven environments beside one that is in an endless loop all the time, against seven beside nobody."""
    task = next(task for task in import_tasks() if task.kind == "click-test")
    miniwob = MiniWobSite()
    await miniwob.start()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hang.html").write_text(HANG)
        try:
            async with _static(Path(folder)) as hanging:
                rates: dict[bool, list[float]] = {False: [], True: []}
                backs: list[float] = []
                for hung in (False, True) * 2:
                    rate, back, left = await _seven(miniwob, task, hanging if hung else None)
                    rates[hung].append(rate)
                    backs += back
        finally:
            await miniwob.close()
    return [
        Figure("seven beside a hung one / seven alone", sum(rates[True]) / sum(rates[False]), "ratio", ">= 0.95"),
        Figure("hung slot back after its deadline", max(backs) - HUNG_DEADLINE, "s", "<= 5"),
        Figure("processes left by hung pages", float(left), "processes", "<= 0"),
    ]


async def _seven(site: Site, task: WebTask, hanging: Site | None) -> tuple[float, list[float], int]:
    """Episodes per second of seven sessions, seconds until each hung slot was back, and processes more than before at the end."""
    backs: list[float] = []
    async with BrowserPool(max_sessions=8, step_deadline=HUNG_DEADLINE) as pool:
        episodes = 0

        async def play(session: WebSession, seed: int) -> None:
            await session.reset(task, seed)
            await session.step(Click(element=1))

        async def steadily(number: int, end: float) -> None:
            nonlocal episodes
            seed = 1000 * number
            while time.perf_counter() < end:
                async with pool.lease(site) as session:
                    await play(session, seed)
                seed, episodes = seed + 1, episodes + 1

        async def hang(end: float) -> None:
            assert hanging is not None
            while time.perf_counter() < end:
                started = time.perf_counter()
                with suppress(BrowserError):  # that is what is measured
                    async with pool.lease(hanging) as session:
                        await session.reset(page_task("/hang.html"), 0)
                        started = time.perf_counter()
                        await session.step(Click(element=1))
                backs.append(time.perf_counter() - started)

        await asyncio.gather(*(steadily(number, 0) for number in range(7)))
        await asyncio.gather(*(steadily(number, time.perf_counter() + 1) for number in range(7)))
        before, episodes = len(pool.browser_pids()), 0
        started = time.perf_counter()
        players = [steadily(number, started + HUNG_SECONDS) for number in range(7)]
        bad = asyncio.create_task(hang(started + HUNG_SECONDS)) if hanging else None
        await asyncio.gather(*players)
        rate = episodes / (time.perf_counter() - started)
        if bad is not None:
            await bad
        await asyncio.sleep(0.5)  # a killed process takes a moment
        return rate, backs, max(0, len(pool.browser_pids()) - before)


def _memory_mb(pool: BrowserPool) -> float:
    """Proportional memory of the pool's browsers, in MiB."""
    total = 0
    for pid in pool.browser_pids():
        with suppress(psutil.NoSuchProcess):  # it ended while we looked
            total += psutil.Process(pid).memory_full_info().pss
    return total / 2**20


def _slope_of(xs: list[int], ys: list[float]) -> float:
    return statistics.linear_regression(xs, ys).slope


@asynccontextmanager
async def _static(folder: Path) -> AsyncIterator[StaticSite]:
    site = StaticSite("pages", folder, viewport=VIEWPORT)
    await site.start()
    try:
        yield site
    finally:
        await site.close()
