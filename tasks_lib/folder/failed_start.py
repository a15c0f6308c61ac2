"""Removes what a failed start wrote, so that its run name can be reused.

It is done only where the start failed before anything else was done.

No cluster, no server, no trainer, Ctrl-C while they start. What was done is never touched: episodes, metrics, a trained policy, or any file that no
start makes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.ledger.store import RunStore

MADE_BY_START = frozenset(
    {
        *(
            "config.copy.json",
            "config.json",
            "journal.sqlite",
            "live",
            "metrics.jsonl",
            "policies",
            "report",
            "run.lock",
        ),
        *("task_files", "task_files.json", "tasks.json", "tasks.jsonl", "tensorboard", "trainer"),
    }
)
"""Names in a run's folder before its first episode. Anything else is work, whatever it is."""
TAKEN_BACK = (
    "config.copy.json",
    "config.json",
    "journal.sqlite",
    "policies",
    "task_files",
    "task_files.json",
    "tasks.json",
    "tasks.jsonl",
)
"""Those of them that a later start would go on from. Logs and reports stay: an error may name them."""


def has_begun(store: RunStore) -> bool:
    """Whether a folder holds work: episodes, metrics, or a policy that is no copy of a checkpoint."""
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
    """Around all that is done in a folder, under its lock.

    If this is its first start, and ends with an error before anything was done, the folder is
    as if it had not been.
    """
    first = not store.config_path.exists()
    try:
        yield
    except BaseException:
        if first and not has_begun(store):
            for path in (store.root / name for name in TAKEN_BACK):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise


def free_name(folder: Path) -> str:
    """A name for a run that would otherwise be in ``folder``: ``mine-2``, or the first number after it that is free."""
    number = 2
    while os.path.lexists(folder.with_name(f"{folder.name}-{number}")):
        number += 1
    return f"{folder.name}-{number}"


def _holds_something(path: Path) -> bool:
    return not path.is_dir() or any(each.is_file() for each in path.rglob("*"))
