"""Ends the trainer when its parent process is gone.

Whatever the trainer is doing at that moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence

import psutil

from training.trainer.link import exit_orphan


def process_started(pid: int) -> float | None:
    """Start time of a live process (seconds since the epoch), ``None`` when there is none or it is a zombie."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def end_processes(members: Sequence[psutil.Process], seconds: float, *, first_alone: bool = False) -> None:
    """SIGTERM, to the first alone if it hands that on; and SIGKILL to all that are left after so many seconds."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for member in members[:1] if first_alone and signum == signal.SIGTERM else members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signum)
        _, members = psutil.wait_procs(members, seconds)


def start_watchdog(owner_pid: int | None = None, owner_started: float | None = None, interval: float = 1.0) -> None:
    """Start a daemon thread that ends this process within about ``interval`` seconds of its owner's or its parent's death.

    The parent counts as well: behind torchrun it is the agent, whose SIGKILL nobody else would notice.
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


def _same(found: float | None, expected: float | None) -> bool:
    # Create times are read from the same clock ticks; 0.1 s is far below the time in which a pid comes round again.
    return found is not None and (expected is None or abs(found - expected) < 0.1)
