"""Take the pictures of the monitor and of the browser of runs for the documents.

    .venv/bin/python scripts/monitor_pictures.py --run runs/quickstart-seed0

The environments of the first picture are made up; the runs of the second are those beside --run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import orjson
from playwright.async_api import async_playwright

from envs.browser import find_chromium
from tasks_lib.monitor.browse import browser_of
from tasks_lib.monitor.live_server import LiveMonitor
from tasks_lib.monitor.live_source import FolderSource, find_run
from tasks_lib.monitor.run_figures import RunFigures
from tasks_lib.monitor.serving import PageServer
from tasks_lib.worker.live import Doing, SlotState, WorkerState

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WORKERS, SLOTS = 12, 24
KINDS = ("click-button", "enter-text", "login-user", "book-flight", "use-autocomplete")
WEIGHTS = {Doing.TURN: 9, Doing.QUEUE: 4, Doing.EXECUTE: 3, Doing.SETTLE: 2, Doing.OBSERVE: 2, Doing.RESET: 1}
OTHERS = {Doing.NAVIGATE: 1, Doing.SCREENSHOT: 1, Doing.JUDGE: 1, Doing.IDLE: 1}


class MadeUpSource(FolderSource):
    """Shows environments that nobody plays, for the picture."""

    def changes(self) -> list[tuple[str, bytes]]:
        """Return all workers, once."""
        told, self.told = getattr(self, "told", False), True
        return [] if told else [(state.worker, state.model_dump_json().encode()) for state in self.states()]

    def states(self) -> list[WorkerState]:
        """Return the same workers each time."""
        draw = random.Random(4)
        return [_worker(f"node{number:02d}-{4100 + number}", draw) for number in range(WORKERS)]


def _worker(name: str, draw: random.Random) -> WorkerState:
    weights = WEIGHTS | OTHERS
    slots = [_slot(draw.choices([*weights], [*weights.values()])[0], draw) for _ in range(SLOTS)]
    browsers = [{"state": "READY"}] * 3 + [{"state": "BUSY"}]
    return WorkerState(
        worker=name,
        time=time.time(),
        phase="i000012",
        episodes=64,
        finished={"done": draw.randint(20, 40), "horizon": draw.randint(2, 9)},
        slots=tuple(slots),
        browsers={"browsers": browsers},
        cpu=draw.uniform(0.5, 0.9),
        memory=draw.uniform(0.3, 0.5),
    )


def _slot(doing: Doing, draw: random.Random) -> SlotState:
    if doing is Doing.IDLE:
        return SlotState(episode_id="", kind="", step=0, horizon=0, doing=doing, seconds=1.0)
    return SlotState(
        episode_id=f"i000012-g{draw.randint(0, 63):04d}-s{draw.randint(0, 7):02d}-a0",
        kind=draw.choice(KINDS),
        step=draw.randint(0, 9),
        horizon=10,
        doing=doing,
        seconds=draw.random(),
        version=draw.choice((11, 12, 12, 12)),
        slow=draw.random() < 0.03,
    )


async def take(run: Path) -> None:
    """Serve both pages and take their pictures."""
    store, server = find_run(run), PageServer()
    monitor = LiveMonitor(MadeUpSource(store), RunFigures(store))
    routes = [*monitor.routes(), *browser_of(store.root.parent).routes()]
    async with (
        server.serving(server.application(routes, monitor.polling), monitor.end) as address,
        async_playwright() as playwright,
    ):
        chromium = await playwright.chromium.launch(executable_path=str(find_chromium()))
        rows = f"{address}/api/runs/{store.root.name}/episodes?outcome=success&sort=longest&limit=1"
        for scheme in ("light", "dark"):
            page = await chromium.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
            name = "" if scheme == "light" else "-dark"
            await page.goto(address)
            await page.wait_for_selector("#cells li:nth-child(24)")
            await page.wait_for_selector("#state[data-state]:not([data-state=unknown])")
            await page.wait_for_timeout(1500)
            await page.screenshot(path=IMAGES / f"monitor{name}.png")
            answer: Any = orjson.loads(await (await page.request.get(rows)).body())
            await page.goto(f"{address}/runs/{store.root.name}/episodes/{answer['rows'][0]['episode']}")
            await page.wait_for_selector(".detail .step img")
            await page.wait_for_timeout(500)
            await page.screenshot(path=IMAGES / f"view{name}.png")
        await chromium.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, metavar="FOLDER", help="folder of a run")
    asyncio.run(take(parser.parse_args().run))
