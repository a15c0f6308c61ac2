"""Wall time by activity of a worker whose episodes run concurrently."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

ACTIVITIES = ("generate", "browser", "reward", "store")
"""Activities that a worker's wall time is charged to; the first match wins, the rest is idle."""

LENT = "lent"
"""The activity of an episode that has a browser."""


class ActivityClock:
    """Charges every instant to one activity.

    This is the first activity of ``priority`` that is going on, else ``idle``, so the seconds add
    up to the wall time. Used from one thread.

    >>> clock = ActivityClock(("generate", "browser"))
    >>> with clock("browser"):
    ...     pass
    >>> sorted(clock.seconds())
    ['browser', 'generate', 'idle']
    """

    def __init__(self, priority: Sequence[str]) -> None:
        self._priority = tuple(priority)
        self._active: Counter[str] = Counter()
        self._seconds = dict.fromkeys((*priority, "idle"), 0.0)
        self._occupied: defaultdict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, activity: str) -> Iterator[None]:
        self._charge()
        self._active[activity] += 1
        try:
            yield
        finally:
            self._charge()
            self._active[activity] -= 1

    def seconds(self) -> dict[str, float]:
        """Return the seconds charged so far to each activity and to ``idle``."""
        self._charge()
        return dict(self._seconds)

    def occupied(self, activity: str) -> float:
        """Return the seconds of an activity so far, summed over its concurrent instances."""
        self._charge()
        return self._occupied[activity]

    def _charge(self) -> None:
        now = time.perf_counter()
        for activity, count in self._active.items():
            self._occupied[activity] += count * (now - self._since)
        current = next((activity for activity in self._priority if self._active[activity]), "idle")
        self._seconds[current] += now - self._since
        self._since = now
