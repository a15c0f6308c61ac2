"""A sign of progress from the trainer, so that an update that hangs is noticed long before its time is over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

HEARTBEAT = "heartbeat"
"""In the trainer's folder: what it does; written again at each sign of progress."""
BETWEEN_SECONDS = 1.0
"""Least time between two signs of one phase."""

Phase = Literal["wait", "train", "save"]
"""Waiting for a batch, computing, or writing state and policy. Only computing has to go on: the others depend on other processes and disks."""


class Heartbeat:
    """Written by the first process of the trainer."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / HEARTBEAT
        self._phase: Phase | None = None
        self._last = 0.0

    def beat(self, phase: Phase) -> None:
        """Progress was made in a phase. Cheap: a file is written once a second at most."""
        now = time.monotonic()
        if phase != self._phase or now - self._last >= BETWEEN_SECONDS:
            self._path.write_text(phase)
            self._phase, self._last = phase, now


class Silence:
    """How long a trainer that computes has given no sign. Compares the file with itself: clocks of other machines do not matter."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / HEARTBEAT
        self._seen: tuple[str, int] | None = None
        self._since = time.monotonic()

    def seconds(self) -> float:
        """0 where it waits, writes, or has not begun."""
        try:
            found = self._path.read_text(), self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0.0
        if found != self._seen or found[0] != "train":
            self._seen, self._since = found, time.monotonic()
        return time.monotonic() - self._since
