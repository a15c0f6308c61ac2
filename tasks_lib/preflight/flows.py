"""Checks of each flow's configuration before anything is written or started.

The flow itself and ``--dry-run`` use them.

Each function raises the error that the flow would be refused with (``RollwrightError`` with the key
and the fix); otherwise it returns lines on what it found. Endpoints, clusters, live sites and other
machines are not contacted: they need not be there yet, and ``--dry-run`` needs no network. The
judge is asked when the flow begins (`tasks_lib.preflight.tasks.ask_judge`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from envs.browser import find_chromium
from envs.tasks import TaskIndex
from envs.tasks.assembly import is_whole
from envs.types import ConfigError, RollwrightError, Split, StorageError, TaskError, near
from tasks_lib.building.config import BuildTasksConfig
from tasks_lib.building.shards import check_sources, check_splits, plan_of
from tasks_lib.config import (
    ClusterConfig,
    EvaluateConfig,
    RolloutConfig,
    TrainConfig,
    WarmStartConfig,
    resolve_checkpoint,
    resolve_path,
)
from tasks_lib.config.promotion import PromoteConfig
from tasks_lib.config.refusals import describe_value
from tasks_lib.folder.checkpoints import (
    check_checkpoint,
    check_model_template,
    check_unchanged,
    evaluated_version,
)
from tasks_lib.folder.derived import with_derived
from tasks_lib.folder.lock import check_unlocked
from tasks_lib.folder.promotion import choose_promotion
from tasks_lib.folder.task_sets import check_uploads, task_root, tasks_of
from tasks_lib.folder.trackers import check_trackers
from tasks_lib.folder.values import ChangedValuesError, check_values, finished_result
from tasks_lib.preflight.extensions import check_extensions
from tasks_lib.preflight.serving import check_serving
from tasks_lib.preflight.tasks import Gradable, check_gradable, check_sites, refuse_pictures, some_of
from tasks_lib.processes.approval import check_can_be_approved
from tasks_lib.regrading.batches import Regrading
from tasks_lib.regrading.config import RegradeConfig
from tasks_lib.rollouts.evaluation import evaluation_groups, fit_default, is_outdated
from tasks_lib.simulation.compare import base_of
from tasks_lib.simulation.config import SimulateConfig
from tasks_lib.sweeps.approval import check_budget
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.sweeps.sweeping import arms_of, describe_dropped, dropped_arms
from tasks_lib.warm_start.stages import MAY_CHANGE, check_enough, check_output, output_of, select_demonstrable
from tasks_lib.warm_start.successes import check_runs
from tasks_lib.worker.reward_stage import judge_account
from training.config import TrainerConfig
from training.ledger.store import RunStore
from training.policy.templates import template_names, template_source
from training.settings import Settings

NOTHING = ".nothing"
"""Name of a folder that is never made."""

_last_check: ContextVar[tuple[Settings, list[str]] | None] = ContextVar("rollwright_last_check", default=None)


@contextmanager
def reuse_check(config: Settings, lines: list[str]) -> Iterator[None]:
    """Have `check_once` reuse these lines for this configuration inside; it checks any other."""
    token = _last_check.set((config, lines))
    try:
        yield
    finally:
        _last_check.reset(token)


def check_once(check: Callable[[Any], list[str]], config: Settings) -> list[str]:
    """Return ``check(config)``, or its result from the command line that started this flow.

    Reading a large task set twice would take long.
    """
    known = _last_check.get()
    return known[1] if known is not None and known[0] == config else check(config)


def check_training(config: TrainConfig, *, in_use: bool = False, here: bool = True) -> list[str]:
    """Check a configuration of ``flows.train``.

    Args:
        config: Configuration to check.
        in_use: True if another process may be working on the run.
        here: True if the flow will run on this machine, with its LLaMA-Factory, its vLLM and,
            without a cluster elsewhere, its browser.

    Raises:
        ConfigError: a kind, site or log-in cannot be used, tasks could never be graded, there is no
            such chat template, the vLLM servers would not start, or the run was started with other
            values.
        TaskError: task files cannot be read.
        PolicyError: there is no checkpoint.
        BrowserError: there is no Chromium, or ``ROLLWRIGHT_CHROMIUM`` names none.
        StorageError: another process works on the run, or the judge's spending cannot be counted.
    """
    folder = RunStore(config.run_dir)
    check_folder(folder.root, in_use=in_use)
    config = with_derived(config)
    refused, store = _check_resumable(folder, lambda: check_values(config, folder))
    version, evaluated = store.latest_policy(), Split(config.evaluation.split)
    if finished_result(config, store):
        return [f"{store.root} is finished: only its result is read"]
    lines = _check_tasks(config, store, (Split.TRAIN, evaluated), config.evaluation.episodes, evaluated)
    if version is None:
        check_checkpoint(resolve_checkpoint(config.policy.checkpoint))
        check_model_template(resolve_checkpoint(config.policy.checkpoint), config.policy.template)
    else:
        store.check_policy(version)
        lines.append(f"{store.root} is there, and goes on after version {version} of {config.iterations}")
    if here:
        check_trackers(config.trackers)
        lines += slow_precision(config.trainer)
        _check_template(config.policy.template)
        served = resolve_checkpoint(config.policy.checkpoint) if version is None else store.policy_path(version)
        lines += check_serving(config.serving, store, served, config.trainer.adapter_rank)
    if refused is not None:
        raise refused
    if here:
        _check_browser(config.rollout, config.cluster)
    return lines


def check_evaluation(config: EvaluateConfig) -> list[str]:
    """Check a configuration of ``flows.evaluate``. Raises the errors of `check_training`."""
    folder = RunStore(config.run_dir)
    check_folder(folder.root)
    config = with_derived(config)
    refused, store = _check_resumable(folder, lambda: check_values(config, folder))
    if config.policy_endpoint is not None:
        config.policy_endpoint.read_key()
    checkpoint = resolve_checkpoint(config.policy.checkpoint).resolve()
    version = evaluated_version(store, checkpoint)
    check_unchanged(store, version, checkpoint)
    if store.evaluation_path(version).exists() and not is_outdated(store, version):
        return [f"{store.root} is finished: only its result is read"]
    split = Split(config.split)
    lines = _check_tasks(config, store, (split,), config.episodes, split)
    if store.latest_policy() is None:
        check_checkpoint(checkpoint)
        check_model_template(checkpoint, config.policy.template)
    else:
        store.check_policy(version)
    if not config.cluster.address:  # else the workers have a LLaMA-Factory of their own
        _check_template(config.policy.template)
    lines += check_serving(config.serving, store, checkpoint)
    if refused is not None:
        raise refused
    _check_browser(config.rollout, config.cluster)
    return lines


def check_warm_start(config: WarmStartConfig) -> list[str]:
    """Check a configuration of ``flows.warm_start``.

    Raises:
        ConfigError: a kind has no oracle, there are too few pages, the output folder may not be
            replaced, there is no such chat template, a teacher's key is not set, or the warm start
            began with other values.
        TaskError: task files cannot be read.
        PolicyError: there is no base checkpoint.
        BrowserError: there is no Chromium, or ``ROLLWRIGHT_CHROMIUM`` names none.
        StorageError: another process works on it.
    """
    folder = RunStore(config.run_dir)
    check_folder(folder.root)
    config = with_derived(config)
    refused, store = _check_resumable(folder, lambda: check_values(config, folder, MAY_CHANGE))
    check_output(config)
    check_extensions(config)
    check_runs([resolve_path(run) for run in config.episodes])
    if config.teacher is not None:
        config.teacher.read_key()
    tasks = select_demonstrable(config)
    check_enough(tasks, config)
    if config.base and store.latest_policy() is None:
        check_checkpoint(resolve_checkpoint(config.base), "base")
        check_model_template(resolve_checkpoint(config.base), config.policy.template)
    lines = [describe_tasks(TaskIndex.build(tasks))]
    if refused is not None:
        _check_template(config.policy.template)
        raise refused
    if output_of(config).exists():
        return [*lines, f"{output_of(config)} is finished: only its record is read"]
    _check_writable(output_of(config).parent, "choose another output")
    _check_template(config.policy.template)
    _check_browser(config.rollout, config.cluster)
    return lines


def check_build(config: BuildTasksConfig) -> list[str]:
    """Check a configuration of ``flows.build_tasks``.

    Raises:
        ConfigError: a source does not exist, a split would have no task, or the set was started
            with other values.
        StorageError: another process works on it, or the folder holds something else.
    """
    check_folder(config.run_dir)
    check_sources(config)
    if is_whole(plan_of(config)):
        return [f"{config.run_dir} is finished: only its manifest is read"]
    begun = (config.run_dir / "config.json").exists()  # its values cannot change any more
    return [] if begun else check_splits(config)


def check_simulation(config: SimulateConfig) -> list[str]:
    """Check a configuration of ``flows.simulate``.

    Raises:
        ConfigError, StorageError: its run gives no times.
    """
    base_of(config)
    return []


def check_regrading(config: RegradeConfig) -> list[str]:
    """Check a configuration of ``flows.regrade``.

    Raises:
        ConfigError: the folder has no episodes, or the tasks are not those that were attempted.
        StorageError: another process grades under that name, or the judge's spending cannot be
            counted.
    """
    regrading = Regrading(config)
    check_folder(regrading.folder)
    regrading.check_settings()
    regrading.account()
    return [f"{len(regrading.remaining())} of {len(regrading.episodes)} episodes are to be graded"]


def check_promotion(config: PromoteConfig) -> list[str]:
    """Check a configuration of ``flows.promote``.

    Raises:
        ConfigError: there is no such run, version or alias, or no person could approve.
        StorageError: the version is damaged, or its weights were removed.
    """
    if config.approval and not config.remove:
        check_can_be_approved("approval")
    return [choose_promotion(config).describe()]


def check_sweep(config: SweepConfig) -> list[str]:
    """Check a configuration of ``flows.sweep`` that a person starts.

    Every unfinished arm is checked by `check_training`. Arms may be under way elsewhere, and arms
    of a deployment will run elsewhere. The flow itself starts the arms that it can; there an arm
    that is refused is a failed one.

    Raises:
        ConfigError: an arm would be refused, with its name, or has begun with other values.
        StorageError: another process works on the sweep.
    """
    check_folder(config.run_dir)
    refused: ConfigError | None = None
    try:
        arms = arms_of(config)
        lines = [describe_dropped(record) for record in dropped_arms(config, arms)]
    except ChangedValuesError as error:  # raised after errors of single values
        refused, arms, lines = error, config.all_arms(), []
    check_budget(config, [arm for arm in arms if not RunStore(arm.config.run_dir).result_path.exists()])
    for arm in arms:
        try:
            *_, last = check_training(arm.config, in_use=True, here=not config.deployment)
        except RollwrightError as error:
            named = ConfigError(f"arm {arm.run_id}: {error}")
            if not isinstance(error, ChangedValuesError):
                raise named from error
            refused = refused or named
            continue
        lines += [last] if arm.config.run_dir.exists() else []
    if refused is not None:
        raise refused
    return lines


def _check_resumable(folder: RunStore, check: Callable[[], None]) -> tuple[ConfigError | None, RunStore]:
    """Return why a run may not go on in its folder, and the folder to check: an empty one if so.

    Thus an invalid value is reported before the fact that the values are not those of the run.
    """
    try:
        check()
    except ConfigError as error:
        return error, RunStore(folder.root / NOTHING)
    return None, folder


def _check_tasks(
    config: TrainConfig | EvaluateConfig, store: RunStore, splits: tuple[Split, ...], episodes: int, evaluated: Split
) -> list[str]:
    try:
        tasks = tasks_of(config.tasks, store)
    except TaskError as error:
        raise TaskError(str(error) if str(error).startswith("tasks.") else f"tasks.file: {error}") from error
    lines = [describe_tasks(tasks)]
    check_extensions(config)
    if not store.config_path.exists():  # a run has copies
        check_uploads(tasks, task_root(config.tasks.file))
    check_sites(tasks, config.tasks, read_logins=not config.cluster.address)
    refuse_pictures(some_of(tasks, splits))
    check_gradable(tasks, Gradable(config.rollout, config.rewards, config.tasks.live), splits, lines.append)
    if isinstance(config, EvaluateConfig) and (fitting := fit_default(episodes, tasks, evaluated)) != episodes:
        lines.append(f"{fitting} episodes: the tasks have no more {evaluated} seeds")
        episodes = fitting
    try:
        evaluation_groups(tasks, phase="e000000", episodes=episodes, split=evaluated)
    except ConfigError as error:
        key = "evaluation.episodes" if isinstance(config, TrainConfig) else "episodes"
        raise ConfigError(f"{key}: {error}") from error
    judge_account(config.rollout.judge, store.spent_path())
    return lines


def slow_precision(trainer: TrainerConfig, cpu: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return a warning of bfloat16 on a CPU without instructions for its matrix products.

    These products take 16 to 500 times as long as in float32.
    """
    if not trainer.bf16 or not cpu.exists() or " amx_bf16" in cpu.read_text():
        return []
    import torch  # two seconds and 180 MB of each process that starts a flow, for bfloat16 alone

    if torch.cuda.is_available():
        return []
    return [
        "warning: trainer.bf16 on a CPU without AMX is many times slower than float32; leave it out, or set it to false"
    ]


