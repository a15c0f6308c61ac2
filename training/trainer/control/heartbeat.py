"""Signs of progress of the trainer. They reveal a hanging update long before its time limit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

HEARTBEAT = "heartbeat"
"""File in the trainer's folder with the current phase, and in "train" the share of the update's
passes that are done; rewritten at each sign of progress."""
MIN_BEAT_SECONDS = 1.0
"""Shortest time between two signs of one phase."""

Phase = Literal["wait", "train", "save"]
"""Waiting for a batch, computing, or writing state and policy. Only computing must show progress;
the others depend on other processes and disks."""


class Heartbeat:
    """Writes the heartbeat file, in the first process of the trainer."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / HEARTBEAT
        self._phase: Phase | None = None
        self._last = 0.0

    def beat(self, phase: Phase, share: float | None = None) -> None:
        """Record progress in a phase. Writes the file once a second at most.

        Args:
            share: Share of the phase that is done, 0 to 1; ``None``: not known.
        """
        now = time.monotonic()
        if phase != self._phase or now - self._last >= MIN_BEAT_SECONDS:
            self._path.write_text(phase if share is None else f"{phase} {share:.3f}")
            self._phase, self._last = phase, now


def read_heartbeat(folder: Path) -> tuple[str, float | None]:
    """Return the phase and the share of it that is done; ``""`` before a trainer begins."""
    try:
        phase, _, share = (folder / HEARTBEAT).read_text().partition(" ")
    except OSError:
        return "", None
    return phase, float(share) if share else None


class Silence:
    """Measures how long a computing trainer has given no sign of progress.

    It compares the file with its earlier content, so the clocks of other machines do not matter.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / HEARTBEAT
        self._seen: tuple[str, int] | None = None
        self._since = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds of silence; 0 while it waits or writes, and before it begins."""
        try:
            sign = self._path.read_text(), self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0.0
        if sign != self._seen or sign[0].split()[:1] != ["train"]:
            self._seen, self._since = sign, time.monotonic()
        return time.monotonic() - self._since
