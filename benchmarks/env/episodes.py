"""Episodes per second in a real browser, with 1 and 16 sessions, against a bare Playwright loop
that does the same; CPU of a step.

Both sides do an episode of MiniWoB's click-test: seed the page and start, screenshot, click the
button by mouse, screenshot unless the page is over, read the reward. What the pool adds is the
observation, the settled virtual clock, deadlines and recovery.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

from playwright.async_api import Page, ViewportSize, async_playwright

from benchmarks import Figure
from benchmarks.rates import cpu_seconds
from envs.browser.pool import BrowserPool
from envs.browser.process.chromium import LAUNCH_ARGS, find_chromium
from envs.bundled.oracles import oracle_action
from envs.settle import BASE_STYLE
from envs.sites.miniwob import STYLE, VIEWPORT, MiniWobSite, import_tasks
from envs.types import WebTask

KIND = "click-test"
SECONDS = 8.0
"""Of each measurement: about 100 episodes with one session on a quiet core."""
SESSIONS = (1, 16)
FIRST_SEED = 200_000

Player = Callable[[int], Awaitable[int]]
"""Plays the episode of a seed; its steps."""


async def figures() -> list[Figure]:
    """Figures of each number of sessions, both sides in turn on the same cores."""
    task = next(task for task in import_tasks() if task.kind == KIND)
    site = MiniWobSite()
    await site.start()
    try:
        found = []
        for sessions in SESSIONS:
            named = f"{sessions} session{'s' if sessions > 1 else ''}"
            ours, step_ms = await _with_pool(site, task, sessions)
            bare, _ = await _with_playwright(site, task, sessions)
            found += [
                Figure(f"episodes per second, {named}", ours, "1/s", ""),
                Figure(f"bare Playwright, {named}", bare, "1/s", ""),
                Figure(f"pool / bare Playwright, {named}", ours / bare, "ratio", ""),
                Figure(f"CPU of a step, {named}", step_ms, "ms", ""),
            ]
        return found
    finally:
        await site.close()


async def _with_pool(site: MiniWobSite, task: WebTask, sessions: int) -> tuple[float, float]:
    async with BrowserPool(max_sessions=sessions) as pool:

        async def play(seed: int) -> int:
            async with pool.lease(site) as session:
                frame = await session.reset(task, seed)
                frame = await session.step(oracle_action(KIND, frame.observation))
            assert frame.page_facts["raw_reward"] == 1, frame.page_facts
            return 1

        return await _measure([play] * sessions)


async def _with_playwright(site: MiniWobSite, task: WebTask, sessions: int) -> tuple[float, float]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=list(LAUNCH_ARGS))
        viewport: ViewportSize = {"width": VIEWPORT[0], "height": VIEWPORT[1]}
        pages = [await _bare_page(await browser.new_page(viewport=viewport), site, task) for _ in range(sessions)]
        speed = await _measure([_bare_player(page, site, task) for page in pages])
        await browser.close()
    return speed


async def _bare_page(page: Page, site: MiniWobSite, task: WebTask) -> Page:
    await page.goto(site.origin + task.path)
    await page.add_style_tag(content=f"{BASE_STYLE}\n{STYLE}")
    return page


def _bare_player(page: Page, site: MiniWobSite, task: WebTask) -> Player:
    async def play(seed: int) -> int:
        await page.evaluate(site.reset_script(task, seed))
        await page.screenshot(type="jpeg", quality=80)
        await page.click("#subbtn", force=True)
        facts = await page.evaluate(site.facts_script(task))
        if not facts["done"]:
            await page.screenshot(type="jpeg", quality=80)
        assert facts["facts"]["raw_reward"] == 1, facts
        return 1

    return play


async def _measure(players: list[Player]) -> tuple[float, float]:
    """Episodes per second, and CPU milliseconds per step of this process and its Chromium, after
    one warm episode each."""
    seeds = itertools.count(FIRST_SEED)
    await asyncio.gather(*(player(next(seeds)) for player in players))
    cpu, started = cpu_seconds(), time.perf_counter()
    done = await asyncio.gather(*(_play_until(player, seeds, started + SECONDS) for player in players))
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    return sum(episodes for episodes, _ in done) / seconds, 1000 * cpu / sum(steps for _, steps in done)


async def _play_until(play: Player, seeds: itertools.count[int], end: float) -> tuple[int, int]:
    episodes = steps = 0
    while time.perf_counter() < end:
        steps += await play(next(seeds))
        episodes += 1
    return episodes, steps
