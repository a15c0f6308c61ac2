"""Who holds the lock of a file, as Linux tells it (``/proc/locks``): of this machine's processes only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

SHOWN = 60
"""Characters of a command line."""

STOPPED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})
"""States of a process that somebody has to let go on (SIGSTOP, a debugger)."""


def describe_owner(path: Path) -> tuple[str, str]:
    """Who holds the ``flock`` of a file, and what can be done about it, for an error; what nobody knows is said as such."""
    pid = _holder(path)
    if pid is None:
        return "another process", "is it stopped, or its machine gone?"
    if pid == os.getpid():
        return "this process itself", "does its disk still answer?"
    who, stopped = f"process {pid}", False
    with suppress(psutil.Error):  # it has ended, or is not ours to look at
        process = psutil.Process(pid)
        stopped = process.status() in STOPPED
        words = " ".join(process.cmdline())
        who += f" ({words[:SHOWN]})" if words else ""
    if stopped:
        return who, f"it is stopped: kill -CONT {pid} lets it go on, kill -KILL {pid} ends it"
    return who, f"look what it does, or end it: kill -KILL {pid}"


def _holder(path: Path) -> int | None:
    """The process, if it is one of this machine and is there."""
    try:
        found = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:  # another system, or no such file
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        # "8: FLOCK  ADVISORY  WRITE 30273 fe:00:2146540 0 EOF"; who waits has an arrow behind the number
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == place and Path(f"/proc/{words[4]}").exists():
            return int(words[4])
    return None
