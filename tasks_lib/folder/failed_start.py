"""Removes the files of a failed start, so that its run name can be reused.

A start fails when there is no cluster, server or trainer, or at Ctrl-C while they start. Results
are never removed: episodes, metrics, a trained policy, or any file that no start makes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.ledger.store import RunStore

REMOVED_FILES = frozenset(
    [
        "config.copy.json",
        "config.json",
        "journal.sqlite",
        "policies",
        "task_files",
        "task_files.json",
        "tasks.json",
        "tasks.jsonl",
    ]
)
"""Files of a start that a later start would go on from.

Logs and reports stay: an error may name them.
"""
MADE_BY_START = REMOVED_FILES.union(
    ["judge_spent.sqlite", "live", "metrics.jsonl", "report", "run.lock", "tensorboard", "trainer"]
)
"""Names in a run's folder before its first episode. Anything else counts as work."""


def has_begun(store: RunStore) -> bool:
    """Return True if a folder holds work.

    Work is episodes, metrics, or a policy that is no copy of a checkpoint.
    """
    if not store.root.is_dir():
        return False
    others = (path for path in store.root.iterdir() if path.name not in MADE_BY_START and not path.name.startswith("."))
    if any(map(_holds_something, others)):
        return True
    if store.metrics_path.exists() and store.metrics_path.stat().st_size:
        return True
    return any(store.manifest(version).get("parent") is not None for version in store.versions())


@contextmanager
def undo_failed_start(store: RunStore) -> Iterator[None]:
    """Remove the files of a folder's first start if the block fails before any work.

    It surrounds all work in a folder, under the folder's lock.
    """
    first = not store.config_path.exists()
    try:
        yield
    except BaseException:
        if first and not has_begun(store):
            for path in (store.root / name for name in REMOVED_FILES):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise


def free_name(folder: Path) -> str:
    """Return a free name for a run beside ``folder``: ``mine-2``, or the next free number."""
    number = 2
    while os.path.lexists(folder.with_name(f"{folder.name}-{number}")):
        number += 1
    return f"{folder.name}-{number}"


def _holds_something(path: Path) -> bool:
    return not path.is_dir() or any(child.is_file() for child in path.rglob("*"))
