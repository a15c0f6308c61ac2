"""File lock of a run's folder: one process at a time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from envs.types import StorageError
from tasks_lib.config import resolve_path as resolve_path
from training.ledger.disk import raise_disk_errors, remove_leftovers

LOOK_SECONDS = 1.0
"""Seconds for which a start waits for the lock, which a look at it holds for a moment."""
RETRY_SECONDS = 0.02


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
        _acquire(file, run_dir, fcntl.LOCK_EX, LOOK_SECONDS)
        remove_leftovers(run_dir)
        yield


def check_unlocked(run_dir: Path) -> None:
    """Raise ``StorageError`` if another process works in this folder. No file is made."""
    path = run_dir / "run.lock"
    if path.exists():
        with open(path) as file:
            _acquire(file, run_dir, fcntl.LOCK_SH)


def _acquire(file: IO[str], run_dir: Path, kind: int, patience: float = 0.0) -> None:
    end = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                break
        time.sleep(RETRY_SECONDS)
    raise StorageError(f"another process is working on {run_dir}; wait for it, or give another run_id")
