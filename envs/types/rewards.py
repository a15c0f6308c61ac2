"""Rewards with their evidence."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from envs.types.record import Record


class PartRole(StrEnum):
    """Effect of a part on the score."""

    SCORED = "scored"
    """The part enters the weighted mean, and decides if the task was done."""
    SHAPING = "shaping"
    """The part enters the weighted mean and changes neither ``passed`` nor ``binary``."""
    PENALTY = "penalty"
    """The part's value, at most 0, is added with its weight after the mean; it changes neither
    ``passed`` nor ``binary``."""
    GATE = "gate"
    """The part does not enter the mean; if it does not hold, the mean becomes 0."""


class Cost(Record):
    """Cost of a judgement."""

    seconds: float = Field(default=0.0, ge=0)
    """Seconds of waiting for a judge or a server."""
    tokens: int = Field(default=0, ge=0)
    """Tokens of prompts and answers together."""
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
    """Value in [0, 1], of a penalty in [-1, 0]; ``None`` when the part is not available (left out
    of the mean, never zero)."""
    weight: float = Field(gt=0, allow_inf_nan=False)
    evidence: str
    """Observation that gives this value, or the reason why there is none."""
    role: PartRole = PartRole.SCORED
    required: bool = False
    """True sets the mean to 0 if the part does not hold, and abstains if it is not available. Gates
    are always required."""
    holds_at: float = Field(default=1.0, gt=0, le=1)
    """Least value at which the part holds."""
    cost: Cost = Cost()

    @property
    def holds(self) -> bool | None:
        """True if the value reaches ``holds_at``; ``None`` when it is not available."""
        return None if self.value is None else self.value >= self.holds_at

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        low, high = (-1, 0) if self.role is PartRole.PENALTY else (0, 1)
        if self.value is not None and not low <= self.value <= high:
            raise ValueError(f"value {self.value} of part {self.name!r} is not in [{low}, {high}]")
        return self


class RewardBundle(Record):
    """All parts of an episode's reward, and the score made of them.

    ``score`` is ``G * sum(w_i v_i) / sum(w_i)`` over the available scored and shaping parts, plus
    ``sum(w_j v_j)`` of the penalties, kept within [-1, 1]; G is 0 if a gate or a required part does
    not hold, else 1. Without an available scored part, without a required one, or for a cause given
    by the episode, the bundle *abstains*: ``score`` is ``None`` and the episode is never trained
    on.
    """

    parts: tuple[RewardPart, ...] = ()
    score: float | None
    passed: bool
    """True if G times the mean of the scored parts reaches the threshold and ``failed`` is
    empty."""
    abstained: str | None = None
    """Cause of the abstention; ``None`` when there is a usable reward."""
    binary: float | None = None
    """1.0 if every scored part and gate holds, 0.0 if one does not. ``None`` if that is unknown (no
    available part fails and one is not available), and if the bundle abstains."""
    failed: tuple[str, ...] = ()
    """Gates, required parts and other conditions that are not met, as texts."""
    rubric_hash: str = ""
    """sha256 of the rubric of the grading; empty without one."""

    @property
    def cost(self) -> Cost:
        """Sum over all parts."""
        return sum((part.cost for part in self.parts), Cost())

    @model_validator(mode="after")
    def _either_score_or_cause(self) -> Self:
        if (self.score is None) != (self.abstained is not None):
            raise ValueError(f"score {self.score} and abstention {self.abstained!r}: exactly one of them must be there")
        return self
