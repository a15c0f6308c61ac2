"""Typing 20 characters and a drag of 10 moves, on pages that listen and on pages that do not.

With ``ROLLWRIGHT_AGAINST=/path/to/another/checkout`` the same steps are taken there too, in turns, and the figures are ratios to it::

    ROLLWRIGHT_AGAINST=../before python -m benchmarks env --part gestures
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks import Figure

ROUNDS = 12
STEPS = 4
"""Of each kind and round."""

START_SECONDS = 60.0
TEXT = "twenty characters ok"
TARGET = 1.1
"""Times what it took before part M, in which the page's time stood still between keys and moves."""

FIELD = "<input aria-label=field style='position:absolute;left:10px;top:10px;width:300px'>"
KNOB = "<button style='position:absolute;left:10px;top:60px;width:60px;height:30px'>knob</button>"
SYNCHRONOUS = """<output></output><script>for (const type of ["keydown", "input", "keyup", "pointerdown", "pointermove", "pointerup"])
addEventListener(type, (event) => { document.querySelector("output").textContent = event.type; });</script>"""
DEFERRED = """<output></output><script>let wait = 0, frame = 0;
const show = (event) => { document.querySelector("output").textContent = event.type; };
addEventListener("input", (event) => { clearTimeout(wait); wait = setTimeout(show, 150, event); });
addEventListener("pointermove", (event) => { cancelAnimationFrame(frame); frame = requestAnimationFrame(() => show(event)); });</script>"""
PAGES = {"no listener": "", "listeners": SYNCHRONOUS, "listeners with timers": DEFERRED}


async def figures() -> list[Figure]:
    """Medians of steps without a picture; two minutes against another checkout."""
    from benchmarks import Figure

    own, other = Path(__file__).parents[2], os.environ.get("ROLLWRIGHT_AGAINST")
    seen: dict[str, dict[str, list[float]]] = {}
    async with AsyncExitStack() as stack:
        trees = [own, Path(other)] if other else [own]
        processes = [await stack.enter_async_context(_process(tree)) for tree in trees]
        for _ in range(ROUNDS):
            for tree, process in zip(trees, processes, strict=True):
                for name, values in (await _round(process)).items():
                    seen.setdefault(name, {}).setdefault(str(tree), []).extend(values)
    found = []
    for name, by_tree in seen.items():
        mine = statistics.median(by_tree[str(own)])
        found.append(Figure(name, mine, "ms", ""))
        if other:
            ratio = mine / statistics.median(by_tree[str(Path(other))])
            target = "" if "listeners" in name else f"<= {TARGET}"
            found.append(Figure(f"{name}, of {Path(other).name}", ratio, "ratio", target))
    return found


@asynccontextmanager
async def _process(tree: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """This file as a program, with the packages of a checkout."""
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(tree)}
    command = (sys.executable, "-P", __file__)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=tree, env=env)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def _round(process: asyncio.subprocess.Process) -> dict[str, list[float]]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"go\n")
    async with asyncio.timeout(START_SECONDS):
        answer: dict[str, list[float]] = json.loads(await process.stdout.readline())
    return answer


async def _steps() -> None:
    """In the process: a round of steps for each line on its stdin."""
    from benchmarks.env.pages import page_task
    from envs.browser import BrowserPool
    from envs.sites.static_server import StaticSite
    from envs.types import Action, Click, Drag, Target, Type

    actions: dict[str, Action] = {
        "click": Click(element=1),
        "type 20 characters": Type(element=1, text=TEXT),
        "drag of 10 moves": Drag(start=Target(element=2), end=Target(at=(800, 800))),
    }
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, script in enumerate(PAGES.values()):
            (folder / f"{number}.html").write_text(f"<!DOCTYPE html><title>t</title><body>{FIELD}{KNOB}{script}")
        site = StaticSite("pages", folder)
        await site.start()
        stack.push_async_callback(site.close)
        pool = await stack.enter_async_context(BrowserPool(screenshots=False, max_sessions=len(PAGES)))
        sessions = [await stack.enter_async_context(pool.lease(site)) for _ in PAGES]
        for number, session in enumerate(sessions):
            await session.reset(page_task(f"/{number}.html"), 0)
        while await asyncio.to_thread(sys.stdin.readline):
            spent: dict[str, list[float]] = {}
            for _ in range(STEPS):
                for page, session in zip(PAGES, sessions, strict=True):
                    for name, action in actions.items():
                        started = time.perf_counter()
                        result = await session.step(action)
                        milliseconds = 1000 * (time.perf_counter() - started)
                        assert result.observation.error is None, result.observation.error
                        spent.setdefault(f"{name}, {page}", []).append(milliseconds)
            print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    asyncio.run(_steps())
