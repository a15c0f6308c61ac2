"""Processes of instances: their keepers, their descendants, and signals to all of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import kernel

_EXITING = 0x4
STOP_SECONDS = 5.0
"""Real seconds in which a signal must have stopped all processes of an instance."""


def is_exiting(pid: int) -> bool:
    """Return True if a process has begun to end; it does so before it closes its connections."""
    try:
        flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(flags) & _EXITING)


def children_of(pid: int) -> list[int]:
    """Return all descendants of a process, children before their own children."""
    below: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                text = Path(entry.path, "stat").read_text()
            except OSError:  # it has ended meanwhile
                continue
            below.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    descendants, queue = list[int](), [pid]
    while queue:
        children = below.get(queue.pop(0), [])
        descendants += children
        queue += children
    return descendants


@contextmanager
def stopped(pid: int, *, kept: bool) -> Iterator[None]:
    """Stop an instance with its descendants, so that its files are those of one moment.

    Args:
        kept: True if ``pid`` is a keeper, which writes nothing and goes on, so that it can end.

    Raises:
        RuntimeError: It has ended, or does not stop.
    """
    if pid == 0:
        raise RuntimeError("its server has ended")
    processes, until = list[int](), time.monotonic() + STOP_SECONDS
    try:
        while running := [one for one in (*(() if kept else (pid,)), *children_of(pid)) if not _stands_still(one)]:
            if time.monotonic() > until:
                raise RuntimeError(f"its processes still run {STOP_SECONDS:g} s after they were to stop")
            send_signal(running, signal.SIGSTOP)
            processes += running
            time.sleep(0.001)
        yield
    finally:
        send_signal(list(dict.fromkeys(processes)), signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    """Return True if all threads of a process are stopped, or it has ended."""
    try:
        stats = [Path(task.path, "stat").read_text() for task in os.scandir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)


def kill(pid: int, *, kept: bool) -> None:
    """Kill an instance with its descendants: a keeper does, else the end of its namespace."""
    if pid:
        os.kill(pid, signal.SIGTERM if kept else signal.SIGKILL)
        os.waitpid(pid, 0)


def kill_descendants() -> None:
    """Kill all descendants of this process, which adopts orphans, and wait for them."""
    while True:
        send_signal(children_of(os.getpid()), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def fork_kept() -> tuple[int, int]:
    """Fork twice, and return the ids of the keeper and of its child; in the child they are 0.

    The keeper does what the kernel does for the first process of a namespace: it ends with its
    child, at a SIGTERM or with its own parent, and kills all descendants before, wherever they are.
    """
    read, write = os.pipe()
    keeper = os.fork()
    if keeper:
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            return keeper, int(pipe.readline() or 0)
    try:
        kernel.adopt_orphans()
        awaited = {signal.SIGCHLD, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        kernel.die_with_parent(signal.SIGTERM)
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
            os.close(read)
            os.close(write)
            return 0, 0
        os.write(write, b"%d\n" % child)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # its child's sockets among them
        ended, status = 0, int(signal.SIGTERM)
        while ended != child and signal.sigwait(awaited) == signal.SIGCHLD:
            while ended != child and (seen := os.waitpid(-1, os.WNOHANG))[0]:
                ended, status = seen
        kill_descendants()
    except BaseException:
        os._exit(1)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)  # as shells do


def send_signal(processes: list[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that have not ended."""
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


def fork_losses(state: Path) -> list[str]:
    """Name what a fork of this process would lose or share: threads, and open files of a state."""
    notices = []
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        notices.append(f"the template has {threads} threads besides its own; instances have none of them")
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except OSError:  # the folder's own handle
            continue
        if target.startswith(f"{state}/"):
            notices.append(f"the template holds {target} open; close it in start.after_fork, or all instances share it")
    return notices
