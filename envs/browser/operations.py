"""Kinds of operations on pages, with their bounds and counts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from envs.types import BrowserError


class OperationKind(StrEnum):
    """Kind of an operation; each has its queues, and these names in the metrics."""

    NAVIGATION = "navigation"
    INPUT = "input"
    """Mouse and keyboard events, with the settling that follows."""
    OBSERVATION = "observation"
    SCREENSHOT = "screenshot"
    EVALUATION = "evaluation"
    """Scripts of a site: reset, ready, facts."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Bounds of one kind of operation."""

    slots: int
    """Operations of the whole pool at a time."""
    deadline: float
    """Seconds that an operation may run. The wait before it does not count: under load it is not
    the page's fault."""
    stalled_after: float
    """Seconds after which a running operation gives its slot back."""

    def __post_init__(self) -> None:
        if self.slots < 1 or self.deadline <= 0 or self.stalled_after <= 0:
            raise BrowserError(f"{self}: slots must be at least 1, the seconds above 0")


CORES = os.cpu_count() or 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of all kinds of operation.

    Deadlines are some hundred times what the operation takes on a loaded machine with two cores.
    """

    navigation: Limit = Limit(slots=max(2, CORES), deadline=45.0, stalled_after=5.0)
    """A load takes about a core, and more of them only make each other slow; with a cold file cache
    one took over 20 s."""
    input: Limit = Limit(slots=4 * CORES, deadline=30.0, stalled_after=2.0)
    """2 ms of processor for a click; most of the time is the page's own while it settles."""
    observation: Limit = Limit(slots=4 * CORES, deadline=15.0, stalled_after=2.0)
    """6 to 8 ms of processor, a fifth of a screenshot's."""
    screenshot: Limit = Limit(slots=4 * CORES, deadline=15.0, stalled_after=2.0)
    """26 ms of processor, two thirds of what a step costs, and it waits for frames longer than
    that: with two a core eight episodes on two cores made 8 % fewer steps."""
    evaluation: Limit = Limit(slots=4 * CORES, deadline=15.0, stalled_after=2.0)
    """1 ms of processor."""

    def of(self, kind: OperationKind) -> Limit:
        """The bounds of a kind."""
        limit: Limit = getattr(self, kind.value)
        return limit


@dataclass(slots=True)
class KindMetrics:
    """Counts of the operations of one kind since the dispatcher was made."""

    queued: int = 0
    """Waiting now."""
    running: int = 0
    """Running now, with a slot or without."""
    done: int = 0
    failed: int = 0
    """Raised, or their episode was closed."""
    timed_out: int = 0
    cancelled: int = 0
    """Their caller was cancelled."""
    stalled: int = 0
    """Gave their slot back before they ended."""
    wait_seconds: float = 0.0
    """Sum of the waits of operations that have begun."""
    busy_seconds: float = 0.0
    """Sum of the running times of operations that have ended."""


@dataclass(frozen=True, slots=True)
class DispatcherMetrics:
    """A snapshot."""

    kinds: dict[OperationKind, KindMetrics]
    seconds: dict[str, float]
    """Slot seconds of each open episode."""
