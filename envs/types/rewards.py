"""Rewards with their evidence."""

from __future__ import annotations

from pydantic import Field

from envs.types.record import Record


class RewardPart(Record):
    """One part of a reward with its evidence."""

    name: str
    value: float | None
    """In [0, 1]; ``None`` when the part is not available (left out of the mean, never zero)."""
    weight: float = Field(gt=0)
    evidence: str
    """What was seen that gives this value."""


class RewardBundle(Record):
    """All parts of an episode's reward, and what they come to.

    ``score`` is ``sum(w_i v_i) / sum(w_i)`` over the available parts; ``passed`` is ``score >= threshold``. With no available part,
    or a cause given by the episode, the bundle *abstains*: ``score`` is ``None`` and the episode is never trained on.
    """

    parts: tuple[RewardPart, ...] = ()
    score: float | None
    passed: bool
    abstained: str | None = None
    """Cause of the abstention; ``None`` when there is a usable reward."""
