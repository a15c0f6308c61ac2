"""Curriculum sampler: prefers tasks that succeed sometimes.

Only groups with both successes and failures have advantages that are not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from envs.tasks.index import Rows, TaskIndex
from envs.tasks.samplers.base import Sampler, read_shares
from envs.types import Split, TaskError

UNSEEN = 0.5
"""Success assumed for what has not been tried, which gives it the highest priority."""


class CurriculumSampler(Sampler):
    """Draws rows by a priority that is highest for kinds with success 1/2.

    It is ``floor + (1 - floor) * 4p(1 - p) * (1 - avoidance * z)``. p is the running success of the
    row's kind (or of the task itself): it begins at 1/2 and moves by
    ``p <- memory * p + (1 - memory) * x`` with each observation x (a group's mean success).
    Beginning at 1/2, and not at the first observation, keeps one unlucky group from ruling a kind
    out. z is the running share of groups whose rewards are all equal. Kinds that are always or
    never solved keep the priority ``floor``; the highest is 1.
    """

    name = "curriculum"

    def __init__(
        self,
        index: TaskIndex,
        seed: int = 0,
        *,
        by: Literal["kind", "task"] = "kind",
        memory: float = 0.8,
        floor: float = 0.05,
        avoidance: float = 0.0,
        repeat: bool = False,
    ) -> None:
        super().__init__(index, seed)
        if by not in ("kind", "task"):
            raise TaskError(f"curriculum: by {by!r} must be kind or task")
        if not 0 <= memory < 1:
            raise TaskError(f"curriculum: memory {memory} must be in [0, 1)")
        if not 0 < floor <= 1:
            raise TaskError(
                f"curriculum: floor {floor} must be in (0, 1]; without one, what is solved is never tried again"
            )
        if not 0 <= avoidance <= 1:
            raise TaskError(f"curriculum: avoidance {avoidance} must be in [0, 1]")
        self.by, self.memory, self.floor = by, memory, floor
        self.avoidance, self.repeat = avoidance, repeat
        self.success: dict[str, float] = {}
        """Running success of each observed kind (or task id)."""
        self.flat: dict[str, float] = {}
        """Running share of groups without variance, of each observed kind (or task id)."""
        self._codes = index.kind_code if by == "kind" else np.arange(len(index), dtype=np.int32)
        names = len(index.kinds) if by == "kind" else len(index)
        self._p = np.full(names, UNSEEN)
        self._z = np.zeros(names)

    def observe_group(self, kind: str, task_id: str, success: float, varied: bool) -> None:
        """Record the result of a group."""
        self.observe(kind if self.by == "kind" else task_id, success, varied)

    def observe(self, name: str, success: float, varied: bool | None = None) -> None:
        """Record the mean success, in [0, 1], of a kind's (or task's) group.

        Before a shared draw, all machines must have recorded the same observations in the same
        order.

        Args:
            varied: True if the group's rewards differ; ``None`` if that is not known.

        Raises:
            TaskError: there is no such kind or task, or ``success`` is out of range.
        """
        if not 0 <= success <= 1:
            raise TaskError(f"curriculum: success {success} of {name} must be in [0, 1]")
        code = self._code(name)
        value = self.memory * float(self._p[code]) + (1 - self.memory) * success
        self.success[name] = self._p[code] = value
        if varied is not None:
            old = self.flat.get(name)
            flat = float(not varied)
            self.flat[name] = self._z[code] = flat if old is None else self.memory * old + (1 - self.memory) * flat

    def priorities(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the priority of each row, in (0, 1], as float64 of shape (rows,)."""
        p = self._p[self._codes]
        teaches = 1 - self.avoidance * self._z[self._codes]
        weights: np.ndarray[tuple[int], np.dtype[np.float64]] = (
            self.floor + (1 - self.floor) * 4 * p * (1 - p) * teaches
        )
        return weights

    def arguments(self) -> dict[str, Any]:
        """Return the sampler's arguments."""
        shape = {"memory": self.memory, "floor": self.floor, "avoidance": self.avoidance, "repeat": self.repeat}
        return {"seed": self.seed, "by": self.by, **shape}

    def progress(self) -> dict[str, Any]:
        """Return the state, with the running successes."""
        return {**super().progress(), "success": dict(self.success), "flat": dict(self.flat)}

    def _restore(self, progress: Mapping[str, Any]) -> None:
        success, flat = read_shares(progress, "success"), read_shares(progress, "flat")
        p, z = np.full(len(self._p), UNSEEN), np.zeros(len(self._z))
        for values, named in ((p, success), (z, flat)):
            for name, value in named.items():
                values[self._code(name)] = value
        super()._restore(progress)
        self.success, self.flat, self._p, self._z = success, flat, p, z

    def _next(self, count: int) -> Rows:
        if self.repeat:
            return self._repeating(count)
        if count > len(self.index):
            raise TaskError(f"{count} distinct tasks are wanted of {len(self.index)}; draw fewer at a time")
        # The smallest of exponential waiting times with these rates are a draw without replacement
        # (Efraimidis and Spirakis 2006).
        waits = np.random.default_rng((self.seed, 4, self.draws)).exponential(size=len(self.index)) / self.priorities()
        nearest = np.argpartition(waits, count - 1)[:count] if 0 < count < len(waits) else np.arange(count)
        return nearest[np.argsort(waits[nearest], kind="stable")].astype(np.int64)

    def _repeating(self, count: int) -> Rows:
        """Draw row after row by priority, among those with a page seed left."""
        left = self.index.seeds_of(Split.TRAIN).astype(np.int64)
        if count > left.sum():
            raise TaskError(f"{count} pages are wanted of {left.sum()} training seeds; draw fewer at a time")
        random = np.random.default_rng((self.seed, 5, self.draws))
        priorities = self.priorities()
        rows: list[int] = []
        while len(rows) < count:
            reach = np.cumsum(np.where(left > 0, priorities, 0.0))
            marks = random.random(count - len(rows)) * reach[-1]
            for row in np.searchsorted(reach, marks, side="right").tolist():
                if row < len(left) and left[row] > 0:  # a mark may be rounded up to the end
                    left[row] -= 1
                    rows.append(row)
        return np.array(rows, dtype=np.int64)

    def _code(self, name: str) -> int:
        if self.by == "task":
            return self.index.row_of(name)
        if name not in self.index.kinds:
            raise TaskError(f"curriculum: no kind {name!r} in this index")
        return self.index.kinds.index(name)
