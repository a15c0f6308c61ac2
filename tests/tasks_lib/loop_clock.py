"""Simulated time for a loop of threads and one queue: it passes only while all of them wait."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

STUCK_SECONDS = 60.0
"""Real seconds without an end of what is under way: the test hangs."""


class KilledError(BaseException):
    """The process is gone: nothing of it runs on."""


class LoopClock:
    """Stands in for the modules ``time`` and ``threading``.

    One thread is the loop's: the one that makes this. The others are its `Thread`s. Each runs until
    it sleeps or ends; then the one whose sleep is over first is woken.

    Args:
        looks: Waits of the loop after which its process is killed; ``None``: never.
    """

    def __init__(self, looks: int | None = None) -> None:
        self._changed = threading.Condition()
        self._now, self._running = 0.0, 0
        self._sleepers: list[tuple[float, int, threading.Event]] = []
        self._numbers = itertools.count()
        self._owner = threading.current_thread()
        self._looks, self._killed = looks, False

    def monotonic(self) -> float:
        return self._now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        if threading.current_thread() is self._owner:
            self.wait(self._now + seconds, lambda: False)
            return
        woken = threading.Event()
        with self._changed:
            heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), woken))
            self._running -= 1
            self._changed.notify_all()
        woken.wait()
        if self._killed:
            raise KilledError

    def Thread(self, target: Callable[..., None], args: tuple[Any, ...] = (), **_: Any) -> threading.Thread:
        def run() -> None:
            try:
                target(*args)
            except KilledError:
                pass
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

        with self._changed:
            self._running += 1
        return threading.Thread(target=run, daemon=True)

    def wait(self, until: float, arrived: Callable[[], bool]) -> bool:
        """Let time pass for the loop's thread until something arrived; False at the time
        ``until``."""
        while True:
            with self._changed:
                settled = self._changed.wait_for(lambda: not self._running, STUCK_SECONDS)
                assert settled, "a thread neither sleeps nor ends"
            if arrived():
                return True
            if not self._sleepers or self._sleepers[0][0] > until:
                self._now = until
                return False
            self._now, _, woken = heapq.heappop(self._sleepers)
            self._running += 1
            woken.set()

    def look(self) -> None:
        """Count a wait of the loop; the last one ends its process."""
        if self._looks is not None:
            self._looks -= 1
            if self._looks < 0:
                raise KilledError

    def end(self) -> None:
        """End all that is asleep, as the end of the process does."""
        self._killed = True
        with self._changed:
            self._running += len(self._sleepers)
            for _, _, woken in self._sleepers:
                woken.set()
            self._sleepers.clear()
            assert self._changed.wait_for(lambda: not self._running, STUCK_SECONDS)

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of time, threads and queue of the asynchronous loop."""
        loops = "tasks_lib.loops"
        for module in ("asynchronous", "side_threads", "overlap_account"):
            monkeypatch.setattr(f"{loops}.{module}.time", self)
        monkeypatch.setattr(f"{loops}.side_threads.threading", self)
        queues = SimpleNamespace(SimpleQueue=lambda: LoopQueue(self), Empty=queue.Empty)
        monkeypatch.setattr(f"{loops}.asynchronous.queue", queues)


class LoopQueue:
    """Stands in for ``queue.SimpleQueue``."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock, self._items = clock, deque[Any]()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self, timeout: float) -> Any:
        self._clock.look()
        if not self._clock.wait(self._clock.monotonic() + timeout, lambda: bool(self._items)):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()
