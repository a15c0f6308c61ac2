"""A training run's folder, opened by the one flow process that may write its ledger. Opening an existing one resumes it."""

from __future__ import annotations

import fcntl
import importlib.metadata
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from envs.types import ConfigError, Memory, StorageError, WebTask
from tasks_lib.beginning import first_start, free_name
from tasks_lib.checkpoints import with_template
from tasks_lib.config import PROJECT, EvaluateConfig, RunConfig, TrainConfig, WarmStartConfig
from tasks_lib.config import resolve_path as resolve_path
from tasks_lib.differences import differences, lasting
from tasks_lib.evaluation import doubt_evaluations
from tasks_lib.frozen_config import read_frozen, write_frozen
from tasks_lib.mending import mend_run
from tasks_lib.metrics import MetricsLog
from tasks_lib.orders import RolloutOrder
from tasks_lib.rollouts import Rollouts
from tasks_lib.sampling import Draws
from tasks_lib.task_sets import freeze_tasks, read_index, task_paths
from training.disk import remove_leftovers, writing
from training.groups import GroupRecord, GroupSpec
from training.journal import Journal, read_group
from training.store import RunStore, read_json

PACKAGES = ("prefect", "dask", "torch", "transformers", "llamafactory", "deepspeed", "playwright", "miniwob")
"""Whose versions are kept with a run."""

MAY_CHANGE = frozenset({"iterations", "evaluation", "cluster", "root"})
"""Keys that may differ when a run is resumed: they do not change what was already done. So may the budgets of ``rollout.judge`` (`lasting`)."""


class TrainingRun:
    """One run: its store, ledger, metrics and frozen tasks."""

    def __init__(self, config: TrainConfig) -> None:
        config = with_template(config)
        self.config = config
        self.store = RunStore(config.run_dir)
        if (newest := self.store.latest_policy()) is not None:
            self.store.check_policy(newest)
        self.tasks = freeze_tasks(config.tasks, self.store)
        freeze_config(config, self.store)
        doubt_evaluations(self.store)
        self.mended = mend_run(self.store, config)
        """What was done about damaged files when it was opened; a line each."""
        self._draws = Draws(self.store, self.tasks, config)
        self.rollouts = Rollouts(
            self.store, config.policy, config.rollout, config.seed, config.rewards, config.tasks.live
        )
        self.journal = Journal(self.store.journal_path)
        self.journal.rebuild(self.store)
        self.metrics = MetricsLog(self.store.metrics_path, self.store.root / "tensorboard")

    @property
    def version(self) -> int:
        """The newest published policy version."""
        version = self.store.latest_policy()
        if version is None:
            raise StorageError(f"{self.store.root} has no policy yet")
        return version

    def sample(self, iteration: int, draw: int) -> list[GroupSpec]:
        """The groups of an iteration. ``draw`` counts up when a draw had nothing to learn from.

        They depend on the configuration and on the groups of earlier iterations alone, so an interrupted iteration draws the same again.
        """
        return self._draws.groups(iteration, draw)

    def memories(self, version: int) -> dict[str, Memory]:
        """What the task families remember when a version is there, by family; nothing without a memory of families."""
        return self._draws.memories(version)

    def warm_order(self) -> RolloutOrder:
        """What the workers are told when they start."""
        return self.rollouts.warm_order(self.tasks[0], self.version)

    def records(self, group_ids: list[str]) -> list[GroupRecord]:
        """Commit records of these groups."""
        return [read_group(self.store, group_id) for group_id in group_ids]

    def close(self) -> None:
        self.journal.close()
        self.metrics.close()


