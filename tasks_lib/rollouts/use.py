"""Idle shares of browsers, engines and trainer, and mean waits in queues, for the metrics of a version. No input or output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from tasks_lib.worker.requests import WorkerUse

QUEUES = {"permit": "done", "encode": "done", "reward": "graded"}
"""Stages of a shard that measure how long they are waited for, and the name of the count of those who waited."""

_BY_TIME = attrgetter("seconds")


class WorkerAccount:
    """What workers did between two lines of the metrics.

    A worker's time in a line goes from the end of its newest shard of the line before, or the beginning of its first shard, to the end of
    its newest shard in this line. So no second counts twice where shards are played side by side, and what the worker did beside them
    (an evaluation, waiting for an update) is in it.
    """

    def __init__(self) -> None:
        self._first: dict[str, WorkerUse] = {}
        """Of workers that were in no line yet."""
        self._last: dict[str, WorkerUse] = {}
        """At the end of the newest line."""
        self._now: dict[str, WorkerUse] = {}

    def add(self, uses: Iterable[tuple[WorkerUse, WorkerUse]]) -> None:
        """Take in shards, in any order: how much of its worker was in use when each began, and when it ended."""
        for began, ended in uses:
            name = began.worker
            self._now[name] = max(self._now.get(name, ended), ended, key=_BY_TIME)
            self._first[name] = min(self._first.get(name, began), began, key=_BY_TIME)

    def close(self) -> tuple[dict[str, float], dict[str, float], dict[str, int]]:
        """End a line: idle shares of ``browsers`` and ``engines``, mean seconds that a turn waited for the ``engine``, and its ``batches``,
        ``late_batches`` and ``turns``; what was measured."""
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
    """How long groups wait from their end to the batch that takes them; times are of one monotonic clock.

    Groups that ended in an earlier process of the run are not counted.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._waits: list[float] = []

    def enter(self, group_id: str, now: float) -> None:
        """A group ended."""
        self._since[group_id] = now

    def leave(self, trained: Iterable[str], left_out: Iterable[str], now: float) -> None:
        """A batch was made of these groups; those that leave nothing to learn from did not wait for it."""
        self._waits += [now - self._since.pop(group_id) for group_id in trained if group_id in self._since]
        for group_id in left_out:
            self._since.pop(group_id, None)

    def close(self) -> dict[str, float]:
        """End a line: mean seconds of the groups of its batch, as ``trainer``; nothing where none is known."""
        waits, self._waits = self._waits, []
        return {"trainer": sum(waits) / len(waits)} if waits else {}


def trainer_idle(manifest: Mapping[str, Any]) -> dict[str, float]:
    """Share of the trainer's time, from the end of one update to the end of the next, in which it had no batch; nothing where unknown."""
    if "waited_seconds" not in manifest:
        return {}
    waited = manifest["waited_seconds"]
    return {"trainer": waited / max(waited + sum(manifest["seconds"].values()), 1e-9)}


def mean_waits(pipelines: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Mean seconds in each queue of shards, from what their stages did; without those that nothing went through."""
    means = {}
    for name, counted in QUEUES.items():
        stages = [shard[name] for shard in pipelines if name in shard]
        if count := sum(stage[counted] for stage in stages):
            means[name] = sum(stage["waiting_seconds"] for stage in stages) / count
    return means
