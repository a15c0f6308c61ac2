"""What an environment costs: time to its first observation, memory, and growth over thousands of
episodes."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import suppress

import psutil

from benchmarks import Figure
from benchmarks.env.pages import PAGES, page_task, static_pages
from envs.browser import BrowserPool
from envs.types import Click

FRESH_EPISODES = 30
FRESH_PAUSE = 0.3
"""Seconds from the first observation to the episode's end."""
ENVIRONMENTS = 8
SLOPE_EPISODES = 2_000
SLOPE_WARM = 400
"""Episodes before the slope is taken: caches fill at first."""
SLOPE_EVERY = 200


async def figures() -> list[Figure]:
    """All of them; about three minutes."""
    return [*await _fresh_contexts(), *await _memory(), *await _slope()]


async def _fresh_contexts() -> list[Figure]:
    """With a pause between episodes, as when a model thinks: the next one's context is prepared in
    it, or is not and is opened on demand."""
    medians = {}
    for prewarm in (1, 0):
        async with static_pages(PAGES) as site, BrowserPool(prewarm=prewarm) as pool:
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
    async with static_pages(PAGES) as site, BrowserPool() as pool:

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
    async with static_pages(PAGES) as site, BrowserPool(max_sessions=4) as pool:

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


def _memory_mb(pool: BrowserPool) -> float:
    """Proportional memory of the pool's browsers, in MiB."""
    total = 0
    for pid in pool.browser_pids():
        with suppress(psutil.NoSuchProcess):  # it ended while we looked
            total += psutil.Process(pid).memory_full_info().pss
    return total / 2**20


def _slope_of(xs: list[int], ys: list[float]) -> float:
    return statistics.linear_regression(xs, ys).slope
