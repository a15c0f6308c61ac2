"""A set of 300,000 tasks: opening it, the memory that takes, a stratified batch of 1,024 drawn from
it; and 100,000 tasks generated."""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import Figure
from benchmarks.generated_tasks import figures as generated
from envs.tasks import TaskIndex, TreeLayout, task_files, write_tree
from envs.types import SeedRange, Split, WebTask

TASKS = 300_000
SITES = 1_200
"""Sites with 250 tasks on average; a few have thousands, as in sets of live sites."""
BATCH = 1_024
DRAWS = 20
SENTENCE = (
    "find open compare the cheapest nearest latest article flight recipe repository hotel museum review with at least four stars "
    "under between and sort by price date rating then add it to your list report its author address opening hours number of pages"
)
"""Whose words make instructions."""
SEEDS = {
    Split.TRAIN: SeedRange(start=200_000, stop=1_200_000),
    Split.HELD_OUT: SeedRange(start=0, stop=10_000),
    Split.VALIDATION: SeedRange(start=2_000_000, stop=2_010_000),
}


def run() -> list[Figure]:
    """Opened in a process of its own for each form, so that memory is what opening takes."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="rollwright-tasks-") as folder:
        for form in (TreeLayout.JSONL, TreeLayout.PARQUET):
            started = time.perf_counter()
            write_tree(Path(folder) / form, _tasks(), form)
            written = time.perf_counter() - started
            command = [sys.executable, "-m", "benchmarks.tasks", str(Path(folder) / form)]
            got = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            figures += [
                Figure(f"{form}: write a tree of 300,000 tasks", written, "s", ""),
                Figure(f"{form}: open and check it", got["open_s"], "s", ""),
                Figure(f"{form}: memory afterwards (RSS)", got["rss_mb"], "MB", "<= 300"),
                Figure(f"{form}: most memory meanwhile (RSS)", got["peak_mb"], "MB", "<= 300"),
                Figure(f"{form}: stratified batch of 1,024 tasks", got["batch_ms"], "ms", "<= 100"),
                Figure(f"{form}: slowest of {DRAWS} batches", got["slowest_ms"], "ms", ""),
            ]
    return [*figures, *generated()]


def _tasks() -> Iterator[WebTask]:
    source = random.Random(0)
    words = SENTENCE.split()
    for number in range(TASKS):
        site = f"site-{int(SITES * source.random() ** 2)}.example"
        kind = f"topic-{source.randrange(60)}"
        yield WebTask(
            task_id=f"{site}/{kind}/{number}",
            site=site,
            kind=kind,
            path=f"/{source.choice(words)}/{source.randrange(10_000)}?q={source.choice(words)}",
            instruction=" ".join(source.choices(words, k=source.randrange(10, 30))),
            difficulty=min(1 + int(source.expovariate(0.4)), 16),
            horizon=20,
            seeds=SEEDS,
        )


def _measure(folder: Path) -> dict[str, Any]:
    """Open a tree and draw from it, in this process."""
    started = time.perf_counter()
    index = TaskIndex.open(task_files("difficulty/**/*.*", root=folder))
    opened = time.perf_counter() - started
    assert len(index) == TASKS, f"{len(index)} tasks were read of {TASKS}"
    seconds = []
    for seed in range(DRAWS):
        started = time.perf_counter()
        batch = index.take(index.stratified(BATCH, seed))
        seconds.append(time.perf_counter() - started)
        assert len({task.task_id for task in batch}) == BATCH
    return {
        "open_s": opened,
        "rss_mb": _memory("VmRSS"),
        "peak_mb": _memory("VmHWM"),
        "batch_ms": 1000 * statistics.median(seconds),
        "slowest_ms": 1000 * max(seconds),
    }


def _memory(name: str) -> float:
    """Megabytes of this process: from Linux's own account, else the most it ever had."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]))))
