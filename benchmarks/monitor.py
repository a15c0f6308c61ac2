"""Costs of the monitor at 512 environments of 20 changes a second; opening of a great run."""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx
import orjson
import psutil
from playwright.async_api import async_playwright
from playwright.sync_api import sync_playwright

from benchmarks import Figure
from envs.browser import find_chromium
from envs.types import StopReason
from tasks_lib.worker.live import Doing, LiveState, update_live_file
from training.ledger.store import RunStore, atomic_write_bytes, write_json
from training.records.groups import EpisodeSummary, GroupRecord, StepShape

CELLS = 512
CHANGES = 20
"""Changes of a cell in a second."""
WORKERS = 8
VIEWERS = 3
STEPS = [doing for doing in Doing if doing is not Doing.IDLE]
BLOCKS = 200
"""Blocks of one change of each cell, half of them with the monitor."""
GROUPS, GROUP_SIZE = 1250, 8
"""Groups of the run that is opened, and their episodes."""
OPENINGS = 3
WATCH_SECONDS = 10.0
"""Seconds of 10,240 changes each: more than 100,000 changes."""

MESSAGE = json.dumps({"id": 7, "result": {"node": {"name": "button", "box": [1.5, 2.5, 3.5, 4.5]}}})
COUNT_FRAMES = """milliseconds => new Promise(done => {
    let frames = 0, began = null;
    const count = now => {
        began ??= now;
        if (now - began >= milliseconds) done(1000 * frames / (now - began));
        else { frames += 1; requestAnimationFrame(count); }
    };
    requestAnimationFrame(count);
})"""
"""Gives the frames a second of a page over so many milliseconds."""


def run() -> list[Figure]:
    """Worker's loss; server's share of a core; delay of a change; opening of a great run."""
    with tempfile.TemporaryDirectory(prefix="rollwright-monitor-") as folder:
        loss = asyncio.run(_loss(Path(folder) / "worker"))
        root = Path(folder) / "run"
        root.mkdir()
        (root / "config.json").write_text("{}")
        return [
            Figure("worker's CPU for the monitor, 512 cells", loss, "share", "<= 0.02"),
            *asyncio.run(_watch(root)),
            *_open_run(Path(folder) / "runs"),
        ]


