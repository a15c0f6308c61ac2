"""Asynchronous training without added delay: its rate against what overlap could give, and clipped tokens with and without decoupling."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson

from benchmarks import Figure
from benchmarks.asynchronous import consumed_per_second
from tasks_lib.config import PROJECT
from training.ledger.store import RunStore

VERSIONS = 8
SETTINGS = {"iterations": VERSIONS, "evaluation.every": VERSIONS, "evaluation.episodes": 8}
ARMS: dict[str, dict[str, object]] = {
    "sync": {"rollout.deterministic": False},
    "async": {"mode": "async", "pacing.staleness": 2},
    "coupled": {"mode": "async", "pacing.staleness": 2, "algorithm.proximal": "behaviour"},
}
"""Of the quickstart. ``coupled``: the clip is around the policy that sampled."""


def run() -> list[Figure]:
    """One run of each arm; rates without the first version, which starts everything, and the last, which ends it."""
    with tempfile.TemporaryDirectory(prefix="rollwright-overlap-") as folder:
        lines = {arm: train(arm, {**SETTINGS, **settings}, Path(folder)) for arm, settings in ARMS.items()}
    rates = {arm: consumed_per_second(found[:-1]) for arm, found in lines.items()}
    ceiling = overlap_ceiling(lines["sync"])
    clipped = {
        arm: statistics.fmean(line["train"]["clip_fraction"] for line in found[1:]) for arm, found in lines.items()
    }
    return [
        *[Figure(f"consumed episodes per second, {arm}", rate, "1/s", "") for arm, rate in rates.items()],
        Figure("ceiling of overlap", ceiling, "ratio", ""),
        Figure("async / sync, of the ceiling", rates["async"] / rates["sync"] / ceiling, "share", ">= 0.85"),
        *[Figure(f"clipped tokens, {arm}", share, "share", "") for arm, share in clipped.items()],
        Figure("clipped tokens, async / coupled", clipped["async"] / clipped["coupled"], "ratio", "<= 0.6"),
    ]


def overlap_ceiling(lines: list[dict[str, Any]]) -> float:
    """Of synchronous iterations: ``(rollout + train) / max(rollout, train)``."""
    rollout = sum(line["seconds"]["rollout"] for line in lines[1:])
    update = sum(sum(line["train_split"].values()) for line in lines[1:])
    return float((rollout + update) / max(rollout, update))


def train(name: str, settings: dict[str, object], folder: Path) -> list[dict[str, Any]]:
    """The metrics lines of a quickstart run with these settings."""
    given = {**settings, "root": folder, "run_id": name}
    command = [sys.executable, "-m", "flows.train", "--preset", "quickstart"]
    command += [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    lines = [orjson.loads(line) for line in RunStore(folder / name).metrics_path.read_bytes().splitlines()]
    return [line for line in lines if line["kind"] == "iteration"]