def _check_template(template: str) -> None:
    """Raise ``ConfigError`` if LLaMA-Factory has no such chat template.

    If its templates are not known, none is refused.
    """
    names = template_names()
    if names and template not in names:
        raise ConfigError(
            f"policy.template: got {describe_value(template)}; {near(template, names)}"
            f"allowed: one of LLaMA-Factory's {len(names)} chat templates (in {template_source()})"
        )


def _check_browser(rollout: RolloutConfig, cluster: ClusterConfig) -> None:
    """Raise ``BrowserError`` if this machine has to start a browser and has none."""
    if not rollout.browser_address and not cluster.address:
        find_chromium()


def check_folder(folder: Path, *, in_use: bool = False) -> None:
    """Check that a folder can be made or written to, and is not in use, unless ``in_use``."""
    _check_writable(folder, "choose another root or run_id")
    if not in_use:
        check_unlocked(folder)


def _check_writable(folder: Path, fix: str) -> None:
    """Raise ``StorageError`` with the ``fix`` if a folder cannot be made or written to.

    Leaves nothing behind.
    """
    try:
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            what = "may not be written to" if existing.is_dir() else "is no folder"
            raise StorageError(f"{folder} cannot be used: {existing} {what}; {fix}")
        if existing != folder:
            # Only a trial shows it: /proc claims to be writable, and some names are too long. The
            # trial is made in a folder of our own, which no other process uses.
            with tempfile.TemporaryDirectory(prefix=".rollwright-", dir=existing) as trial:
                (Path(trial) / folder.relative_to(existing)).mkdir(parents=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror}; {fix}") from error


def describe_tasks(tasks: TaskIndex) -> str:
    """Return the numbers of tasks, kinds and sites in words."""
    rows, kinds, sites = (
        f"{count:,} {word}{'s' * (count != 1)}"
        for count, word in ((len(tasks), "task"), (len(tasks.kinds), "kind"), (len(tasks.sites), "site"))
    )
    return f"{rows} of {kinds} on {sites}"