@contextmanager
def open_run(config: TrainConfig) -> Iterator[TrainingRun]:
    """Open (or resume) the run under its lock."""
    with run_lock(config.run_dir), first_start(RunStore(config.run_dir)):
        run = TrainingRun(config)
        try:
            yield run
        finally:
            run.close()


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold ``run.lock`` and delete what killed processes were writing. The lock dies with its process.

    Raises:
        StorageError: Another process holds it.
        DiskError: The folder cannot be made or written to.
    """
    with writing(run_dir / "run.lock"):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = open(run_dir / "run.lock", "w")  # noqa: SIM115 - closed below
    with lock as file:
        _take(file, run_dir)
        remove_leftovers(run_dir)
        yield


def check_unlocked(run_dir: Path) -> None:
    """``StorageError`` when another process works in this folder. Nothing is made."""
    path = run_dir / "run.lock"
    if path.exists():
        with open(path) as file:
            _take(file, run_dir)


def _take(file: IO[str], run_dir: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(f"another process is working on {run_dir}; wait for it, or give another run_id") from None


def select_kinds(file: Path, kinds: list[str]) -> list[WebTask]:
    """Tasks of a file (or folder, or glob), of all kinds or of those named."""
    return list(read_index(task_paths(str(file)), kinds))


MOST_DIFFERENCES = 12
"""Keys with other values that an error names one by one."""


KINDS = {
    "grid": "a sweep",
    "sources": "a task set",
    "recipe": "a warm start",
    "iterations": "a training run",
    "episodes": "an evaluation",
}
"""What a folder is of, by the first of these keys that its configuration has."""


def check_kind(path: Path, wanted: Collection[str]) -> dict[str, Any]:
    """The document of a ``config.json``, or of its copy.

    Args:
        path: Of the file; it or its copy is there.
        wanted: Keys of the configuration that the folder is to be used for.

    Raises:
        ConfigError: it is of something of another kind.
        StorageError: it is damaged, and its copy too.
    """
    document = read_frozen(path)
    if document is None:
        raise StorageError(f"{path} does not exist")
    found, own = (
        next((kind for key, kind in KINDS.items() if key in keys), "") for keys in (document["config"], wanted)
    )
    if found != own:
        raise ConfigError(
            f"{path.parent} is the folder of {found or 'something else'}, not of {own}; use another run_id, such as "
            f"run_id={free_name(path.parent)}"
        )
    return document


class OtherValuesError(ConfigError):
    """A run is to go on with other values than those that it was started with."""


def check_values(
    config: TrainConfig | EvaluateConfig | WarmStartConfig, store: RunStore, may_change: frozenset[str] = MAY_CHANGE
) -> None:
    """Check that the run in this folder was not started with other values of keys that may not change.

    Raises:
        OtherValuesError: It was; names each.
        StorageError: Nothing says what it was started with.
    """
    if read_frozen(store.config_path) is None:
        if store.group_ids("i*"):
            raise StorageError(
                f"{store.config_path} is gone, so nothing says what the run in {store.root} was started with; "
                f"put back a copy of that file from a backup, or use another run_id"
            )
        return
    values = lasting(with_template(config).model_dump(mode="json"))
    frozen = lasting(with_new_keys(type(config), check_kind(store.config_path, values)["config"]))
    changed = [key for key in values if values[key] != frozen.get(key) and key not in may_change]
    if changed:
        then, now = ({key: tree.get(key) for key in changed} for tree in (frozen, values))
        lines = [f"\n  {key}: {old} then, {new} now" for key, new, old in differences(now, then)]
        raise OtherValuesError(
            f"run {config.run_id} was started with other values of: {', '.join(changed)} (see {store.config_path}); "
            f"use those, or another run_id, such as run_id={free_name(store.root)}{''.join(lines[:MOST_DIFFERENCES])}"
        )


def freeze_config(
    config: TrainConfig | EvaluateConfig | WarmStartConfig, store: RunStore, may_change: frozenset[str] = MAY_CHANGE
) -> None:
    """Keep what a run was started with in its folder. Raises as `check_values`."""
    check_values(config, store, may_change)
    values = config.model_dump(mode="json")
    write_frozen(store.config_path, {"config": values, "versions": versions(), "git_commit": git_commit()})


def finished_result(config: TrainConfig, store: RunStore) -> dict[str, Any] | None:
    """``result.json`` of a run that has all its updates; ``None`` while some are to be done or told of, as of a run that is made longer."""
    if not store.result_path.exists():
        return None
    try:
        result: dict[str, Any] = read_json(store.result_path)
        newest = store.latest_policy()
        if newest is not None and newest < result["updates"]:
            return None  # its last policy was damaged and moved aside: it is made again
        return result if result["updates"] >= config.iterations else None
    except (StorageError, KeyError, TypeError):  # damaged: the run is opened, and writes it again
        return None


def with_new_keys(kind: type[RunConfig | EvaluateConfig], frozen: dict[str, Any]) -> dict[str, Any]:
    """A run's values with the defaults of keys that there were none of when it began; as they are if they are not valid any more."""
    preset = {"preset": frozen["preset"]} if "preset" in frozen else {}
    try:
        known: dict[str, Any] = kind.model_validate({**frozen, **dict.fromkeys(preset, "")}).model_dump(mode="json")
    except ValidationError:
        return frozen
    return {**known, **preset}


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide results."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def git_commit() -> str | None:
    """Commit of the checkout, ``None`` outside of one."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None if found.returncode == 0 else None


def iteration_line(records: list[GroupRecord], details: dict[str, Any]) -> dict[str, Any]:
    """The metrics line of an iteration, from its groups and what else is known of it."""
    from tasks_lib.metrics import mean, success, success_by_kind

    episodes = [episode for record in records for episode in record.episodes]
    usable = [episode for episode in episodes if episode.score is not None]
    return {
        "kind": "iteration",
        "success": success(episodes)["mean"],
        "success_by_kind": success_by_kind(records),
        "steps_mean": mean([float(episode.steps) for episode in usable]),
        "response_tokens_mean": mean([episode.response_tokens / max(episode.steps, 1) for episode in usable]),
        "stop_reasons": {
            str(reason): sum(e.stop_reason == reason for e in episodes) for reason in {e.stop_reason for e in episodes}
        },
        "forms": dict(sum((Counter(episode.forms) for episode in episodes), Counter())),
        "action_errors": dict(sum((Counter(episode.action_errors) for episode in episodes), Counter())),
        "settled": dict(sum((Counter(episode.settled) for episode in episodes), Counter())),
        **details,
    }
