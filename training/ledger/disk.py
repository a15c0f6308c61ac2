"""Turns write faults into ``DiskError`` with path, reason and fix.

A full disk, a used-up quota, a read-only or failing file system.

Libraries report them in many ways (``OSError``, safetensors' and torch's own errors, sqlite3's, groups of all these), so the cause is
looked for behind whatever was raised.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from envs.types import DiskError, ReadError, RollwrightError

GO_ON = "and start the same command again: what is whole is kept"
REASONS = {
    errno.ENOSPC: ("no space left on the disk", f"free some space {GO_ON}"),
    errno.EDQUOT: ("the disk quota is used up", f"free some space or have the quota raised, {GO_ON}"),
    errno.EFBIG: (
        "the file is larger than is allowed here",
        f"raise the limit (ulimit -f, or the file system's) {GO_ON}",
    ),
    errno.EROFS: ("the file system is read-only", f"mount it to be written to {GO_ON}"),
    errno.EACCES: ("permission denied", f"let this user write there {GO_ON}"),
    errno.EPERM: ("not permitted", f"let this user write there {GO_ON}"),
    errno.EIO: ("the disk reports an input/output error", f"have the disk and its mount looked at (dmesg) {GO_ON}"),
    errno.ESTALE: ("the network file system lost the file", f"mount it again {GO_ON}"),
}
"""What each kind of write fault is called, and what to do about it."""

TRIAL_BYTES = 2**20
"""Written to see whether a folder can be written to."""

MESSAGES = (
    (re.compile(r"no space left|os error 28|database or disk is full", re.I), errno.ENOSPC),
    (re.compile(r"quota exceeded|os error 122", re.I), errno.EDQUOT),
    (re.compile(r"read-only file system|os error 30|attempt to write a readonly database", re.I), errno.EROFS),
    (re.compile(r"os error 13", re.I), errno.EACCES),
    (re.compile(r"disk I/O error|os error 5\b", re.I), errno.EIO),
)
"""How safetensors (Rust), sqlite3 and others say it in text alone."""
PASSING = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENOLINK),
        *(errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENFILE, errno.EMFILE),
        *(errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENOTCONN, errno.ESHUTDOWN),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET),
    }
)
"""Read faults that may pass: they say nothing of the file, but that storage, its network or the machine cannot give it now."""
OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""How Rust (safetensors, tokenizers) names an errno."""
ONLY_WRITES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Faults that no read can have."""
QUOTED = re.compile(r"\[Errno (\d+)\]")
"""shutil.copytree gives the texts of the errors of its files."""
TORCH_WRITER = re.compile(r"PytorchStreamWriter|iostream error|unexpected pos|basic_ios", re.I)
"""torch.save loses the reason of a failed write."""
FULL_BELOW = 16 * 2**20
"""Bytes free below which a failed write without a reason is taken for a full disk."""

TEMPORARY = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}\.tmp")
"""Name of a file that is being written, with the pid of its writer (`temporary_name`)."""


def try_to_write(folder: Path) -> None:
    """Write a megabyte there, large enough to be refused where little is left, and remove it.

    Raises:
        DiskError: it cannot be written.
    """
    trial = temporary_name(folder / "trial")
    with raise_disk_errors(folder):
        try:
            trial.write_bytes(bytes(TRIAL_BYTES))
        finally:
            trial.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """A new hidden name beside ``path`` to write to before the rename.

    Holds this process's id.
    """
    return path.parent / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


@contextmanager
def raise_disk_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn a write fault of the block into a ``DiskError`` with the path.

    Anything else passes as it is.

    Args:
        path: What is being written: a file or a folder.
        needed: Bytes that it takes, where known.

    Raises:
        DiskError: The disk is full, over its quota, read-only, failing, or may not be written to.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RollwrightError) or (number := write_fault(error, path)) is None:
            raise
        raise DiskError(_message(path, number, needed)) from error


@contextmanager
def raise_read_errors(path: Path) -> Iterator[None]:
    """Turn a read fault of the block that may pass into a ``ReadError`` with the path. Anything else passes as it is.

    Args:
        path: What is being read: a file or a folder.

    Raises:
        ReadError: The disk, the network to it or the machine cannot give the file for the moment.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RollwrightError) or (number := read_fault(error)) is None:
            raise
        raise ReadError(
            f"cannot read {path} for the moment: {os.strerror(number)}; if it goes on, have the disk and its mount looked at "
            f"(dmesg) {GO_ON}"
        ) from error


def read_fault(error: BaseException) -> int | None:
    """The errno of a fault that may pass (`PASSING`) behind an error; ``None`` when there is none."""
    for each in _behind(error):
        number = each.errno if isinstance(each, OSError) else None
        if number is None and (quoted := OS_ERROR.search(str(each)) or QUOTED.search(str(each))):
            number = int(quoted[1])
        if number in PASSING:
            return number
    return None


def disk_error(error: BaseException, path: Path) -> DiskError | None:
    """The ``DiskError`` of an error from anywhere, if a full or read-only disk is behind it; ``path`` is a place on that disk.

    Not of a refused permission or a failing disk, which may have stopped a read as well.
    """
    number = write_fault(error, path)
    return DiskError(_message(path, number, None)) if number in ONLY_WRITES else None


def write_fault(error: BaseException, path: Path) -> int | None:
    """The errno of the write fault behind an error, its causes and its group's members; ``None`` when there is none."""
    for each in _behind(error):
        if isinstance(each, OSError) and each.errno in REASONS:
            return each.errno
        said = str(each)
        if (quoted := QUOTED.search(said)) and int(quoted[1]) in REASONS:
            return int(quoted[1])
        for pattern, number in MESSAGES:
            if pattern.search(said):
                return number
    if any(isinstance(each, RuntimeError) and TORCH_WRITER.search(str(each)) for each in _behind(error)):
        return errno.ENOSPC if _free(path) < FULL_BELOW else errno.EIO
    return None


def remove_leftovers(root: Path) -> int:
    """Delete what killed processes of this machine were still writing under ``root``; how many files and folders."""
    removed = 0
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            found = TEMPORARY.fullmatch(name)
            if found and not _alive(int(found[1])):
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    removed += 1
    return removed


def folder_bytes(folder: Path) -> int:
    """Bytes of all files of a folder; 0 when it is not there."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _message(path: Path, number: int, needed: int | None) -> str:
    reason, fix = REASONS[number]
    room = f"{_size(needed)} needed, " if needed is not None else ""
    return f"cannot write {path}: {reason} ({room}{_size(_free(path))} free on {_mount(path)}); {fix}"


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and the members of groups, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [found for found in (each.__cause__, each.__context__) if found is not None]
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else []


def _existing(path: Path) -> Path:
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def _free(path: Path) -> int:
    return shutil.disk_usage(_existing(path)).free


def _mount(path: Path) -> Path:
    there = _existing(path)
    return next(each for each in (there, *there.parents) if each.is_mount() or each == each.parent)


def _size(number: int) -> str:
    """``12.3 MB``."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} B"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
