"""The quickstart for three seeds: what is learned, how long it takes, what orchestration and memory
cost.

Runs that are finished already (``runs/quickstart-seed<n>``) are read, not repeated.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from benchmarks import Figure
from envs.types import RollwrightError
from tasks_lib.config import PROJECT, TrainConfig, resolve
from training.ledger.store import RunStore, read_json

SEEDS = (0, 1, 2)


def run() -> list[Figure]:
    """Figures of each seed."""
    figures = []
    for seed in SEEDS:
        figures += [
            Figure(f"seed {seed}: {name}", value, unit, target) for name, value, unit, target in _figures(_result(seed))
        ]
    return figures


def _result(seed: int) -> dict[str, Any]:
    config: TrainConfig = resolve(TrainConfig, {"preset": "quickstart", "seed": seed})
    store = RunStore(config.run_dir)
    if not store.result_path.exists():
        command = [sys.executable, "-m", "flows.train", "--preset", "quickstart", "--set", f"seed={seed}"]
        subprocess.run(command, cwd=PROJECT, check=True)
    result: dict[str, Any] = read_json(store.result_path)
    return result


def _figures(result: dict[str, Any]) -> list[tuple[str, float, str, str]]:
    before, after, seconds = result["success_before"], result["success_after"], result["seconds"]
    if not (before["n"] and after["n"]):
        raise RollwrightError(
            "the success before or after is unknown, as no episode has a reward; see the run's report"
        )
    rl = seconds["total"] - seconds["set_up"] - seconds["evaluate"]
    return [
        ("held-out success before", before["mean"], "share", ""),
        ("held-out success after", after["mean"], "share", ">= 0.8"),
        ("gain", after["mean"] - before["mean"], "share", ">= 0.2"),
        ("gap between the 95 % intervals", after["low"] - before["high"], "share", ">= 0"),
        ("held-out episodes", after["n"], "episodes", ">= 200"),
        ("task kinds", len(result["success_by_kind"]), "kinds", ">= 8"),
        ("RL without evaluations", rl / 60, "min", "<= 10"),
        ("whole run", seconds["total"] / 60, "min", "<= 15"),
        ("orchestration share of the loop", result["orchestration_share"], "share", "<= 0.1"),
        ("peak memory of all processes", result["peak_rss_mb"] / 1024, "GiB", "<= 6"),
    ]
