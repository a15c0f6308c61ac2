"""Asynchronous training against our synchronous mode and WebGym-style barriers, on a workload whose
engine and trainer only take time."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from benchmarks import Figure
from benchmarks.async_stand_ins import StandIns, StandInSeconds, mean_period, stand_in_config, stand_in_loop
from benchmarks.async_stand_ins import train as train_stand_ins
from benchmarks.async_workload import ARMS, TURN_MEAN, TURN_SIGMA, VERSIONS, SleepingTrainer, traffic_path
from tasks_lib.config import PROJECT
from tasks_lib.folder.metrics_lines import IterationMetrics, read_lines
from tasks_lib.loops.run import open_run
from tasks_lib.simulation.fit import Fitted, fit
from training.ledger.store import RunStore
from training.pacing.simulate import simulate
from training.pacing.workload import Distribution

SEEDS = 8
"""Simulations of a run; their mean is compared."""

LONG_PUBLICATION = StandInSeconds(update=1.0, publication=1.0, rollout=0.5)
"""A publication as long as an update, and a shorter rollout."""


def run() -> list[Figure]:
    """Consumed episodes a second of each arm, their ratios, the staleness of the asynchronous one,
    and bytes through Dask's scheduler."""
    with tempfile.TemporaryDirectory(prefix="rollwright-async-") as folder:
        lines = {arm: train_arm(arm, settings, VERSIONS[arm], Path(folder)) for arm, settings in ARMS.items()}
        possible = possible_per_second(fit(str(Path(folder) / "async")), VERSIONS["async"])
        traffic = [traffic_figure(Path(folder), arm) for arm in ("async", "sync")]
    # No groups start beside the last version of an asynchronous run.
    rates = {arm: consumed_per_second(found[:-1] if arm == "async" else found) for arm, found in lines.items()}
    figures = [Figure(f"consumed episodes per second, {arm}", rate, "1/s", "") for arm, rate in rates.items()]
    eta = ARMS["async"]["pacing"]["staleness"]
    return [
        *figures,
        Figure("async / possible by the simulator", rates["async"] / possible, "share", ">= 0.9"),
        Figure("async / barriers", rates["async"] / rates["barriers"], "ratio", ">= 2.9"),
        Figure("async / sync", rates["async"] / rates["sync"], "ratio", ""),
        *lag_figures(lines["async"], eta),
        Figure("orchestration share, async", orchestration_share(lines["async"]), "share", "<= 0.02"),
        *_idle(lines["async"]),
        *traffic,
        publication_figure(),
    ]


def publication_figure() -> Figure:
    """Period of the loop over stand-ins whose publication is as long as their update, in
    updates."""
    with (
        tempfile.TemporaryDirectory(prefix="rollwright-publications-") as folder,
        open_run(stand_in_config(Path(folder), iterations=10)) as run,
    ):
        stand_ins = StandIns(run.store, LONG_PUBLICATION)
        with stand_in_loop(run, stand_ins) as loop:
            train_stand_ins(loop)
    period = mean_period(stand_ins.publications, skipped=2) / LONG_PUBLICATION.update
    return Figure("period / update, publications as long as updates", period, "ratio", "<= 1.05")


def lag_figures(lines: list[IterationMetrics], eta: int) -> list[Figure]:
    """Staleness of all rows of an asynchronous run, as shares of its bound."""
    rows: Counter[int] = Counter()
    for line in lines:
        if line.asynchronous is not None:
            rows.update({int(old): int(count) for old, count in line.asynchronous.staleness.items()})
    stale = sum(line.episodes["stale"] for line in lines)
    return [
        Figure(f"mean lag / eta, eta = {eta}", sum(rows.elements()) / rows.total() / eta, "ratio", "<= 0.75"),
        Figure(f"largest lag / eta, eta = {eta}", max(rows) / eta, "ratio", "<= 1"),
        Figure(f"episodes dropped for staleness, eta = {eta}", stale, "episodes", "<= 0"),
    ]


def possible_per_second(run: Fitted, versions: int) -> float:
    """Consumed episodes a second of a run of the workload whose engine and trainer take their own
    times and nothing else does.

    Only the seconds of browsers, the steps and the outcomes are those of the run.
    """
    ideal = replace(
        run.workload,
        generation_seconds=Distribution(TURN_MEAN, TURN_SIGMA),
        update_seconds=Distribution(SleepingTrainer.seconds),
        publish_seconds=0.0,
    )
    return predicted_per_second(replace(run, workload=ideal), run, versions)


def predicted_per_second(base: Fitted, run: Fitted, versions: int) -> float:
    """With the times of ``base``; of ``run`` only its settings are taken: schedule and places."""
    machine = replace(base.machine, browsers=run.machine.browsers)
    results = [
        simulate(base.workload, machine, run.schedule, versions=versions - 2, warmup=1, seed=seed)
        for seed in range(SEEDS)
    ]
    return statistics.fmean(result.episodes_per_hour for result in results) / 3600


def consumed_per_second(lines: list[IterationMetrics]) -> float:
    """Episodes that gave rows, over the time from the first publication to the last."""
    walls = [line.wall or 0.0 for line in lines]
    return float(sum(line.episodes["consumed"] for line in lines[1:]) / (walls[-1] - walls[0]))


def orchestration_share(lines: list[IterationMetrics]) -> float:
    """Of the loop's wall time."""
    return float(sum(line.seconds["orchestrate"] for line in lines) / sum(line.seconds["total"] for line in lines))


def traffic_figure(folder: Path, arm: str) -> Figure:
    """Bytes in and out of the scheduler over the whole run, for each stored step of it."""
    moved = orjson.loads(traffic_path(folder, arm).read_bytes())["bytes"]
    store = RunStore(folder / arm)
    steps = sum(len(store.trajectory(episode_id).steps) for episode_id in store.episode_ids())
    return Figure(f"through Dask's scheduler per step, {arm}", moved / steps / 1000, "kB", "<= 2")


def _idle(lines: list[IterationMetrics]) -> list[Figure]:
    updates = sum(line.asynchronous.train for line in lines[1:] if line.asynchronous is not None)
    wall = sum((after.wall or 0.0) - (before.wall or 0.0) for before, after in pairwise(lines))
    return [Figure("idle share of the trainer, async", 1 - updates / wall, "share", "")]


def train_arm(name: str, settings: dict[str, Any], versions: int, folder: Path) -> list[IterationMetrics]:
    """Train a run of the workload with these settings; the metrics lines of its versions."""
    given = orjson.dumps(settings).decode()
    command = [sys.executable, "-m", "benchmarks.async_workload", name, str(folder), str(versions), given]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    found = iterations(RunStore(folder / name))
    assert len(found) == versions, f"{name} has {len(found)} of {versions} versions"
    return found


def iterations(store: RunStore) -> list[IterationMetrics]:
    """The metrics lines of a run's versions."""
    return read_lines(store.metrics_path, IterationMetrics)
