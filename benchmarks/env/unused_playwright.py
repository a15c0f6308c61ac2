"""Steps of environments in a process that has Playwright loaded and does not use it, against one
that never loaded it.

*Loaded*: ``env.page()`` was opened once and given back, and Playwright's driver runs. Each arm and
round is a process of its own (`benchmarks.rates`), since a module stays loaded.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from functools import partial

from benchmarks import Figure
from benchmarks.env.pages import PAGES, VIEWPORT
from benchmarks.rates import Rate, cpu_seconds, interleave, measure
from envs import EnvHost, WebEnv
from envs.garbage import collect_seldom
from envs.sites.static_server import StaticSite
from envs.types import Click

SESSIONS = 4
ROUNDS = 4
SECONDS = 6.0
WARM_STEPS = 3
ARMS = ("without", "loaded")


async def figures() -> list[Figure]:
    """Medians over the rounds, as a ratio; about a minute and a half."""
    rates = await interleave({arm: partial(_rate, arm) for arm in ARMS}, ROUNDS)
    without, loaded = (rates[arm].steps_per_second for arm in ARMS)
    return [Figure("steps with Playwright loaded / without", loaded / without, "ratio", ">= 0.97")]


async def _rate(arm: str) -> Rate:
    return await measure([[sys.executable, "-m", "benchmarks.env.unused_playwright", arm]], SECONDS)


async def _measured(arm: str) -> None:
    site = StaticSite("pages", PAGES, viewport=VIEWPORT)
    options = {"site": site, "instruction": "Look.", "horizon": 100_000, "repeats": 0}
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(EnvHost(max_sessions=SESSIONS))
        opened = [host.open("cards.html", **options) for _ in range(SESSIONS)]
        envs = [await stack.enter_async_context(env) for env in opened]
        if arm == "loaded":
            from playwright.async_api import async_playwright  # the other arm must not load it

            await stack.enter_async_context(async_playwright())
            await envs[0].reset()
            async with envs[0].page():
                pass
        for env in envs:
            await env.reset()
        await asyncio.gather(*(_steps(env, steps=WARM_STEPS) for env in envs))
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        cpu, started = cpu_seconds(), time.perf_counter()
        steps = sum(await asyncio.gather(*(_steps(env, until=started + SECONDS) for env in envs)))
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
        assert ("playwright.async_api" in sys.modules) is (arm == "loaded")
    print(json.dumps({"steps": steps, "failed": 0, "seconds": seconds, "cpu_seconds": cpu}), flush=True)


async def _steps(env: WebEnv, *, steps: int | None = None, until: float = float("inf")) -> int:
    """Click the buttons of the page in turn; how often."""
    done, step = 0, await env.observe()
    while time.perf_counter() < until and (steps is None or done < steps):
        buttons = [element.index for element in step.observation.elements if element.tag == "button"]
        step = await env.step(Click(element=buttons[done % len(buttons)]))
        assert step.observation.error is None and not step.done, step
        done += 1
    return done


if __name__ == "__main__":
    collect_seldom()
    asyncio.run(_measured(sys.argv[1]))
