"""Clock and shared servers of the simulator: an event heap, processor sharing by virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class Clock:
    """Simulated time in seconds.

    Actions run in order of time; of equal times, in order of planning.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Action) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action))

    def step(self) -> bool:
        """Run the next action; False if there is none."""
        if not self._events:
            return False
        self.now, _, action = heapq.heappop(self._events)
        action()
        return True


class Station:
    """A shared server: full speed up to `capacity` jobs, ``capacity / n`` for n beyond.

    Virtual time runs at the speed of one job. So a job of work w that starts at virtual time x ends
    at x + w, whatever other jobs come and go.
    """

    def __init__(self, clock: Clock, capacity: float) -> None:
        self._clock = clock
        self.capacity = capacity
        self._virtual = 0.0
        self._since = 0.0
        self._jobs: list[tuple[float, int, Action]] = []
        self._order = itertools.count()
        self._planned = 0
        self._pauses = 0
        self.busy = 0.0
        """Job-seconds at full speed so far. Divided by the time and the capacity they are the
        utilisation."""

    @property
    def serving(self) -> int:
        return len(self._jobs)

    def submit(self, work: float, done: Action) -> None:
        """Start a job of so many seconds at full speed; ``done`` runs at its end."""
        self.advance()
        heapq.heappush(self._jobs, (self._virtual + work, next(self._order), done))
        self._plan()

    def pause(self, seconds: float) -> None:
        """Stop serving for some seconds."""
        if seconds > 0:
            self.stop()
            self._clock.after(seconds, self.resume)

    def stop(self) -> None:
        self.advance()
        self._pauses += 1
        self._plan()

    def resume(self) -> None:
        self.advance()
        self._pauses -= 1
        self._plan()

    def advance(self) -> None:
        """Update virtual time and `busy` to the clock's time."""
        passed = (self._clock.now - self._since) * self._speed()
        self._virtual += passed
        self.busy += passed * self.serving
        self._since = self._clock.now

    def _speed(self) -> float:
        if self._pauses or not self._jobs:
            return 0.0
        return min(1.0, self.capacity / len(self._jobs))

    def _plan(self) -> None:
        self._planned += 1
        speed = self._speed()
        if speed > 0:
            planned = self._planned
            left = max(0.0, self._jobs[0][0] - self._virtual)
            self._clock.after(left / speed, lambda: self._end(planned))

    def _end(self, planned: int) -> None:
        if planned != self._planned:  # another job started or ended in between
            return
        self.advance()
        self._virtual, _, done = heapq.heappop(self._jobs)
        self._plan()
        done()
