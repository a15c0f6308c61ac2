"""A thousand episodes at once without browsers: rate through flow, Dask, ledger and store, its
drift, memory, files, and where the CPU goes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks import Figure
from benchmarks.scale_workload import GROUP_SIZE
from tasks_lib.config import PROJECT
from tasks_lib.folder.metrics_lines import IterationMetrics, read_lines
from training.ledger.store import RunStore

BATCHES = {"short": 20, "whole": 78}
"""Of a thousand episodes to learn from each, and a third more without."""
PARTS = tuple(BATCHES)
WARM = 2
"""Batches after which rates are measured: the first episodes all start at once."""


def run(parts: tuple[str, ...] = ("whole",)) -> list[Figure]:
    """The whole by default: 100,000 episodes."""
    figures = []
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="rollwright-scale-") as folder:
            _train(Path(folder), BATCHES[part])
            figures += _figures(Path(folder))
    return figures


def _train(folder: Path, batches: int) -> None:
    command = [sys.executable, "-m", "benchmarks.scale_workload", str(folder), str(batches)]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)


def _figures(folder: Path) -> list[Figure]:
    store = RunStore(folder / "scale")
    lines = read_lines(store.metrics_path, IterationMetrics)
    samples = [orjson.loads(line) for line in (folder / "processes.jsonl").read_bytes().splitlines()]
    full = lines[WARM:-1]  # the last batch waits for what is under way, and starts nothing
    tenth = max(1, len(full) // 10)
    rate, first, last = _rate(full), _rate(full[: tenth + 1]), _rate(full[-tenth - 1 :])
    said = f"of {sum(line.episodes['started'] for line in lines):,}"
    return [
        Figure(f"episodes per second {said}", rate, "1/s", ">= 30"),
        Figure(f"last tenth / first tenth {said}", last / first, "ratio", ">= 0.95"),
        *_memory(samples, rate, store.metrics_path.stat().st_mtime),
        *_counts(store, lines),
        *_shares(lines, samples),
    ]


def _rate(lines: list[IterationMetrics]) -> float:
    """Episodes a second from the first of these versions to the last."""
    episodes = sum(line.episodes["started"] for line in lines[1:])
    return float(episodes / ((lines[-1].wall or 0.0) - (lines[0].wall or 0.0)))


def _memory(samples: list[dict[str, Any]], rate: float, end: float) -> list[Figure]:
    """By process: the slope of its memory over the second half of the loop.

    Args:
        end: When the last metrics were written; the report takes some hundred MB more for a few
            seconds afterwards.
    """
    loop = [sample for sample in samples if sample["at"] <= end and "worker" in sample["processes"]]
    half = loop[len(loop) // 2 :]
    at = np.array([sample["at"] for sample in half])
    figures = []
    for role in ("flow", "worker", "prefect server"):
        mb = np.array([sample["processes"][role]["mb"] for sample in half])
        slope = float(np.polyfit(at - at[0], mb, 1)[0]) / rate * 10_000
        figures.append(Figure(f"memory per 10,000 episodes, {role}", slope, "MB", ""))
        figures.append(Figure(f"memory at the end, {role}", float(mb[-1]), "MB", ""))
    return figures


def _counts(store: RunStore, lines: list[IterationMetrics]) -> list[Figure]:
    """Files and rows against the episodes that the metrics count; the ledger's states add up to
    them."""
    trained = set(store.group_ids("i*"))
    stored = Counter(name.rsplit("-s", 1)[0] for name in store.episode_ids())
    episodes = sum(stored[group] for group in trained)
    with closing(sqlite3.connect(store.journal_path)) as journal:
        (rows,) = journal.execute("SELECT count(DISTINCT episode_id) FROM events").fetchone()
    consumed = sum(line.episodes["started"] for line in lines)
    stale = sum(line.episodes["stale"] for line in lines)
    return [
        Figure("trajectories / episodes of committed groups", episodes / (len(trained) * GROUP_SIZE), "ratio", ""),
        Figure("ledger's episodes / trajectories", rows / episodes, "ratio", ""),
        Figure("episodes that batches decided about / trajectories", consumed / episodes, "ratio", ""),
        Figure("episodes dropped for staleness", stale, "episodes", "<= 0"),
    ]


def _shares(lines: list[IterationMetrics], samples: list[dict[str, Any]]) -> list[Figure]:
    """Where the time goes: CPU seconds of each process for a second of the run, and shares of the
    loop's time."""
    samples = [sample for sample in samples if "worker" in sample["processes"]]
    first, last = samples[len(samples) // 5], samples[-1]
    wall = last["at"] - first["at"]
    figures = []
    for role, process in last["processes"].items():
        used = process["cpu"] - first["processes"].get(role, {"cpu": 0.0})["cpu"]
        figures.append(Figure(f"CPU, {role}", used / wall, "cores", ""))
    total = sum(line.seconds["total"] for line in lines)
    for name in ("rollout", "sample", "batch", "orchestrate"):
        share = sum(line.seconds[name] for line in lines) / total
        figures.append(Figure(f"share of the loop's time, {name}", share, "share", ""))
    published = sum(line.asynchronous.publish for line in lines if line.asynchronous is not None)
    return [*figures, Figure("share of the loop's time, publish", published / total, "share", "")]
