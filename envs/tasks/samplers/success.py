"""Success sampler: draws seeded tasks by the success rate of their kind."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.tasks.index import Rows, TaskIndex
from envs.tasks.samplers.base import Sampler, read_shares
from envs.types import TaskError

UNSEEN = 0.5
"""Success assumed for a kind that has not been tried."""


class SuccessSampler(Sampler):
    """Draws rows by weight ``p(1 - p) + exploration``, with replacement.

    So a few seeded tasks fill a large draw. p is the running success of the row's kind: its first
    group's mean, then ``p <- memory * p + (1 - memory) * x``.
    """

    name = "success"

    def __init__(self, index: TaskIndex, seed: int = 0, *, memory: float = 0.7, exploration: float = 0.05) -> None:
        super().__init__(index, seed)
        if not 0 <= memory < 1 or not 0 < exploration <= 1:
            raise TaskError(
                f"success sampler: memory {memory} must be in [0, 1) and exploration {exploration} in (0, 1]"
            )
        self.memory, self.exploration = memory, exploration
        self.success: dict[str, float] = {}
        """Running success of each observed kind."""

    def observe_group(self, kind: str, task_id: str, success: float, varied: bool) -> None:
        """Record the mean success of a group of a kind."""
        if kind not in self.index.kinds:
            raise TaskError(f"success sampler: no kind {kind!r} in this index")
        if not 0 <= success <= 1:
            raise TaskError(f"success sampler: success {success} of {kind} must be in [0, 1]")
        old = self.success.get(kind)
        self.success[kind] = success if old is None else self.memory * old + (1 - self.memory) * success

    def choose(self, count: int, chances: random.Random) -> Rows:
        """Draw like `draw`, with the next ``count`` numbers of ``chances``."""
        rows = self._choose(count, chances)
        self.drawn += count
        self.draws += 1
        return rows

    def _choose(self, count: int, chances: random.Random) -> Rows:
        of_kind = [(p := self.success.get(kind, UNSEEN)) * (1 - p) + self.exploration for kind in self.index.kinds]
        weights = [of_kind[code] for code in self.index.kind_code.tolist()]
        return np.array(chances.choices(range(len(self.index)), weights, k=count), dtype=np.int64)

    def arguments(self) -> dict[str, Any]:
        """Return the sampler's arguments."""
        return {"seed": self.seed, "memory": self.memory, "exploration": self.exploration}

    def progress(self) -> dict[str, Any]:
        """Return the state, with the running successes."""
        return {**super().progress(), "success": dict(self.success)}

    def _restore(self, progress: Mapping[str, Any]) -> None:
        success = read_shares(progress, "success")
        unknown = sorted(set(success) - set(self.index.kinds))
        if unknown:
            raise TaskError(f"state of a sampler: progress.success has no kind {unknown[0]!r} of this index")
        super()._restore(progress)
        self.success = success

    def _next(self, count: int) -> Rows:
        return self._choose(count, random.Random(f"success/{self.seed}/{self.draws}"))
