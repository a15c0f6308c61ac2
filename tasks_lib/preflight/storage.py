"""Checks that a folder can hold runs: rename, exclusive creation, locks, space, clock.

The checks write a small hidden folder there, and remove it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from envs.types import ConfigError
from tasks_lib.preflight import locks
from tasks_lib.preflight.findings import Finding, guarded
from tasks_lib.preflight.locks import held_locks
from training.ledger.disk import raise_disk_errors
from training.ledger.store import atomic_write_bytes, write_json_once

FREE_BYTES = 2 * 10**9
"""Least free space in bytes, enough for a short run of the shipped policy.

Weights of 2 billion parameters take twice that for each version kept.
"""
CLOCK_SECONDS = 2.0
"""Largest difference in seconds between the storage's clock and ours that gets no note."""
RENAMES = 20
RENAMED_BYTES = 2**16
SECOND_PROCESS_SECONDS = 20.0
OTHER_STORAGE = (
    "put the runs on another file system (root=FOLDER, --storage FOLDER); docs/scaling.md says what it needs"
)
NFS_LOCKS = "mount it with locks (NFS: version 4, no nolock or local_lock), or put the runs on another file system"


def storage_place(storage: Path, *, named: bool) -> Path:
    """Return the absolute folder to check.

    If the user did not name the folder (``named``), it need not exist yet. Then this is the folder
    in which it will be made.

    Raises:
        ConfigError: the folder does not exist, or is a file.
    """
    place = storage.expanduser().absolute()
    if not named:
        place = next(folder for folder in (place, *place.parents) if folder.exists())
    if not place.is_dir():
        reason = "is a file" if place.exists() else "is not there"
        raise ConfigError(f"{place} {reason}; make that folder, mount its file system, or name another (--storage)")
    return place


@contextmanager
def probe_folder(place: Path) -> Iterator[Path]:
    """Make a new folder in ``place``, and remove it afterwards.

    Raises:
        DiskError: nothing can be written there.
    """
    folder = place / f".rollwright-doctor-{os.urandom(6).hex()}"
    with raise_disk_errors(folder):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_storage(storage: Path, *, named: bool, free: int = FREE_BYTES) -> Iterator[Finding]:
    """Check all properties of a folder that one machine can check.

    Args:
        storage: Folder of the runs.
        named: True if the user named the folder, so that it must exist.
        free: Bytes that must be free.

    Raises:
        ConfigError: the folder does not exist.
        DiskError: nothing can be written there.
    """
    place = storage_place(storage, named=named)
    checks: dict[str, tuple[Callable[[Path], Iterable[Finding]], str]] = {
        "space": (partial(_space, free=free), OTHER_STORAGE),
        "rename": (_rename, OTHER_STORAGE),
        "exclusive creation": (_exclusive, OTHER_STORAGE),
        "locks": (_locks, NFS_LOCKS),
        "clock": (_clock, OTHER_STORAGE),
    }
    with probe_folder(place) as folder:
        yield Finding("storage", f"{place} can be written to", "", "ok")
        for name, (check, todo) in checks.items():
            yield from guarded(f"storage, {name}", partial(check, folder), todo)


def _space(folder: Path, free: int) -> Iterator[Finding]:
    available = shutil.disk_usage(folder).free
    what = f"{available / 1e9:.1f} GB are free, at least {free / 1e9:.1f} are wanted"
    if available < free:
        yield Finding("storage, space", what, "free some space, or put the runs elsewhere (root=FOLDER)")
    else:
        yield Finding("storage, space", what, "", "ok")


def _rename(folder: Path) -> Iterator[Finding]:
    """Check that readers get a whole file while it is replaced, and the last one at the end."""
    path, over, problems = folder / "renamed", threading.Event(), list[str]()
    contents = [bytes([number]) * RENAMED_BYTES for number in range(RENAMES)]
    atomic_write_bytes(path, contents[0])  # with fsync

    def read() -> None:
        while not over.is_set() and not problems:
            try:
                if path.read_bytes() not in contents:
                    problems.append("a reader got part of a file that was being replaced")
            except OSError as error:
                problems.append(f"a reader did not get a file that was being replaced ({error.strerror})")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        for content in contents[1:]:
            atomic_write_bytes(path, content, sync=False)
    finally:
        over.set()
        reader.join()
    if path.read_bytes() != contents[-1]:
        problems.append("a renamed file did not take the place of the one before")
    if problems:
        yield Finding("storage, rename", problems[0], OTHER_STORAGE)
    else:
        yield Finding("storage, rename", f"{RENAMES} renames over a file were atomic, and it was synced", "", "ok")


def _exclusive(folder: Path) -> Iterator[Finding]:
    """Check that only the first of two creations of the same file succeeds."""
    created = [write_json_once(folder / "once.json", number) for number in range(2)]
    if created != [True, False]:
        what = f"a file that can be created once was created {sum(created)} times"
        yield Finding("storage, exclusive creation", what, OTHER_STORAGE)
    else:
        yield Finding("storage, exclusive creation", "one of two creations of a file succeeded (hard links)", "", "ok")


def _locks(folder: Path) -> Iterator[Finding]:
    """Check a run's lock and its journal against a second process of this machine."""
    command = [sys.executable, "-I", "-S", locks.__file__, str(folder)]
    with held_locks(folder):
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECOND_PROCESS_SECONDS, check=False)
    lines = done.stdout.split("\n") if done.returncode == 0 else [done.stderr.strip()]
    if problems := [line for line in lines if line]:
        yield Finding("storage, locks", "; ".join(problems), NFS_LOCKS)
    else:
        yield Finding("storage, locks", "flock and SQLite's locks keep a second process out", "", "ok")


def _clock(folder: Path) -> Iterator[Finding]:
    before = time.time()
    atomic_write_bytes(folder / "clock", b"")
    written = (folder / "clock").stat().st_mtime
    late = max(before - written, written - time.time(), 0.0)
    if late > CLOCK_SECONDS:
        what = f"times of new files differ from this machine's clock by {late:.1f} s"
        yield Finding("storage, clock", what, "synchronise the clocks (NTP): times in logs and reports are off", "note")
    else:
        yield Finding("storage, clock", "times of new files are those of this machine's clock", "", "ok")
