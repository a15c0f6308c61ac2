"""Asynchronous training against our synchronous mode and WebGym-style barriers, on a workload whose engine and trainer only take time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from benchmarks import Figure
from benchmarks.async_workload import ARMS, VERSIONS
from tasks_lib.config import PROJECT
from training.ledger.store import RunStore


def run() -> list[Figure]:
    """Consumed episodes a second of each arm, their ratios, and the staleness of the asynchronous one."""
    with tempfile.TemporaryDirectory(prefix="rollwright-async-") as folder:
        lines = {arm: train_arm(arm, settings, VERSIONS, Path(folder)) for arm, settings in ARMS.items()}
    rates = {arm: consumed_per_second(found) for arm, found in lines.items()}
    figures = [Figure(f"consumed episodes per second, {arm}", rate, "1/s", "") for arm, rate in rates.items()]
    staleness = [
        int(old)
        for line in lines["async"]
        for old, rows in line["asynchronous"]["staleness"].items()
        for _ in range(rows)
    ]
    eta = ARMS["async"]["pacing"]["staleness"]
    stale = sum(line["episodes"]["stale"] for line in lines["async"])
    return [
        *figures,
        Figure("async / barriers", rates["async"] / rates["barriers"], "ratio", ">= 2.9"),
        Figure("async / sync", rates["async"] / rates["sync"], "ratio", ""),
        Figure("mean lag / eta", sum(staleness) / len(staleness) / eta, "ratio", "<= 0.75"),
        Figure("largest lag / eta", max(staleness) / eta, "ratio", "<= 1"),
        Figure("episodes dropped for staleness", stale, "episodes", "<= 0"),
        Figure("orchestration share, async", orchestration_share(lines["async"]), "share", "<= 0.02"),
        *_idle(lines["async"]),
    ]


def consumed_per_second(lines: list[dict[str, Any]]) -> float:
    """Episodes that gave rows, over the time from the first publication to the last."""
    walls = [line["wall"] for line in lines]
    return float(sum(line["episodes"]["consumed"] for line in lines[1:]) / (walls[-1] - walls[0]))


def orchestration_share(lines: list[dict[str, Any]]) -> float:
    """Of the loop's wall time."""
    return float(
        sum(line["seconds"]["orchestrate"] for line in lines) / sum(line["seconds"]["total"] for line in lines)
    )


def _idle(lines: list[dict[str, Any]]) -> list[Figure]:
    updates = sum(line["asynchronous"]["train"] for line in lines[1:])
    wall = sum(after["wall"] - before["wall"] for before, after in pairwise(lines))
    return [Figure("idle share of the trainer, async", 1 - updates / wall, "share", "")]


def train_arm(name: str, settings: dict[str, Any], versions: int, folder: Path) -> list[dict[str, Any]]:
    """Train a run of the workload with these settings; the metrics lines of its versions."""
    given = orjson.dumps(settings).decode()
    command = [sys.executable, "-m", "benchmarks.async_workload", name, str(folder), str(versions), given]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    found = iterations(RunStore(folder / name))
    assert len(found) == versions, f"{name} has {len(found)} of {versions} versions"
    return found


def iterations(store: RunStore) -> list[dict[str, Any]]:
    """The metrics lines of a run's versions."""
    lines = [orjson.loads(line) for line in store.metrics_path.read_bytes().splitlines()]
    return [line for line in lines if line["kind"] == "iteration"]
