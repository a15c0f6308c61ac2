"""What a flow is asked for, looked at before anything is written or started: by the flow itself, and by ``--dry-run``.

Each function raises what the flow would be refused for (``RollwrightError`` with the key and the fix), and otherwise gives lines of what was found.
Endpoints, clusters and live sites are not asked: they need not be there yet.
"""

from __future__ import annotations

import os
from pathlib import Path

from envs.tasks import TaskIndex
from envs.tasks.build import is_whole
from envs.types import ConfigError, RollwrightError, Split, StorageError, TaskError
from tasks_lib.build_config import BuildTasksConfig
from tasks_lib.building import check_sources, plan_of
from tasks_lib.checkpoints import check_checkpoint
from tasks_lib.checks import Gradable, check_gradable, check_sites
from tasks_lib.config import EvaluateConfig, TrainConfig, WarmStartConfig, resolve_path
from tasks_lib.planning import evaluation_groups
from tasks_lib.regrading import RegradeConfig, Regrading
from tasks_lib.rewards import judge_account
from tasks_lib.run import check_unlocked, check_values, finished_result
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.sweeps.sweeping import arms_of, dropped_arms, dropped_told
from tasks_lib.task_sets import tasks_of
from tasks_lib.warm_start import MAY_CHANGE, check_enough, check_output, output_of, select_demonstrable
from training.store import RunStore


def look_at_training(config: TrainConfig, *, in_use: bool = False) -> list[str]:
    """Of ``flows.train``.

    Args:
        in_use: Another process may be working on the run.

    Raises:
        ConfigError: a kind, site or log-in cannot be used, tasks could never be graded, or the run was started with other values.
        TaskError: task files that cannot be read.
        PolicyError: no checkpoint.
        StorageError: another process works on the run, or it cannot be counted what the judge spends.
    """
    store = RunStore(config.run_dir)
    _check_place(store.root, in_use=in_use)
    check_values(config, store)
    version, evaluated = store.latest_policy(), Split(config.evaluation.split)
    if finished_result(config, store):
        return [f"{store.root} is finished: only its result is read"]
    lines = _look(config, store, (Split.TRAIN, evaluated), config.evaluation.episodes, evaluated)
    if version is None:
        check_checkpoint(resolve_path(config.policy.checkpoint))
    else:
        lines.append(f"{store.root} is there, and goes on after version {version} of {config.iterations}")
    return lines


def look_at_evaluation(config: EvaluateConfig) -> list[str]:
    """Of ``flows.evaluate``. Raises as `look_at_training`."""
    store = RunStore(config.run_dir)
    _check_place(store.root)
    check_values(config, store)
    if store.evaluation_path(0).exists():
        return [f"{store.root} is finished: only its result is read"]
    split = Split(config.split)
    lines = _look(config, store, (split,), config.episodes, split)
    if store.latest_policy() is None:
        check_checkpoint(resolve_path(config.policy.checkpoint))
    return lines


def look_at_warm_start(config: WarmStartConfig) -> list[str]:
    """Of ``flows.warm_start``.

    Raises:
        ConfigError: a kind without an oracle, too few pages, a folder that is not replaced, or a warm start that began with other values.
        TaskError: task files that cannot be read.
        PolicyError: no base.
        StorageError: another process works on it.
    """
    store = RunStore(config.run_dir)
    _check_place(store.root)
    check_values(config, store, MAY_CHANGE)
    check_output(config)
    tasks = select_demonstrable(config)
    check_enough(tasks, config)
    if config.base and store.latest_policy() is None:
        check_checkpoint(resolve_path(config.base), "base")
    told = f"{output_of(config)} is finished: only its record is read" if output_of(config).exists() else ""
    return [_told(TaskIndex.build(tasks)), *filter(None, [told])]


def look_at_build(config: BuildTasksConfig) -> list[str]:
    """Of ``flows.build_tasks``.

    Raises:
        ConfigError: a source is not there, or the set was started with other values.
        StorageError: another process works on it, or the folder holds something else.
    """
    _check_place(config.run_dir)
    check_sources(config)
    return [f"{config.run_dir} is finished: only its manifest is read"] if is_whole(plan_of(config)) else []


def look_at_regrading(config: RegradeConfig) -> list[str]:
    """Of ``flows.regrade``.

    Raises:
        ConfigError: a folder without episodes, or tasks that are not those that were attempted.
        StorageError: another process grades under that name, or it cannot be counted what the judge spends.
    """
    regrading = Regrading(config)
    _check_place(regrading.folder)
    regrading.check_settings()
    regrading.account()
    return [f"{len(regrading.left())} of {len(regrading.episodes)} episodes are to be graded"]


def look_at_sweep(config: SweepConfig) -> list[str]:
    """Of ``flows.sweep``, started by a person: every arm that is not finished as `look_at_training`; they may be under way elsewhere.

    The flow itself starts what it can: there an arm that is refused is one that failed.

    Raises:
        ConfigError: an arm would be refused, with its name, or has begun with other values.
        StorageError: another process works on the sweep.
    """
    _check_place(config.run_dir)
    arms = arms_of(config)
    lines = [dropped_told(record) for record in dropped_arms(config, arms)]
    for arm in arms:
        try:
            *_, last = look_at_training(arm.config, in_use=True)
        except RollwrightError as error:
            raise ConfigError(f"arm {arm.run_id}: {error}") from error
        lines += [last] if arm.config.run_dir.exists() else []
    return lines


def _look(
    config: TrainConfig | EvaluateConfig, store: RunStore, splits: tuple[Split, ...], episodes: int, evaluated: Split
) -> list[str]:
    try:
        tasks = tasks_of(config.tasks, store)
    except TaskError as error:
        raise TaskError(str(error) if str(error).startswith("tasks.") else f"tasks.file: {error}") from error
    lines = [_told(tasks)]
    check_sites(tasks, config.tasks, read_logins=not config.cluster.address)
    check_gradable(tasks, Gradable(config.rollout, config.rewards, config.tasks.live), splits, lines.append)
    try:
        evaluation_groups(tasks, phase="e000000", episodes=episodes, split=evaluated)
    except ConfigError as error:
        key = "evaluation.episodes" if isinstance(config, TrainConfig) else "episodes"
        raise ConfigError(f"{key}: {error}") from error
    judge_account(config.rollout.judge, store.spent_path())
    return lines


def _check_place(folder: Path, *, in_use: bool = False) -> None:
    """A folder that is not there can be made, and nobody else works in one that is, unless ``in_use``."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "may not be written to" if there.is_dir() else "is no folder"
        raise StorageError(f"{folder} cannot be used: {there} {what}; choose another root or run_id")
    if not in_use:
        check_unlocked(folder)


def _told(tasks: TaskIndex) -> str:
    rows, kinds, sites = (
        f"{count:,} {word}{'s' * (count != 1)}"
        for count, word in ((len(tasks), "task"), (len(tasks.kinds), "kind"), (len(tasks.sites), "site"))
    )
    return f"{rows} of {kinds} on {sites}"
