"""A bare Playwright loop: click, JPEG screenshot, text observation.

The bar for our sessions: nothing else is done, nothing is waited for.

Pages of one browser, a coroutine each. The screenshot is CDP's (quality 80, ``optimizeForSpeed``:
the fastest there is here), the observation one ``evaluate`` that lists the elements in the viewport
with their text and place (as a string: Playwright takes 15 ms of CPU to carry as much in objects),
and the click goes to such a place. With ``--text-only`` there is no screenshot, and no frame is
waited for either; with ``--held-clock`` the page's clock stands, and is given `BUDGET_MS` after
each click: such a loop took 8 ms of CPU a step on another machine, where the target of 12 ms for
our text-only step was set.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from playwright.async_api import CDPSession, Page, ViewportSize, async_playwright

from benchmarks.rates import Rate, cpu_seconds, measure
from envs.browser.process.chromium import LAUNCH_ARGS

VIEWPORT = (1280, 720)
WARM_STEPS = 3
"""Of each page before the time runs: the first screenshot of a page is slow."""

BUDGET_MS = 500
"""Virtual time after a click, with ``--held-clock``."""

JPEG = {"format": "jpeg", "quality": 80, "optimizeForSpeed": True}

OBSERVE = """
JSON.stringify((() => {
  const seen = [];
  for (const element of document.querySelectorAll('a, button, input, select, textarea, h1, h2, h3, p, li, label, span, output')) {
    const box = element.getBoundingClientRect();
    if (box.width < 1 || box.height < 1 || box.bottom < 0 || box.top > innerHeight) continue;
    seen.push({
      tag: element.tagName.toLowerCase(), text: (element.value || element.innerText || '').slice(0, 80),
      x: box.x + box.width / 2, y: box.y + box.height / 2,
    });
  }
  return {url: location.href, title: document.title, elements: seen};
})())
"""


async def bare_rate(
    executable: Path, url: str, sessions: int, seconds: float, *, screenshots: bool = True, held_clock: bool = False
) -> Rate:
    """The loop on this many pages, in a process of its own.

    Args:
        executable: Chromium.
        url: A page with buttons, and an ``<output>`` that counts their clicks
            (``benchmarks/pages/cards.html``).
        sessions: Pages at a time.
        seconds: How long it is measured, without the start.
        screenshots: Make them.
        held_clock: Hold the pages' clocks; then no screenshots are made.
    """
    arguments = [str(executable), url, "--sessions", str(sessions), "--seconds", str(seconds)]
    arguments += ["--held-clock"] if held_clock else [] if screenshots else ["--text-only"]
    return await measure([[sys.executable, "-m", "benchmarks.bare_playwright", *arguments]], seconds)


async def _measured(
    executable: str, url: str, sessions: int, seconds: float, text_only: bool, held_clock: bool
) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=list(LAUNCH_ARGS))
        pages = [await browser.new_page(viewport=_size()) for _ in range(sessions)]
        shots = not (text_only or held_clock)
        loops = [await _Loop.open(page, url, screenshots=shots, held_clock=held_clock) for page in pages]
        await asyncio.gather(*(loop.run(steps=WARM_STEPS) for loop in loops))
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        cpu, started = cpu_seconds(), time.perf_counter()
        steps = sum(await asyncio.gather(*(loop.run(until=started + seconds) for loop in loops)))
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
        for loop in loops:
            await loop.check()
        await browser.close()
    print(json.dumps({"steps": steps, "failed": 0, "seconds": seconds, "cpu_seconds": cpu}), flush=True)


def _size() -> ViewportSize:
    return {"width": VIEWPORT[0], "height": VIEWPORT[1]}


class _Loop:
    """One page."""

    def __init__(self, page: Page, cdp: CDPSession, screenshots: bool, held_clock: bool) -> None:
        self._page = page
        self._cdp = cdp
        self._screenshots = screenshots
        self._held_clock = held_clock
        self._expired = asyncio.Event()
        cdp.on("Emulation.virtualTimeBudgetExpired", lambda _event: self._expired.set())
        self._steps = 0
        self._places: list[tuple[float, float]] = []

    @classmethod
    async def open(cls, page: Page, url: str, *, screenshots: bool, held_clock: bool) -> _Loop:
        loop = cls(page, await page.context.new_cdp_session(page), screenshots, held_clock)
        await page.goto(url)
        await page.screenshot()  # waits for a frame; CDP's fails on half of fresh pages without one (Chromium 156)
        if held_clock:
            await loop._cdp.send("Emulation.setVirtualTimePolicy", {"policy": "pause"})
        await loop._observe()
        return loop

    async def run(self, *, steps: int | None = None, until: float = float("inf")) -> int:
        begun = self._steps
        while time.perf_counter() < until and (steps is None or self._steps - begun < steps):
            await self._page.mouse.click(*self._places[self._steps % len(self._places)])
            if self._held_clock:
                await self._give_time()
            await self._observe()
            self._steps += 1
        return self._steps - begun

    async def check(self) -> None:
        """Every click must have met its button."""
        clicks = await self._page.evaluate("Number(document.querySelector('output').value)")
        assert clicks == self._steps, f"{clicks} of {self._steps} clicks met a button"

    async def _give_time(self) -> None:
        self._expired.clear()
        params = {"policy": "pauseIfNetworkFetchesPending", "budget": BUDGET_MS}
        await self._cdp.send("Emulation.setVirtualTimePolicy", params)
        await self._expired.wait()

    async def _observe(self) -> None:
        shot = asyncio.ensure_future(self._cdp.send("Page.captureScreenshot", JPEG)) if self._screenshots else None
        seen = json.loads(await self._page.evaluate(OBSERVE))
        assert shot is None or len((await shot)["data"]) > 1000
        self._places = [(element["x"], element["y"]) for element in seen["elements"] if element["tag"] == "button"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("executable")
    parser.add_argument("url")
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--text-only", action="store_true")
    parser.add_argument("--held-clock", action="store_true")
    asyncio.run(_measured(**vars(parser.parse_args())))
