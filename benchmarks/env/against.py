"""This checkout against another one of the project: steps, gestures and looks, in turns on the same
cores.

``python -m benchmarks env --against PATH``, a checkout whose requirements are installed here. Each
turn is a process in its checkout, which reads this file (a commit before it has none) and imports
all else from there, so both sides are measured alike; bare loops of Playwright have their turns
too. Rows are ratios of medians.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import Figure
from benchmarks.bare_playwright import bare_rate
from benchmarks.env import observation
from benchmarks.env.pages import PAGES, VIEWPORT, page_task, static_pages
from benchmarks.env.steps import SESSIONS, dask_worker, our_rate
from benchmarks.peers import PAGE
from benchmarks.rates import Rate, interleave
from envs.browser import BrowserPool, WebSession, find_chromium
from envs.sites.static_server import StaticSite
from envs.types import Action, Drag, Target, Type

HERE = Path(__file__).parents[2]
ROUNDS = 5
SECONDS = 6.0
"""Of each arm and round of the steps."""
GESTURES = 30
"""Of each kind and turn."""
PAGES_OF_GESTURES = {PAGE: "", "listening.html": " where the page listens"}
"""Pages, and what their rows are called."""
LOOKS = {"a page of 50 kB": (observation.PRODUCTS, 40), "a page of 3,000 elements": (100, 15)}
"""Products of a shop's page, and how often it is looked at."""


async def figures(other: Path) -> list[Figure]:
    """Figures of both checkouts; about twenty minutes."""
    site = StaticSite("pages", PAGES, viewport=VIEWPORT)
    await site.start()
    try:
        steps = [await _steps(other, f"{site.origin}/{PAGE}", number, shots) for number in SESSIONS for shots in (0, 1)]
    finally:
        await site.close()
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(await _in(HERE, "times"))
        theirs.append(await _in(other, "times"))
    limits = {"typing": "<= 1.1", "drag": "<= 1.1", "typing where the page listens": ""}
    times = [
        Figure(f"{name}: this / other", _median(ours, name) / _median(theirs, name), "ratio", limits.get(name, "<= 1"))
        for name in ours[0]
    ]
    return [*(figure for found in steps for figure in found), *times]


async def _steps(other: Path, url: str, sessions: int, shots: int) -> list[Figure]:
    def arm(checkout: Path) -> Callable[[], Awaitable[Rate]]:
        async def turn() -> Rate:
            return Rate(**await _in(checkout, "steps", sessions, SECONDS, shots))

        return turn

    bare = partial(bare_rate, find_chromium(), url, sessions, SECONDS, held_clock=not shots)
    rates = await interleave({"this": arm(HERE), "other": arm(other), "bare": bare}, ROUNDS)
    this, before, loop = rates.values()
    kind = f"{'with pictures' if shots else 'text only'}, {sessions}"
    rate, limit = ("bare Playwright", "") if shots else ("bare with a held clock", "<= 1")
    return [
        Figure(
            f"steps/s {kind}: this / other",
            this.steps_per_second / before.steps_per_second,
            "ratio",
            ">= 1.15" if shots else ">= 1.6",
        ),
        Figure(f"CPU {kind}: this / other", this.cpu_ms_per_step / before.cpu_ms_per_step, "ratio", ""),
        Figure(
            f"steps/s {kind}: this / {rate}",
            this.steps_per_second / loop.steps_per_second,
            "ratio",
            ">= 1" if shots else "",
        ),
        Figure(f"CPU {kind}: this / {rate}", this.cpu_ms_per_step / loop.cpu_ms_per_step, "ratio", limit),
    ]


def _median(turns: list[dict[str, float]], name: str) -> float:
    return statistics.median(turn[name] for turn in turns)


async def _in(checkout: Path, *arguments: object) -> dict[str, float]:
    """What `_main` of this file prints in a process of a checkout."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        *map(str, arguments),
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"a turn in {checkout} ended with {process.returncode}; see above")
    answer: dict[str, float] = json.loads(out.splitlines()[-1])
    return answer


# ------------------------------------------------------------------------------------------ in the
# process of a turn


async def _main(what: str, *arguments: str) -> dict[str, float]:
    if what == "times":
        return await _times()
    sessions, seconds, shots = arguments
    async with dask_worker() as client:
        rate = await our_rate(client, int(sessions), float(seconds), screenshots=bool(int(shots)))
    return {"steps_per_second": rate.steps_per_second, "cpu_ms_per_step": rate.cpu_ms_per_step}


async def _times() -> dict[str, float]:
    """Milliseconds of gestures and looks."""
    found: dict[str, float] = {}
    way = [(100 + 60 * number, 500) for number in range(9)]
    async with (
        static_pages(Path(__file__).parents[1] / "pages") as site,
        BrowserPool(max_sessions=1, screenshots=False) as pool,
        pool.lease(site) as session,
    ):
        for page, suffix in PAGES_OF_GESTURES.items():
            seen = await session.reset(page_task(f"/{page}"), 0)
            field = next(each.index for each in seen.observation.elements if each.tag in ("input", "searchbox"))
            typing = [Type(element=field, text=f"twenty characters {turn:02d}") for turn in range(GESTURES)]
            drag = Drag(start=Target(at=(50, 500)), via=tuple(way), end=Target(at=(700, 500)))
            found[f"typing{suffix}"] = await _median_ms(session, typing)
            found[f"drag{suffix}"] = await _median_ms(session, [drag] * GESTURES)
    for name, (observation.PRODUCTS, observation.TURNS) in LOOKS.items():
        rows: dict[str, Any] = {figure.name: figure.value for figure in await observation._shop()}
        found[f"look at {name}"] = rows["whole observation of a 50 kB page"]
        found[f"first look at {name}"] = rows["the same, of a page that was not seen before"]
    return found


async def _median_ms(session: WebSession, actions: Sequence[Action]) -> float:
    spent = []
    for action in actions:
        started = time.perf_counter()
        await session.step(action)
        spent.append(1000 * (time.perf_counter() - started))
    return statistics.median(spent)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(*sys.argv[1:]))))
