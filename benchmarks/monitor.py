"""Costs of the live monitor at 512 environments of 20 changes a second: workers, server, delay."""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import orjson
import psutil

from benchmarks import Figure
from tasks_lib.worker.live import Doing, LiveState, update_live_file
from training.ledger.store import RunStore, atomic_write_bytes

CELLS = 512
CHANGES = 20
"""Changes of a cell in a second."""
WORKERS = 8
VIEWERS = 3
STEPS = [doing for doing in Doing if doing is not Doing.IDLE]
TURNS = 3
"""Times that the worker's loop runs with the monitor, and without it."""
WATCH_SECONDS = 10.0
"""Seconds of 10,240 changes each: more than 100,000 changes."""


def run() -> list[Figure]:
    """Worker's loss, server's share of a core, delay of a change, growth of the server."""
    with tempfile.TemporaryDirectory(prefix="rollwright-monitor-") as folder:
        loss = asyncio.run(_loss(Path(folder) / "worker"))
        root = Path(folder) / "run"
        root.mkdir()
        (root / "config.json").write_text("{}")
        return [
            Figure("worker's steps lost to the monitor, 512 cells", loss, "share", "<= 0.02"),
            *asyncio.run(_watch(root)),
        ]


async def _loss(folder: Path) -> float:
    """Return the share of a busy worker's steps that the monitor costs, on and off in turns."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * TURNS):
        on = turn % 2 == turn // 2 % 2  # ABBA, so that a drift of the machine falls on both
        rates[on].append(await _step_rate(folder, on=on))
    return 1 - statistics.median(rates[True]) / statistics.median(rates[False])


async def _step_rate(folder: Path, *, on: bool) -> float:
    """Return the changes in a second of CPU of a loop that does nothing else than 512 episodes.

    It does as many as in two seconds at full pace, and meanwhile the file is written twice.
    """
    live, store = LiveState("i000000", CELLS, dict), RunStore(folder)
    slots = [live.take_slot() for _ in range(CELLS)]
    done, began = 0, time.process_time()
    async with AsyncExitStack() as stack:
        if on:
            await stack.enter_async_context(update_live_file(live, store, lambda run_dir, state: None))
        for _ in range(2 * CHANGES):
            for slot in slots:
                _work()
                if on:
                    slot.set_doing(STEPS[done % len(STEPS)], done % 10)
                done += 1
            await asyncio.sleep(0)
    return done / (time.process_time() - began)


def _work() -> None:
    """Do what a change takes of a worker that has 20 of each of 512 cells: 98 microseconds."""
    sum(range(4000))


async def _watch(root: Path) -> list[Figure]:
    """Return the figures of a server of its own process, with three viewers."""
    store = RunStore(root)
    command = [sys.executable, "-m", "flows.monitor", "--run", str(root), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.match(r"(http://\S+) shows", await asyncio.to_thread(server.stdout.readline))
        assert found, "the monitor did not start"
        process, delays = psutil.Process(server.pid), list[float]()
        async with AsyncExitStack() as stack:
            for number in range(WORKERS):
                stack.push_async_callback(_cancel, asyncio.create_task(_change(f"host-{number}", store)))
            for _ in range(VIEWERS):
                stack.push_async_callback(_cancel, asyncio.create_task(_view(found[1], delays)))
            await asyncio.sleep(WATCH_SECONDS / 2)
            delays.clear()
            before, memory, began = process.cpu_times(), process.memory_info().rss, time.monotonic()
            await asyncio.sleep(WATCH_SECONDS)
            after, grown, seconds = process.cpu_times(), process.memory_info().rss / memory, time.monotonic() - began
        share = (after.user + after.system - before.user - before.system) / seconds
    finally:
        server.terminate()
        server.wait()
    return [
        Figure("server's share of a core, three viewers", share, "core", "<= 0.1"),
        Figure("change to its message at a viewer, mean", statistics.fmean(delays) + 0.5, "s", "<= 1"),
        Figure("change to its message at a viewer, longest", max(delays) + 1.0, "s", ""),
        Figure("server's memory after 100,000 changes / before", grown, "ratio", "<= 1.02"),
    ]


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
