"""Configuration values of a folder: written once, compared when it is opened again."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envs.types import ConfigError, StorageError
from tasks_lib.config import PROJECT, EvaluateConfig, RunConfig, TrainConfig, WarmStartConfig
from tasks_lib.config import resolve_path as resolve_path
from tasks_lib.config.differences import comparable_settings, differences
from tasks_lib.folder.derived import with_derived
from tasks_lib.folder.failed_start import free_name
from tasks_lib.folder.frozen_config import TASKS_SHA256, read_frozen, write_frozen
from tasks_lib.folder.repair import check_evaluations
from tasks_lib.folder.task_sets import check_frozen_tasks
from tasks_lib.processes.prefect_run import describe_start
from training.ledger.seal import sha256_of
from training.ledger.store import RunStore, read_json

PACKAGES = ("prefect", "dask", "torch", "transformers", "llamafactory", "deepspeed", "playwright", "miniwob")
"""Packages whose versions are recorded with a run."""

BROWSER = "chromium"
"""Key of the workers' browsers among the versions (`record_browsers`)."""


STARTED = "started"
"""Key of who started the run, and under which names (`describe_start`)."""

MAY_CHANGE = frozenset({"iterations", "evaluation", "cluster", "root"})
"""Keys that may differ when a run is resumed, because they do not change finished work.

The budgets of ``rollout.judge`` may differ too (`comparable_settings`).
"""


MAX_DIFFERENCES = 12
"""Maximum number of changed keys that an error names one by one."""


KINDS = {
    "grid": "a sweep",
    "sources": "a task set",
    "recipe": "a warm start",
    "iterations": "a training run",
    "episodes": "an evaluation",
    "agent": "a batch",
}
"""Kind of a folder, by the first of these keys that its configuration has."""


def check_kind(path: Path, wanted: Collection[str]) -> dict[str, Any]:
    """Return the document of a ``config.json``, or of its copy.

    Args:
        path: Path of the file; it or its copy exists.
        wanted: Keys of the configuration that the folder is to be used for.

    Raises:
        ConfigError: the folder is of another kind.
        StorageError: the file is damaged, and its copy too.
    """
    document = read_frozen(path)
    if document is None:
        raise StorageError(f"{path} does not exist")
    theirs, own = (
        next((kind for key, kind in KINDS.items() if key in keys), "") for keys in (document["config"], wanted)
    )
    if theirs != own:
        raise ConfigError(
            f"{path.parent} is the folder of {theirs or 'something else'}, not of {own}; use another run_id, such as "
            f"run_id={free_name(path.parent)}"
        )
    return document


class ChangedValuesError(ConfigError):
    """A run is resumed with other values than those that it was started with."""


def check_values(
    config: TrainConfig | EvaluateConfig | WarmStartConfig, store: RunStore, may_change: frozenset[str] = MAY_CHANGE
) -> None:
    """Check that keys that may not change have the values that the run was started with.

    Raises:
        ChangedValuesError: they have not; names each.
        StorageError: nothing says what it was started with.
    """
    if read_frozen(store.config_path) is None:
        if store.group_ids("i*"):
            raise StorageError(
                f"{store.config_path} is gone, so nothing says what the run in {store.root} was started with; "
                f"put back a copy of that file from a backup, or use another run_id"
            )
        return
    values = comparable_settings(with_derived(config).model_dump(mode="json"))
    frozen = comparable_settings(add_new_defaults(type(config), check_kind(store.config_path, values)["config"]))
    changed = [key for key in values if values[key] != frozen.get(key) and key not in may_change]
    if changed:
        then, now = ({key: tree.get(key) for key in changed} for tree in (frozen, values))
        lines = [f"\n  {key}: {old} then, {new} now" for key, new, old in differences(now, then)]
        raise ChangedValuesError(
            f"run {config.run_id} was started with other values of: {', '.join(changed)} (see {store.config_path}); "
            f"use those, or another run_id, such as run_id={free_name(store.root)}{''.join(lines[:MAX_DIFFERENCES])}"
        )


def freeze_config(
    config: TrainConfig | EvaluateConfig | WarmStartConfig, store: RunStore, may_change: frozenset[str] = MAY_CHANGE
) -> None:
    """Write a run's configuration to its folder. Raises as `check_values`."""
    check_values(config, store, may_change)
    values = config.model_dump(mode="json")
    tasks = {TASKS_SHA256: sha256_of(store.tasks_path)} if store.tasks_path.exists() else {}
    frozen = read_frozen(store.config_path)
    known = (frozen or {}).get("versions", {})
    browsers = {name: known[name] for name in (BROWSER,) if name in known}
    started = describe_start() if frozen is None else frozen.get(STARTED, {})  # by whom it was started first
    document = {"config": values, "versions": versions() | browsers, "git_commit": git_commit(), STARTED: started}
    document |= tasks
    write_frozen(store.config_path, document)


def record_browsers(store: RunStore, browsers: Iterable[str]) -> None:
    """Add the browsers of the workers to the versions in ``config.json``, separated by commas.

    Raises:
        StorageError: it cannot be read or written.
    """
    document = read_frozen(store.config_path)
    assert document is not None, "a run that has workers has a configuration"
    document["versions"] = {**document["versions"], BROWSER: ", ".join(sorted(set(browsers)))}
    write_frozen(store.config_path, document)


def finished_result(config: TrainConfig, store: RunStore) -> dict[str, Any] | None:
    """Return ``result.json`` of a run that has all its updates, else ``None``.

    Updates are missing where a run is made longer.
    """
    if not store.result_path.exists():
        return None
    try:
        check_frozen_tasks(store)
        check_evaluations(store)
        result: dict[str, Any] = read_json(store.result_path)
        newest = store.latest_policy()
        if newest is not None and newest < result["updates"]:
            return None  # its last policy was damaged and moved aside: it is made again
        return result if result["updates"] >= config.iterations else None
    except (StorageError, KeyError, TypeError):  # damaged: the opened run writes it again
        return None


def add_new_defaults(kind: type[RunConfig | EvaluateConfig], frozen: dict[str, Any]) -> dict[str, Any]:
    """Return a run's values with defaults for keys that are newer than the run.

    Values that are no longer valid are returned as they are.
    """
    preset = {"preset": frozen["preset"]} if "preset" in frozen else {}
    try:
        known: dict[str, Any] = kind.model_validate({**frozen, **dict.fromkeys(preset, "")}).model_dump(mode="json")
    except ValidationError:
        return frozen
    return {**known, **preset}


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect results."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def git_commit() -> str | None:
    """Return the commit of the checkout, ``None`` outside one."""
    try:
        completed = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # no git on this machine, as in the images
        return None
    return completed.stdout.strip() or None if completed.returncode == 0 else None
