"""Takes the simulator's distributions from the files of a finished run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from envs.types import ConfigError, Trajectory
from tasks_lib.config import EvaluateConfig, TrainConfig, resolve_path
from tasks_lib.folder.frozen_config import started_config
from tasks_lib.folder.metrics_lines import IterationMetrics, read_lines
from training.ledger.journal import read_group
from training.ledger.store import RunStore
from training.pacing.workload import Distribution, Machine, Schedule, Workload
from training.records.groups import EpisodeSummary, GroupRecord

MAX_TRAJECTORIES = 400
"""Most trajectories that are read for the seconds of steps.

They have several thousand steps and take a second or two to read.
"""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Model of a run for the simulator."""

    workload: Workload
    machine: Machine
    schedule: Schedule
    period: float
    """Measured seconds of an iteration, without evaluations."""


def fit(run: str) -> Fitted:
    """Fit distributions, machine and schedule to a training run.

    The measured seconds of a turn include the run's own load, so the fitted engine serves all of
    the run's episodes at full speed. To compare other loads, give the times of an unloaded engine
    instead.

    Raises:
        ConfigError: the folder is no training run, or has no iteration that was trained on.
        StorageError: a record cannot be read.
    """
    store = RunStore(resolve_path(run))
    config = started_config(store)
    records = [read_group(store, name) for name in store.group_ids() if name.startswith("i")]
    lines = read_lines(store.metrics_path, IterationMetrics)
    lines = [line for line in lines if line.seconds and not line.recovered]
    if isinstance(config, EvaluateConfig) or not records or not lines:
        raise ConfigError(f"run: {store.root} has no finished iterations; name the folder of a training run")
    episodes = [episode for record in records for episode in record.episodes]
    trajectories = list(_trajectories(store, episodes))
    browsers = config.rollout.concurrency * config.cluster.workers
    return Fitted(
        _workload(records, trajectories, lines, config.algorithm.group_size),
        Machine(browsers=browsers, engine_turns=browsers),
        _schedule(config),
        statistics.fmean(line.seconds["total"] for line in lines),
    )


def _schedule(config: TrainConfig) -> Schedule:
    rollout, pacing, episodes = config.rollout, config.pacing, config.episodes_per_group
    schedule = Schedule(batch=rollout.groups_per_iteration, over_sampling=rollout.over_sampling)
    if config.mode == "sync":
        return schedule
    running = pacing.groups_at_once(config.cluster.workers, rollout.concurrency, episodes)
    tasks = pacing.groups_per_task(rollout.groups_per_task, rollout.concurrency, episodes)
    return replace(schedule, staleness=pacing.staleness, depth=pacing.ahead, running=running, groups_per_task=tasks)


def _trajectories(store: RunStore, episodes: Sequence[EpisodeSummary]) -> Iterable[Trajectory]:
    stride = max(1, len(episodes) // MAX_TRAJECTORIES)
    return (store.trajectory(episode.episode_id) for episode in episodes[::stride])


def _workload(
    records: Sequence[GroupRecord],
    trajectories: Sequence[Trajectory],
    lines: Sequence[IterationMetrics],
    group_size: int,
) -> Workload:
    episodes = [episode for record in records for episode in record.episodes]
    usable = [episode for record in records for episode in record.usable if episode.steps]
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    if not usable or not steps:
        raise ConfigError("run: none of its episodes has a reward; name a run that was trained on some")
    passed = [float(episode.steps) for episode in usable if episode.passed]
    failed = [float(episode.steps) for episode in usable if not episode.passed]
    reset_seconds = [
        max(0.0, one.seconds - sum(s.observe + s.generate + s.act for s in (step.seconds for step in one.steps)))
        for one in trajectories
    ]
    return Workload(
        group_size=group_size,
        success_steps=Distribution.of(passed or failed),
        failure_steps=Distribution.of(failed or passed),
        reset_seconds=Distribution.of(reset_seconds),
        browser_seconds=Distribution.of([step.seconds.observe + step.seconds.act for step in steps]),
        generation_seconds=Distribution.of([step.seconds.generate for step in steps]),
        update_seconds=Distribution.of([sum(line.train_split.values()) for line in lines]),
        publish_seconds=statistics.fmean(_until_served(line) for line in lines),
        abstain=1 - sum(episode.score is not None for episode in episodes) / len(episodes),
        success=beta_of([(sum(e.passed for e in r.usable), len(r.usable)) for r in records if r.usable]),
    )


def _until_served(line: IterationMetrics) -> float:
    """Return the seconds in which a version was published to the engines."""
    if line.asynchronous is not None:
        return line.asynchronous.publish
    return sum(line.seconds.get(name, 0.0) for name in ("batch", "sample", "orchestrate"))


def beta_of(groups: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Fit a beta distribution to the success rates of tasks, by moments.

    The variance of group means is that of the success rates plus that of the draws. The share of
    the former is the correlation between two episodes of a group, ``1 / (alpha + beta + 1)``.

    Args:
        groups: Number of passed and of usable episodes of each group.

    Returns:
        Alpha and beta.
    """
    total = sum(count for _, count in groups)
    mean = min(0.99, max(0.01, sum(passed for passed, _ in groups) / total))
    pairs = sum(count * (count - 1) for _, count in groups)
    both = sum(passed * (passed - 1) for passed, _ in groups)
    correlation = (both / pairs - mean**2) / (mean * (1 - mean)) if pairs else 0.5
    concentration = 1 / min(0.99, max(0.01, correlation)) - 1
    return mean * concentration, (1 - mean) * concentration
