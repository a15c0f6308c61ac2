"""Ends the trainer when its parent process is gone, whatever the trainer is doing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence

import psutil

from training.trainer.control.link import exit_orphan


def process_started(pid: int) -> float | None:
    """Return a live process's start time in seconds since the epoch.

    ``None`` if there is no such process or it is a zombie.
    """
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def end_processes(members: Sequence[psutil.Process], seconds: float, *, first_alone: bool = False) -> None:
    """End processes: send SIGTERM, then after ``seconds`` SIGKILL to all that are left.

    Args:
        first_alone: True to send SIGTERM to the first process alone, which forwards it.
    """
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for member in members[:1] if first_alone and signum == signal.SIGTERM else members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signum)
        _, members = psutil.wait_procs(members, seconds)


def start_watchdog(owner_pid: int | None = None, owner_started: float | None = None, interval: float = 1.0) -> None:
    """Start a daemon thread that ends this process when its owner or parent has died.

    It checks every ``interval`` seconds. The parent counts too: behind torchrun it is the agent,
    and nothing else would notice its SIGKILL.
    """
    parent = os.getppid()

    def watch() -> None:
        while True:
            if os.getppid() != parent:
                exit_orphan(f"parent process {parent} is gone")
            if owner_pid is not None and not _same(process_started(owner_pid), owner_started):
                exit_orphan(f"owner process {owner_pid} is gone")
            time.sleep(interval)

    threading.Thread(target=watch, name="trainer-watchdog", daemon=True).start()


def _same(actual: float | None, expected: float | None) -> bool:
    # Both times come from the same clock ticks, and a pid is not reused within 0.1 s.
    return actual is not None and (expected is None or abs(actual - expected) < 0.1)
