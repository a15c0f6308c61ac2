"""File lock of a run's folder: one process at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from envs.types import StorageError
from tasks_lib.config import resolve_path as resolve_path
from training.ledger.disk import raise_disk_errors, remove_leftovers


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold ``run.lock`` and delete leftovers of killed processes. The lock ends with its process.

    Raises:
        StorageError: another process holds it.
        DiskError: the folder cannot be made or written to.
    """
    with raise_disk_errors(run_dir / "run.lock"):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = open(run_dir / "run.lock", "w")  # noqa: SIM115 - closed below
    with lock as file:
        _acquire(file, run_dir)
        remove_leftovers(run_dir)
        yield


def check_unlocked(run_dir: Path) -> None:
    """Raise ``StorageError`` if another process works in this folder. No file is made."""
    path = run_dir / "run.lock"
    if path.exists():
        with open(path) as file:
            _acquire(file, run_dir)


def _acquire(file: IO[str], run_dir: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(f"another process is working on {run_dir}; wait for it, or give another run_id") from None
