"""Pages that move, fetch, poll and never end: how often a step waits for all of it, and how long,
against quiet and ``networkidle``.

Each run opens a fixture page in a context of its own, presses its button and waits; it is complete
when the page then says so. The arms take turns, fixture by fixture, in one browser.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks import Figure
from envs.settle import PROCESS_ARGS
from envs.settle.constants import ANSWER_SECONDS, REAL_SECONDS
from tests.envs.devtools import Devtools, chromium
from tests.envs.driving import Driven, open_driven
from tests.envs.dynamic_site import FIXTURES, DynamicSite, Fixture

RUNS = 200
"""Of the virtual clock, over the fixtures that come to an end of themselves."""
COMPARED = 2
"""Runs of each fixture by the other arms."""
ENDLESS_RUNS = 2
"""Runs of each page that never ends, which can only be cut off in time."""
RESTS = 50
"""Steps on a page at rest."""
IDLE_SECONDS = 5.0
"""Real seconds that ``networkidle`` is waited for at most."""

Wait = Callable[[Driven], Awaitable[object]]


@dataclass
class WaitStrategy:
    """One way to wait."""

    name: str
    virtual: bool
    wait: Wait
    complete: list[bool] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    missed: set[str] = field(default_factory=set)


async def figures() -> list[Figure]:
    """Figures of the three arms."""
    ours = WaitStrategy("virtual clock", True, lambda page: page.clock.settle())
    quiet = WaitStrategy("50 ms of quiet", False, lambda page: page.clock.settle())
    idle = WaitStrategy("networkidle", False, _network_idle)
    ending = [fixture for fixture in FIXTURES if fixture.complete]
    with DynamicSite() as site:
        async with chromium(*PROCESS_ARGS) as browser:
            for number in range(RUNS):
                fixture = ending[number % len(ending)]
                await _step(browser, site, fixture, ours)
                if number < COMPARED * len(ending):
                    await _step(browser, site, fixture, quiet)
                    await _step(browser, site, fixture, idle)
            cut = [
                await _cut(browser, site, fixture)
                for fixture in FIXTURES
                if not fixture.complete
                for _ in range(ENDLESS_RUNS)
            ]
            rests = {arm.name: await _at_rest(browser, site, arm) for arm in (ours, quiet, idle)}
    late = sum(ms > 1000 * REAL_SECONDS for ms in ours.milliseconds)
    late += sum(ms > 1000 * (REAL_SECONDS + 2 * ANSWER_SECONDS) for ms in cut)
    found = [
        Figure(f"complete, {ours.name}", _share(ours.complete), "share", ">= 1"),
        Figure(f"page at rest, {ours.name}, median", rests[ours.name], "ms", "<= 20"),
        Figure(f"runs longer than their budget, of {len(ours.milliseconds) + len(cut)}", late, "runs", "<= 0"),
        Figure(f"longest run, {ours.name}", max(ours.milliseconds), "ms", ""),
    ]
    for arm in (quiet, idle):
        found.append(Figure(f"complete, {arm.name}", _share(arm.complete), "share", ""))
        found.append(Figure(f"page at rest, {arm.name}, median", rests[arm.name], "ms", ""))
    found += [
        Figure(f"all fixtures, {arm.name}, median", statistics.median(arm.milliseconds), "ms", "")
        for arm in (ours, quiet, idle)
    ]
    for arm in (ours, quiet, idle):
        print(f"incomplete with {arm.name}: {', '.join(sorted(arm.missed)) or 'none'}")
    return found


async def _step(browser: Devtools, site: DynamicSite, fixture: Fixture, arm: WaitStrategy) -> None:
    page = await _loaded(browser, site, fixture, arm)
    await page.press()
    started = time.perf_counter()
    await arm.wait(page)
    arm.milliseconds.append(1000 * (time.perf_counter() - started))
    done = await page.state() == "done"
    arm.complete.append(done)
    if not done:
        arm.missed.add(fixture.name)
    await page.close()


async def _cut(browser: Devtools, site: DynamicSite, fixture: Fixture) -> float:
    page = await open_driven(browser)
    await page.load(site.origin + fixture.path)
    await page.press()
    started = time.perf_counter()
    await page.clock.settle()
    milliseconds = 1000 * (time.perf_counter() - started)
    await page.close()
    return milliseconds


async def _at_rest(browser: Devtools, site: DynamicSite, arm: WaitStrategy) -> float:
    """Median milliseconds of a step on a page on which a click does a little and nothing
    follows."""
    page = await _loaded(browser, site, Fixture("rest"), arm)
    spent = []
    for _ in range(RESTS):
        await page.press()
        started = time.perf_counter()
        await arm.wait(page)
        spent.append(1000 * (time.perf_counter() - started))
    await page.close()
    return statistics.median(spent)


async def _loaded(browser: Devtools, site: DynamicSite, fixture: Fixture, arm: WaitStrategy) -> Driven:
    page = await open_driven(browser, virtual=arm.virtual)
    if arm.name == "networkidle":
        await page.cdp.send("Page.setLifecycleEventsEnabled", {"enabled": True})
        page.cdp.on("Page.lifecycleEvent", lambda event: _note(page, event))
    await page.load(site.origin + fixture.path)
    if arm.name == "networkidle":
        await _network_idle(page)  # as its users do after a navigation
    return page


_IDLE: dict[int, asyncio.Event] = {}


def _note(page: Driven, event: dict[str, Any]) -> None:
    reached = _IDLE.setdefault(id(page), asyncio.Event())
    if event["name"] == "networkIdle":
        reached.set()
    elif event["name"] == "init":
        reached.clear()


async def _network_idle(page: Driven) -> None:
    """What Playwright's ``wait_for_load_state("networkidle")`` does: nothing if the document has
    been idle once."""
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            await _IDLE.setdefault(id(page), asyncio.Event()).wait()
    except TimeoutError:
        return


def _share(values: list[bool]) -> float:
    return sum(values) / len(values)
