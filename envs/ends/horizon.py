"""Step limits of episodes: fixed, by difficulty, or scheduled over iterations.

The horizon of difficulty d (the number of facts that must hold at the end) is 10·ceil(d / 3),
W8-RL's rule: 10 steps for the buckets ``1`` and ``2-3``, 20 for ``4-6``, 30 for ``7+``. The last
one has no bound (d = 12 has 40) unless ``most`` gives one. Training and evaluation have horizons of
their own: short ones train better and cheaper (WebGym trains with 10/20/30 and tests with
30/50/70).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from envs.types import Record, Split

STEPS_PER_THIRD = 10
"""Steps for every three facts (W8-RL)."""


class Bucket(StrEnum):
    """Groups of difficulties that share a horizon and are reported together."""

    ONE = "1"
    FEW = "2-3"
    SOME = "4-6"
    MANY = "7+"


def bucket_of(difficulty: int) -> Bucket:
    """Return the bucket of a difficulty, from 1."""
    _require_valid(difficulty)
    if difficulty == 1:
        return Bucket.ONE
    return Bucket.FEW if difficulty <= 3 else Bucket.SOME if difficulty <= 6 else Bucket.MANY


def max_steps(difficulty: int) -> int:
    """Return 10·ceil(d / 3), the steps that difficulty d gives."""
    _require_valid(difficulty)
    return STEPS_PER_THIRD * math.ceil(difficulty / 3)


class FixedHorizon(Record):
    """The same horizon for every task."""

    kind: Literal["fixed"] = "fixed"
    train: int = Field(ge=1, examples=[15], description="Most steps in training.")
    test: int = Field(ge=1, examples=[30], description="Most steps in evaluations.")

    def steps(self, difficulty: int, split: Split, iteration: int = 0) -> int:
        """Return the largest number of steps of an episode."""
        _require_valid(difficulty)
        return self.train if _is_training(split) else self.test


class BucketedHorizon(Record):
    """Horizon by difficulty."""

    kind: Literal["bucketed"] = "bucketed"
    train_factor: float = Field(default=1.0, gt=0, description="Training: factor on 10 steps for each three facts.")
    test_factor: float = Field(default=1.0, gt=0, description="Evaluations: the same factor.")
    most: int | None = Field(default=None, ge=1, description="Upper bound of both.")

    def steps(self, difficulty: int, split: Split, iteration: int = 0) -> int:
        """Return the largest number of steps of an episode."""
        factor = self.train_factor if _is_training(split) else self.test_factor
        steps = math.ceil(max_steps(difficulty) * factor)
        return steps if self.most is None else min(steps, self.most)


class ScheduledHorizon(Record):
    """Horizon by difficulty, with a training bound that grows with the iterations.

    The bound is ``first`` at iteration 0 and grows by ``step`` every ``every`` iterations, up to
    ``last``. Evaluation is not scheduled: its numbers must compare over a run.
    """

    kind: Literal["scheduled"] = "scheduled"
    base: BucketedHorizon = Field(default=BucketedHorizon(), description="As bucketed; the only bound of evaluations.")
    first: int = Field(ge=1, examples=[10], description="Training bound at iteration 0.")
    last: int = Field(ge=1, examples=[30], description="Highest training bound.")
    step: int = Field(default=5, ge=1, description="Growth of the bound.")
    every: int = Field(default=10, ge=1, description="Iterations between two growths.")

    def steps(self, difficulty: int, split: Split, iteration: int = 0) -> int:
        """Return the largest number of steps of an episode of this iteration."""
        steps = self.base.steps(difficulty, split)
        bound = min(self.first + self.step * (max(iteration, 0) // self.every), max(self.first, self.last))
        return min(steps, bound) if _is_training(split) else steps


def _in_short(value: Any) -> Any:
    """Expand the short forms: a number is a fixed horizon, a word the kind."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"kind": "fixed", "train": value, "test": value}
    return {"kind": value} if isinstance(value, str) else value


HorizonPolicy = Annotated[
    FixedHorizon | BucketedHorizon | ScheduledHorizon,
    Field(discriminator="kind", json_schema_extra={"short": "a number of steps or a kind alone"}),
    BeforeValidator(_in_short),
]
"""Horizon policies; each has ``steps(difficulty, split, iteration) -> int``.

In a configuration a number is short for the same horizon in training and evaluation.
"""


def _is_training(split: Split) -> bool:
    return split in (Split.TRAIN, Split.DEMO)


def _require_valid(difficulty: int) -> None:
    if difficulty < 1:
        raise ValueError(f"a difficulty is at least 1, not {difficulty}")
