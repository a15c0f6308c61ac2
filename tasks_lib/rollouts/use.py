"""Idle shares of browsers, engines and trainer, and mean waits in queues, for a version's metrics.

No input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from tasks_lib.worker.requests import WorkerUse

QUEUES = {"permit": "done", "encode": "done", "reward": "graded"}
"""Stages of a shard with a measured queue, and the key of the count of those that waited."""

_BY_TIME = attrgetter("seconds")


class WorkerAccount:
    """Use of the workers between two lines of the metrics.

    A worker's time in a line begins at the end of its newest shard of the previous line, or at the
    beginning of its first shard, and ends with its newest shard in this line. So no second counts
    twice where shards are played side by side, and the worker's other activity (an evaluation,
    waiting for an update) is in it.
    """

    def __init__(self) -> None:
        self._first: dict[str, WorkerUse] = {}
        """First use of workers that are in no line yet."""
        self._last: dict[str, WorkerUse] = {}
        """Use at the end of the newest line."""
        self._now: dict[str, WorkerUse] = {}

    def add(self, uses: Iterable[tuple[WorkerUse, WorkerUse]]) -> None:
        """Take in shards, in any order, as their worker's use at their beginning and end."""
        for began, ended in uses:
            name = began.worker
            self._now[name] = max(self._now.get(name, ended), ended, key=_BY_TIME)
            self._first[name] = min(self._first.get(name, began), began, key=_BY_TIME)

    def close(self) -> tuple[dict[str, float], dict[str, float], dict[str, int]]:
        """End a line and return its idle shares, queue waits and counts, where measured.

        Idle shares are of ``browsers`` and ``engines``, the wait is the mean seconds that a turn
        waited for the ``engine``, the counts are ``batches``, ``late_batches`` and ``turns``.
        """
        spans = [(self._last.get(name, self._first[name]), now) for name, now in self._now.items()]
        self._last |= self._now
        seconds = sum(after.seconds - before.seconds for before, after in spans)
        browsers = sum(after.slots * (after.seconds - before.seconds) for before, after in spans)
        turns = sum(after.turns - before.turns for before, after in spans)
        batches = {
            name: sum(getattr(after, name) - getattr(before, name) for before, after in spans)
            for name in ("batches", "late_batches", "turns")
        }
        idle, queues = {}, {}
        if seconds > 0:
            lent = sum(after.lent - before.lent for before, after in spans)
            generating = sum(after.generating - before.generating for before, after in spans)
            idle = {"browsers": 1 - lent / browsers, "engines": 1 - generating / seconds}
        if turns > 0:
            queues = {"engine": sum(after.waited - before.waited for before, after in spans) / turns}
        return idle, queues, batches


class TrainerQueue:
    """Waits of groups from their end to their batch; times are of one monotonic clock.

    Groups that ended in an earlier process of the run are not counted.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._waits: list[float] = []

    def enter(self, group_id: str, now: float) -> None:
        """Record that a group ended."""
        self._since[group_id] = now

    def leave(self, trained: Iterable[str], left_out: Iterable[str], now: float) -> None:
        """Record that a batch was made of these groups. Those that were left out did not wait for
        it."""
        self._waits += [now - self._since.pop(group_id) for group_id in trained if group_id in self._since]
        for group_id in left_out:
            self._since.pop(group_id, None)

    def close(self) -> dict[str, float]:
        """End a line and return the mean wait of its groups in seconds, as ``trainer``.

        Empty if no wait is known.
        """
        waits, self._waits = self._waits, []
        return {"trainer": sum(waits) / len(waits)} if waits else {}


def trainer_idle(manifest: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of the trainer's time in which it had no batch.

    The time goes from the end of one update to the end of the next.
    """
    waited = manifest["waited_seconds"]
    return {"trainer": waited / max(waited + sum(manifest["seconds"].values()), 1e-9)}


def mean_waits(pipelines: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Return mean seconds in each queue of the shards, leaving out queues that nothing went
    through."""
    means = {}
    for name, counted in QUEUES.items():
        stages = [shard[name] for shard in pipelines if name in shard]
        if count := sum(stage[counted] for stage in stages):
            means[name] = sum(stage["waiting_seconds"] for stage in stages) / count
    return means
