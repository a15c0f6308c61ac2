"""InstanceBounds of an instance: a user of its own, and limits of the kernel for its processes.

Processes and threads are counted for each user, memory and open files for each process, and written
bytes for each instance (`Storage`). Control groups are not used: few containers may make any.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import kernel

_FIRST_USER, _USER_BITS = 1_900_000_000, 27
"""Range of user ids that neither systems nor container managers give out."""
_CAUSES = {
    "MemoryError": "memory_mb",
    "Cannot allocate memory": "memory_mb",
    "out of memory": "memory_mb",
    "can't start new thread": "processes",
    "Resource temporarily unavailable": "processes",
    "Disk quota exceeded": "written_mb",
    "File too large": "written_mb",
    "Too many open files": "open_files",
}
"""Texts in the log of a program that has reached a limit, and the recipe's key."""


@dataclass(frozen=True)
class InstanceBounds:
    """Limits of one instance. Their meaning is that of the recipe's keys."""

    memory_mb: int
    processes: int
    open_files: int
    written_mb: int

    def apply(self, largest_mb: int, *, own_user: bool) -> None:
        """Limit this process and its children.

        Args:
            largest_mb: Size of the largest file of the seed, which may be written anew.
            own_user: True if no other instance has this user; the kernel counts processes by user.
        """
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_DATA, self.memory_mb << 20)
        _limit(resource.RLIMIT_NOFILE, self.open_files)
        _limit(resource.RLIMIT_FSIZE, (self.written_mb + largest_mb) << 20)
        if own_user:
            _limit(resource.RLIMIT_NPROC, self.processes)


def reached_limit(log: str) -> str:
    """Return the key of the limit that the end of a log speaks of; empty if it does not."""
    places = {text: log.rfind(text) for text in _CAUSES}
    last = max(places, key=lambda text: places[text])
    return f"limits.{_CAUSES[last]}" if places[last] >= 0 else ""


def new_user(taken: Iterable[int]) -> int:
    """Return a user and group id that no instance has."""
    used = set(taken)
    while (user := _FIRST_USER + (int.from_bytes(os.urandom(4), "big") >> (32 - _USER_BITS))) in used:
        continue
    return user


def become(user: int, group: int) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    os.umask(0o007)


def problem_of(user: int, group: int, folders: Iterable[Path], command: str) -> str:
    """Return why a user cannot run the site; empty if it can.

    Args:
        folders: Folders that it must be able to read.
        command: Program that it must be able to start.
    """

    def may(*words: str) -> bool:
        return subprocess.run(["test", *words], user=user, group=group, extra_groups=[]).returncode == 0

    try:
        for folder in map(str, folders):
            if not may("-r", folder, "-a", "-x", folder):
                return f"{folder} cannot be read by other users than root"
        return "" if may("-x", command) else f"{command} cannot be run by other users than root"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def open_to_group(folder: Path, group: int) -> int:
    """Let a group change all files below a folder; return the bytes of the largest file."""
    largest = 0
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(place, name)
            if not os.path.islink(path):
                seen = os.stat(path)
                largest = max(largest, seen.st_size)
                os.chown(path, -1, group)
                os.chmod(path, seen.st_mode & 0o7777 | (seen.st_mode & 0o700) >> 3)
    return largest


def hide(place: Path, kept: Iterable[Path]) -> None:
    """Show nothing of a folder but some folders below it, in this mount namespace."""
    tops = list[Path]()
    for folder in sorted({folder.absolute() for folder in kept}):
        if folder.is_relative_to(place) and not any(folder.is_relative_to(top) for top in tops):
            tops.append(folder)
    handles = [os.open(top, os.O_PATH | os.O_CLOEXEC) for top in tops]
    try:
        kernel.mount("tmpfs", place, "tmpfs", "mode=755,size=1m")
        for handle, top in zip(handles, tops, strict=True):
            top.mkdir(parents=True)
            kernel.bind(Path(f"/proc/self/fd/{handle}"), top)
    finally:
        for handle in handles:
            os.close(handle)


def closed_above(folder: Path) -> Path | None:
    """Return the first folder on the way to a folder that other users may not enter."""
    for above in reversed(folder.absolute().parents):
        if not above.stat().st_mode & 0o001:
            return above
    return None


def _limit(kind: int, value: int) -> None:
    _, most = resource.getrlimit(kind)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (value, value))
