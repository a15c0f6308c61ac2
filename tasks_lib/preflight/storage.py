"""Checks that a folder can hold runs: rename, exclusive creation, locks, space, clock.

It writes a small hidden folder there, and removes it.
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
"""Least free space: a short run of the shipped policy. Weights of 2 billion parameters take twice that for each version kept."""
CLOCK_SECONDS = 2.0
"""Largest difference between the storage's clock and ours that is not worth a note."""
RENAMES = 20
RENAMED_BYTES = 2**16
SECOND_PROCESS_SECONDS = 20.0
OTHER_STORAGE = (
    "put the runs on another file system (root=FOLDER, --storage FOLDER); docs/scaling.md says what it needs"
)
NFS_LOCKS = "mount it with locks (NFS: version 4, no nolock or local_lock), or put the runs on another file system"


def storage_place(storage: Path, *, named: bool) -> Path:
    """The folder to look at, absolute. One that is not named need not be there yet: then the folder that it will be made in.

    Raises:
        ConfigError: it is not there, or no folder.
    """
    place = storage.expanduser().absolute()
    if not named:
        place = next(each for each in (place, *place.parents) if each.exists())
    if not place.is_dir():
        reason = "is a file" if place.exists() else "is not there"
        raise ConfigError(f"{place} {reason}; make that folder, mount its file system, or name another (--storage)")
    return place


@contextmanager
def probe_folder(place: Path) -> Iterator[Path]:
    """A new folder of ours in ``place``, which is removed afterwards.

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
    """All of a folder that can be seen from one machine.

    Args:
        named: The user named the folder, so it must be there.
        free: Bytes that must be free.

    Raises:
        ConfigError: the folder is not there.
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
    found = shutil.disk_usage(folder).free
    what = f"{found / 1e9:.1f} GB are free, at least {free / 1e9:.1f} are wanted"
    if found < free:
        yield Finding("storage, space", what, "free some space, or put the runs elsewhere (root=FOLDER)")
    else:
        yield Finding("storage, space", what, "", "ok")


def _rename(folder: Path) -> Iterator[Finding]:
    """A file that is replaced again and again is whole to whoever reads it, and is what was written last."""
    path, over, wrong = folder / "renamed", threading.Event(), list[str]()
    contents = [bytes([number]) * RENAMED_BYTES for number in range(RENAMES)]
    atomic_write_bytes(path, contents[0])  # with fsync

    def read() -> None:
        while not over.is_set() and not wrong:
            try:
                if path.read_bytes() not in contents:
                    wrong.append("a reader got part of a file that was being replaced")
            except OSError as error:
                wrong.append(f"a reader did not get a file that was being replaced ({error.strerror})")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        for content in contents[1:]:
            atomic_write_bytes(path, content, sync=False)
    finally:
        over.set()
        reader.join()
    if path.read_bytes() != contents[-1]:
        wrong.append("a renamed file did not take the place of the one before")
    if wrong:
        yield Finding("storage, rename", wrong[0], OTHER_STORAGE)
    else:
        yield Finding("storage, rename", f"{RENAMES} renames over a file were atomic, and it was synced", "", "ok")


def _exclusive(folder: Path) -> Iterator[Finding]:
    """Of two that create the same file one does."""
    created = [write_json_once(folder / "once.json", number) for number in range(2)]
    if created != [True, False]:
        what = f"a file that can be created once was created {sum(created)} times"
        yield Finding("storage, exclusive creation", what, OTHER_STORAGE)
    else:
        yield Finding("storage, exclusive creation", "one of two creations of a file succeeded (hard links)", "", "ok")


def _locks(folder: Path) -> Iterator[Finding]:
    """Of a run's lock and its journal, against a second process of this machine."""
    command = [sys.executable, "-I", "-S", locks.__file__, str(folder)]
    with held_locks(folder):
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECOND_PROCESS_SECONDS, check=False)
    problems = done.stdout.split("\n") if done.returncode == 0 else [done.stderr.strip()]
    if wrong := [each for each in problems if each]:
        yield Finding("storage, locks", "; ".join(wrong), NFS_LOCKS)
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
