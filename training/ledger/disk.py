"""Turns write faults into ``DiskError`` with path, reason and fix.

Write faults are a full disk, a used-up quota, a read-only or failing file system.

Libraries report them in many ways (``OSError``, safetensors' and torch's own errors, sqlite3's,
groups of all these), so the causes behind an error are searched too.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

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
"""Reason and fix of each write fault, by errno."""

TRIAL_BYTES = 2**20
"""Size of the file that tests whether a folder can be written to."""

MESSAGES = (
    (re.compile(r"no space left|os error 28|database or disk is full", re.I), errno.ENOSPC),
    (re.compile(r"quota exceeded|os error 122", re.I), errno.EDQUOT),
    (re.compile(r"read-only file system|os error 30|attempt to write a readonly database", re.I), errno.EROFS),
    (re.compile(r"os error 13", re.I), errno.EACCES),
    (re.compile(r"disk I/O error|os error 5\b", re.I), errno.EIO),
)
"""Texts by which safetensors (Rust), sqlite3 and others report a write fault, with its errno."""
PASSING = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENOLINK),
        *(errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENFILE, errno.EMFILE),
        *(errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENOTCONN, errno.ESHUTDOWN),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET),
    }
)
"""Errnos of read faults that may pass: the file may be whole, but storage, its network or the
machine cannot read it now."""
OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""Form in which Rust (safetensors, tokenizers) names an errno."""
ONLY_WRITES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errnos of faults that no read can have."""
QUOTED = re.compile(r"\[Errno (\d+)\]")
"""Form in which ``shutil.copytree`` names the errnos of its files' errors."""
TORCH_WRITER = re.compile(r"PytorchStreamWriter|iostream error|unexpected pos|basic_ios", re.I)
"""Texts of a failed write by ``torch.save``, which loses the reason."""
FULL_BELOW = 16 * 2**20
"""Bytes free below which a failed write without a reason is taken for a full disk."""

TEMPORARY = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}\.tmp")
"""Name of a file that is being written, with the pid of its writer (`temporary_name`)."""


def try_to_write(folder: Path) -> None:
    """Write a megabyte to a folder and remove it, to see whether that is possible.

    A megabyte is large enough to be refused where little space is left.

    Raises:
        DiskError: The folder cannot be written to.
    """
    trial = temporary_name(folder / "trial")
    with raise_disk_errors(folder):
        try:
            trial.write_bytes(bytes(TRIAL_BYTES))
        finally:
            trial.unlink(missing_ok=True)


def open_new_file(path: Path) -> BinaryIO:
    """Open a new file for writing; its folder is only looked up where it is missing."""
    try:
        return open(path, "wb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "wb")


def temporary_name(path: Path) -> Path:
    """Return a new hidden name beside ``path``, to write to before the rename.

    The name holds this process's id.
    """
    return path.parent / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


@contextmanager
def raise_disk_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn a write fault of the block into a ``DiskError`` with the path.

    Other errors pass unchanged.

    Args:
        path: File or folder that is being written.
        needed: Bytes to be written, where known.

    Raises:
        DiskError: The disk is full, over its quota, read-only, failing, or may not be written to.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RollwrightError) or (number := write_fault(error, path)) is None:
            raise
        raise DiskError(_describe_fault(path, number, needed)) from error


@contextmanager
def raise_read_errors(path: Path) -> Iterator[None]:
    """Turn a passing read fault of the block into a ``ReadError`` with the path.

    A passing fault is one of `PASSING`. Other errors pass unchanged.

    Args:
        path: File or folder that is being read.

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
    """Return the errno of a fault that may pass (`PASSING`) behind an error, or ``None``."""
    for cause in _causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if number is None and (quoted := OS_ERROR.search(str(cause)) or QUOTED.search(str(cause))):
            number = int(quoted[1])
        if number in PASSING:
            return number
    return None


def disk_error(error: BaseException, path: Path) -> DiskError | None:
    """Return the ``DiskError`` of any error that a full or read-only disk caused, or ``None``.

    A refused permission or a failing disk gives ``None``: it may have stopped a read as well.

    Args:
        path: A place on that disk.
    """
    number = write_fault(error, path)
    return DiskError(_describe_fault(path, number, None)) if number in ONLY_WRITES else None


def write_fault(error: BaseException, path: Path) -> int | None:
    """Return the errno of the write fault behind an error, or ``None``.

    The error's causes and, of a group, its members are searched too.
    """
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in REASONS:
            return cause.errno
        text = str(cause)
        if (quoted := QUOTED.search(text)) and int(quoted[1]) in REASONS:
            return int(quoted[1])
        for pattern, number in MESSAGES:
            if pattern.search(text):
                return number
    if any(isinstance(cause, RuntimeError) and TORCH_WRITER.search(str(cause)) for cause in _causes(error)):
        return errno.ENOSPC if _free(path) < FULL_BELOW else errno.EIO
    return None


def remove_leftovers(root: Path) -> int:
    """Delete the temporary files of killed processes of this machine under ``root``.

    Returns the number of files and folders removed.
    """
    removed = 0
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            temporary = TEMPORARY.fullmatch(name)
            if temporary and not _is_alive(int(temporary[1])):
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    removed += 1
    return removed


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files of a folder; 0 if it does not exist."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _describe_fault(path: Path, number: int, needed: int | None) -> str:
    reason, fix = REASONS[number]
    room = f"{_size(needed)} needed, " if needed is not None else ""
    return f"cannot write {path}: {reason} ({room}{_size(_free(path))} free on {_mount(path)}); {fix}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts, and the members of groups, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        cause = waiting.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting += [earlier for earlier in (cause.__cause__, cause.__context__) if earlier is not None]
        waiting += cause.exceptions if isinstance(cause, BaseExceptionGroup) else []


def _nearest_existing(path: Path) -> Path:
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def _free(path: Path) -> int:
    return shutil.disk_usage(_nearest_existing(path)).free


def _mount(path: Path) -> Path:
    existing = _nearest_existing(path)
    return next(place for place in (existing, *existing.parents) if place.is_mount() or place == place.parent)


def _size(number: int) -> str:
    """Format a number of bytes, as ``12.3 MB``."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} B"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
