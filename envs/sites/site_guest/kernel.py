"""Calls of Linux that Python 3.11 does not offer: namespaces, mounts, the parent's death."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

NEW_MOUNTS = 0x00020000
NEW_HOST_NAME = 0x04000000
NEW_IPC = 0x08000000
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000

_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SUBREAPER = 1, 4, 36
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
_SET_QUOTAS, _LIMIT_QUOTA = 0xC0109428, 0x8030942B
_MAKE_SUBVOLUME, _REMOVE_SUBVOLUME, _SUBVOLUME_NAME = 0x5000940E, 0x5000940F, "q4088s"
_SIMPLE_QUOTAS, _FULL_QUOTAS, _EXCLUSIVE = 4, 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Give this process new namespaces. Of processes, only its next children are in the new one."""
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def enter(namespace: str, flag: int) -> None:
    """Enter a namespace by its file in ``/proc``."""
    file = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(file, flag), f"enter {namespace}")
    finally:
        os.close(file)


def mount(source: str, target: str | Path, kind: str | None, options: str = "", flags: int = 0) -> None:
    """Mount a file system."""
    given = (source.encode(), str(target).encode(), kind.encode() if kind else None, flags, options.encode())
    _check(_libc.mount(*given), f"mount {kind or 'bind'} at {target}")


def mount_overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Lay a writable overlay over a folder."""
    mount("overlay", target, "overlay", f"lowerdir={lower},upperdir={upper},workdir={work}")


def bind(source: Path, target: Path) -> None:
    """Show a folder, and what is mounted below it, at another place."""
    mount(str(source), target, None, flags=_BIND | _RECURSIVE)


def make_mounts_private() -> None:
    """Keep the mounts of this namespace from all others."""
    mount("none", "/", None, flags=_RECURSIVE | _PRIVATE)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent ends. The parent must have one thread."""
    _check(_libc.prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0), "prctl")


def stay_readable() -> None:
    """Keep the files of this process in ``/proc`` its user's, also after a change of user."""
    _check(_libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def start_quotas(folder: Path) -> None:
    """Have a btrfs count what each subvolume writes; simple quotas need Linux 6.7."""
    for kind in (_SIMPLE_QUOTAS, _FULL_QUOTAS):
        try:
            _control(folder, _SET_QUOTAS, struct.pack("QQ", kind, 0))
            return
        except OSError as error:
            if kind == _FULL_QUOTAS:
                raise OSError(error.errno, f"quotas of btrfs: {os.strerror(error.errno or 0)}") from error


def make_subvolume(folder: Path, limit_mb: int | None) -> None:
    """Make a subvolume of a btrfs that may hold so much of its own."""
    _control(folder.parent, _MAKE_SUBVOLUME, struct.pack(_SUBVOLUME_NAME, 0, folder.name.encode()))
    if limit_mb is not None:
        _control(folder, _LIMIT_QUOTA, struct.pack("6Q", 0, _EXCLUSIVE, 0, limit_mb << 20, 0, 0))


def remove_subvolume(folder: Path) -> None:
    """Remove a subvolume with all that is in it."""
    _control(folder.parent, _REMOVE_SUBVOLUME, struct.pack(_SUBVOLUME_NAME, 0, folder.name.encode()))


def _control(folder: Path, request: int, content: bytes) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(handle, request, bytearray(content))
    finally:
        os.close(handle)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans."""
    _check(_libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0), "prctl")


def raise_loopback() -> None:
    """Start the loopback interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack_from("h", fcntl.ioctl(asked, _GET_FLAGS, request), 16)[0]
        fcntl.ioctl(asked, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))
