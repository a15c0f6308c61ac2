"""Who holds the lock of a file, as Linux tells it (``/proc/locks``): of this machine's processes only."""

from __future__ import annotations

import os
from pathlib import Path

SHOWN = 60
"""Characters of a command line."""

STOPPED = frozenset("Tt")
"""States of a process that somebody has to let go on (SIGSTOP, a debugger)."""


def told(path: Path) -> tuple[str, str]:
    """Who holds the ``flock`` of a file, and what can be done about it, for an error; what nobody knows is said as such."""
    pid = _holder(path)
    if pid is None:
        return "another process", "is it stopped, or its machine gone?"
    if pid == os.getpid():
        return "this process itself", "does its disk still answer?"
    who = f"process {pid}{_command(pid)}"
    if _state(pid) in STOPPED:
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


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""
    return f" ({words[:SHOWN]})" if words else ""


def _state(pid: int) -> str:
    """A letter, as ``ps`` shows it; empty if the process is gone."""
    try:
        # The name before it, in parentheses, may have any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
