"""Rewards with their evidence."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from envs.types.record import Record


class PartRole(StrEnum):
    """What a part does to the score."""

    SCORED = "scored"
    """It enters the weighted mean, and says whether the task was done."""
    SHAPING = "shaping"
    """It enters the weighted mean, and says nothing of whether the task was done: it changes neither ``passed`` nor ``binary``."""
    PENALTY = "penalty"
    """Its value, at most 0, is added with its weight after the mean; it changes neither ``passed`` nor ``binary``."""
    GATE = "gate"
    """It is no part of the mean; if it does not hold, the mean becomes 0."""


class Cost(Record):
    """What it took to judge something."""

    seconds: float = Field(default=0.0, ge=0)
    """Of waiting for a judge or a server."""
    tokens: int = Field(default=0, ge=0)
    """Prompt and answer of a model together."""
    dollars: float = Field(default=0.0, ge=0)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            seconds=self.seconds + other.seconds,
            tokens=self.tokens + other.tokens,
            dollars=self.dollars + other.dollars,
        )


class RewardPart(Record):
    """One part of a reward with its evidence."""

    name: str
    value: float | None = Field(allow_inf_nan=False)
    """In [0, 1], a penalty's in [-1, 0]; ``None`` when the part is not available (left out of the mean, never zero)."""
    weight: float = Field(gt=0, allow_inf_nan=False)
    evidence: str
    """What was seen that gives this value, or why there is none."""
    role: PartRole = PartRole.SCORED
    required: bool = False
    """If it does not hold the mean becomes 0; if it is not available the bundle abstains. A gate always is."""
    holds_at: float = Field(default=1.0, gt=0, le=1)
    """Value from which it holds."""
    cost: Cost = Cost()

    @property
    def holds(self) -> bool | None:
        """Whether what it tells of is so; ``None`` when it is not available."""
        return None if self.value is None else self.value >= self.holds_at

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        low, high = (-1, 0) if self.role is PartRole.PENALTY else (0, 1)
        if self.value is not None and not low <= self.value <= high:
            raise ValueError(f"value {self.value} of part {self.name!r} is not in [{low}, {high}]")
        return self


class RewardBundle(Record):
    """All parts of an episode's reward, and what they come to.

    ``score`` is ``G * sum(w_i v_i) / sum(w_i)`` over the available scored and shaping parts, plus ``sum(w_j v_j)`` of the penalties, kept
    within [-1, 1];
    G is 0 if a gate or a required part does not hold, else 1. Without an available scored part, without a required one, or for a
    cause given by the episode, the bundle *abstains*: ``score`` is ``None`` and the episode is never trained on.
    """

    parts: tuple[RewardPart, ...] = ()
    score: float | None
    passed: bool
    """What was asked for was done well enough: G times the mean of the scored parts reaches the threshold, and nothing is in ``failed``."""
    abstained: str | None = None
    """Cause of the abstention; ``None`` when there is a usable reward."""
    binary: float | None = None
    """1.0 if every scored part and gate holds, 0.0 if one does not; ``None`` if that is not known: nothing available fails and something is
    not available, or the bundle abstains, or it is from before this was recorded."""
    failed: tuple[str, ...] = ()
    """Gates, required parts and other conditions that are not met, in words."""
    rubric_hash: str = ""
    """sha256 of the rubric that it was graded by; empty without one."""

    @property
    def cost(self) -> Cost:
        """Of all parts together."""
        return sum((part.cost for part in self.parts), Cost())

    @model_validator(mode="after")
    def _either_score_or_cause(self) -> Self:
        if (self.score is None) != (self.abstained is not None):
            raise ValueError(f"score {self.score} and abstention {self.abstained!r}: exactly one of them must be there")
        return self