async def _loss(folder: Path) -> float:
    """Return the share of a busy worker's CPU that the monitor costs.

    Blocks of one change of each cell run with the monitor and without it, in turns; a second has 20
    of them and one writing of the file.
    """
    live, store = LiveState("i000000", CELLS, dict), RunStore(folder)
    slots = [live.take_slot() for _ in range(CELLS)]
    blocks: dict[bool, list[float]] = {True: [], False: []}
    count = _messages()
    for turn in range(BLOCKS):
        on = turn % 2 == turn // 2 % 2  # ABBA, so that a drift of the machine falls on both
        began = time.process_time()
        for number, slot in enumerate(slots):
            _read_messages(count)
            doing, step = STEPS[(turn + number) % len(STEPS)], turn % 10
            if on:
                slot.set_doing(doing, step)
        blocks[on].append(time.process_time() - began)
    writings = []
    for _ in range(BLOCKS // 4):
        began = time.process_time()
        async with update_live_file(live, store, lambda run_dir, state: None):
            await asyncio.sleep(0)  # it is written now, and at the end
        writings.append((time.process_time() - began) / 2)
    without = CHANGES * statistics.median(blocks[False])
    return 1 - without / (CHANGES * statistics.median(blocks[True]) + statistics.median(writings))


def _read_messages(count: int) -> None:
    """Work as a worker does: read messages of a browser, and write their answers."""
    for _ in range(count):
        json.dumps(json.loads(MESSAGE))


def _messages() -> int:
    """Return how many messages take what a core has for a change where each of 512 cells has 20 of
    them in a second: 98 microseconds."""
    count, seconds = 400, []
    for _ in range(100):
        began = time.process_time()
        _read_messages(count)
        seconds.append(time.process_time() - began)
    return round(count / statistics.median(seconds) / (CELLS * CHANGES))


async def _watch(root: Path) -> list[Figure]:
    """Return the figures of a server of its own process, with three viewers."""
    store = RunStore(root)
    command = [sys.executable, "-m", "flows.monitor", "--run", str(root), "--port", "0"]
    delays = list[float]()
    async with AsyncExitStack() as stack:
        address, process = stack.enter_context(_serving(command))
        for number in range(WORKERS):
            stack.push_async_callback(_cancel, asyncio.create_task(_change(f"host-{number}", store)))
        for _ in range(VIEWERS):
            stack.push_async_callback(_cancel, asyncio.create_task(_view(address, delays)))
        await asyncio.sleep(WATCH_SECONDS / 2)
        delays.clear()
        before, memory, began = process.cpu_times(), process.memory_info().rss, time.monotonic()
        await asyncio.sleep(WATCH_SECONDS)
        after, grown, seconds = process.cpu_times(), process.memory_info().rss / memory, time.monotonic() - began
        frames = await _frames(address)
    share = (after.user + after.system - before.user - before.system) / seconds
    return [
        Figure("page's frames in headless Chromium, 512 cells", frames, "1/s", ">= 50"),
        Figure("server's share of a core, three viewers", share, "core", "<= 0.1"),
        Figure("change to its message at a viewer, mean", statistics.fmean(delays) + 0.5, "s", "<= 1"),
        Figure("change to its message at a viewer, longest", max(delays) + 1.0, "s", ""),
        Figure("server's memory after 100,000 changes / before", grown, "ratio", "<= 1.02"),
    ]


async def _frames(address: str) -> float:
    """Return the frames a second of the page, by its own clock, while it shows all cells."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=str(find_chromium()))
        page = await chromium.new_page(viewport={"width": 1280, "height": 1600})
        await page.goto(address)
        await page.wait_for_function(f"document.querySelectorAll('#cells button').length === {CELLS}")
        frames: float = await page.evaluate(COUNT_FRAMES, WATCH_SECONDS * 1000)
        await chromium.close()
    return frames


def _open_run(root: Path) -> list[Figure]:
    """Return how long the page of a run of 10,000 episodes takes until rows are seen.

    The first time, a server has read no record yet; Chromium runs already.
    """
    store = RunStore(root / "run")
    for number in range(GROUPS):
        group = _group(f"i{number // 32:06d}-g{number % 32:04d}")
        write_json(store.group_path(group.group_id), group)
    write_json(store.config_path, {"config": {"iterations": 40}})
    first, again = list[float](), list[float]()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(find_chromium()))
        for _ in range(OPENINGS):
            command = [sys.executable, "-m", "flows.view", "--root", str(root), "--port", "0"]
            with _serving(command) as (address, _):
                for seconds in (first, again):
                    page = chromium.new_page()
                    began = time.monotonic()
                    page.goto(f"{address}/run")
                    page.wait_for_selector(".episodes-list a")
                    seconds.append(time.monotonic() - began)
                    page.close()
        chromium.close()
    return [
        Figure("page of a run of 10,000 episodes, first time", statistics.median(first), "s", "<= 2"),
        Figure("page of a run of 10,000 episodes, again", statistics.median(again), "s", "<= 2"),
    ]


def _group(group_id: str) -> GroupRecord:
    """Return the record of a group."""
    episodes = tuple(
        EpisodeSummary(
            episode_id=f"{group_id}-s{sample:02d}-a0",
            seed=5,
            sample=sample,
            score=1.0,
            passed=True,
            steps=3,
            response_tokens=40,
            stop_reason=StopReason.DONE,
            abstained=None,
            shapes=(StepShape(40, 40, 0),) * 3,
            sha256="",
        )
        for sample in range(GROUP_SIZE)
    )
    return GroupRecord(token="", group_id=group_id, task_id="miniwob/x", kind="x", policy_version=0, episodes=episodes)


@contextmanager
def _serving(command: list[str]) -> Iterator[tuple[str, psutil.Process]]:
    """Run a command that serves pages, and yield its address and its process."""
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        says = re.match(r"(http://\S+) shows", server.stdout.readline())
        assert says, f"{' '.join(command)} did not start"
        yield says[1], psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait()


async def _change(worker: str, store: RunStore) -> None:
    """Change the cells of a worker, and write its file once a second, as workers do.

    A change waits half a second on average until it is written, and a second at most.
    """
    live, done = LiveState("i000000", CELLS, dict), 0
    slots = [live.take_slot() for _ in range(CELLS // WORKERS)]
    await asyncio.sleep(random.random())
    due = time.monotonic()
    while True:
        for slot in slots:
            for _ in range(CHANGES):
                slot.set_doing(random.choice(STEPS), done % 10)
                done += 1
        state = live.state().model_copy(update={"worker": worker, "time": time.time()})
        atomic_write_bytes(store.live_path(worker), state.model_dump_json().encode(), sync=False)
        due += 1.0
        await asyncio.sleep(due - time.monotonic())


async def _view(address: str, delays: list[float]) -> None:
    """Read events, and keep the time from each state to its message."""
    async with httpx.AsyncClient(timeout=None) as client, client.stream("GET", f"{address}/events") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: ["):
                delays += [time.time() - state["time"] for state in orjson.loads(line[6:]) if "time" in state]


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
