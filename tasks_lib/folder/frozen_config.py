"""Frozen configuration of a folder: ``config.json`` and a backup copy.

One damaged file does not lose it. Without it nothing could refuse changed keys, so a damaged one
never counts as missing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from envs.types import ConfigError, StorageError
from tasks_lib.config import EvaluateConfig, TrainConfig
from training.ledger.store import RunStore, read_json, write_json

COPY = "config.copy.json"
"""Name of the copy beside ``config.json``, written after it."""
TASKS_SHA256 = "tasks_sha256"
"""Key of the hash of ``tasks.jsonl``."""
logger = logging.getLogger(__name__)


def write_frozen(path: Path, document: dict[str, Any]) -> None:
    """Write ``config.json`` and its copy."""
    for target in (path, path.with_name(COPY)):
        write_json(target, document, sealed=True)


def read_frozen(path: Path) -> dict[str, Any] | None:
    """Read ``config.json``, or its copy where it is damaged or missing. ``None`` if neither was
    written.

    Raises:
        StorageError: both are damaged, or the only one.
    """
    copy = path.with_name(COPY)
    try:
        return _document(path) if path.exists() or not copy.exists() else _from_copy(path, "is gone")
    except FileNotFoundError:
        return None
    except StorageError as error:
        try:
            return _from_copy(path, "is damaged")
        except (StorageError, FileNotFoundError):
            raise StorageError(
                f"{error}, so nothing says what {path.parent} was started with; "
                f"put back a copy of that file from a backup, or use another run_id"
            ) from error


def started_config(store: RunStore) -> TrainConfig | EvaluateConfig:
    """Return the configuration in a run's folder.

    Raises:
        ConfigError: There is none.
        StorageError: It is damaged, and so is its copy.
    """
    document = read_frozen(store.config_path)
    if document is None:
        raise ConfigError(
            f"run: {store.root} has no {store.config_path.name}, so it is no folder of a run; "
            f"give one such as runs/quickstart-seed0"
        )
    frozen = document["config"]
    if "iterations" not in frozen:
        return EvaluateConfig.model_validate(frozen)
    return TrainConfig.model_validate({**frozen, "preset": ""})


def _from_copy(path: Path, what: str) -> dict[str, Any]:
    document = _document(path.with_name(COPY))
    logger.warning("%s %s; its copy %s is used", path, what, COPY)
    return document


def _document(path: Path) -> dict[str, Any]:
    """Read one of the files; ``FileNotFoundError`` if it is missing, ``StorageError`` if it is
    damaged."""
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        document = read_json(path)
    except StorageError as error:
        raise StorageError(str(error).partition(";")[0]) from error
    if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
        raise StorageError(f"{path} is damaged: it holds no configuration")
    return document
