"""Makes a reward bundle of parts. Pure functions: no browser, no clock, no network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from envs.types import PartRole, RewardBundle, RewardPart

PASS_THRESHOLD = 1.0
"""Score from which an episode passes: with programmatic facts, all of them hold."""

NO_PARTS = "no reward part is available"
"""Cause of an abstention when nothing could be judged."""

ROUNDING = 1e-9
"""Shortfall of a mean that still passes: 0.85, for example, has no exact binary form."""


def score(
    parts: Iterable[RewardPart],
    abstained: str | None = None,
    threshold: float | None = PASS_THRESHOLD,
    *,
    failed: Sequence[str] = (),
    rubric_hash: str = "",
) -> RewardBundle:
    """Make the bundle of reward parts.

    The score is ``G * sum(w_i v_i) / sum(w_i)`` of the available scored and shaping parts, plus
    ``sum(w_j v_j)`` of the penalties, clipped to [-1, 1]. G is 0 if a gate or a required part does
    not hold, else 1. If one of those is not available and none fails, the bundle abstains.

    Args:
        parts: Parts in any order; those with value ``None`` stay as evidence, but are left out of
            the mean.
        abstained: Cause of an abstention that the episode gives (a broken browser, a deadline). The
            bundle then has no score.
        threshold: Minimum mean (times G) of the scored parts that passes. ``None``: the episode
            passes if each of them holds.
        failed: Texts of other conditions that are not met: the episode does not pass, but its score
            stays.
        rubric_hash: Hash of the rubric that the parts come from.
    """
    parts = tuple(parts)
    abstained = _cause(parts) if abstained is None else abstained
    if abstained is not None:
        return RewardBundle(parts=parts, score=None, passed=False, abstained=abstained, rubric_hash=rubric_hash)
    closed = failed_requirements(parts)
    mean = 0.0 if closed else _mean(parts, PartRole.SCORED)
    binary = _binary(parts)
    enough = binary == 1.0 if threshold is None else mean >= threshold - ROUNDING
    return RewardBundle(
        parts=parts,
        score=total(parts),
        passed=enough and not closed and not failed,
        binary=binary,
        failed=(*closed, *failed),
        rubric_hash=rubric_hash,
    )


def total(parts: Sequence[RewardPart]) -> float:
    """Return the score of parts: G times their mean, plus the penalties.

    At least one scored or shaping part must be available.
    """
    mean = 0.0 if failed_requirements(parts) else _mean(parts, PartRole.SCORED, PartRole.SHAPING)
    penalties = math.fsum(part.weight * (part.value or 0.0) for part in parts if part.role is PartRole.PENALTY)
    return min(1.0, max(-1.0, mean + penalties))


def _mean(parts: Sequence[RewardPart], *roles: PartRole) -> float:
    """Return the weighted mean of the available parts with these roles."""
    known = [(part.weight, part.value) for part in parts if part.role in roles and part.value is not None]
    mean = math.fsum(weight * value for weight, value in known) / math.fsum(weight for weight, _ in known)
    return min(1.0, max(0.0, mean))  # the division may round to just outside


def failed_requirements(parts: Sequence[RewardPart]) -> list[str]:
    """Return a sentence for each gate and required part that is known not to hold."""
    return [f"{part.name} does not hold" for part in parts if _needed(part) and part.holds is False]


def _cause(parts: Sequence[RewardPart]) -> str | None:
    """Return the reason why the parts give no score, or ``None``.

    The score is 0 where a gate or a required part fails, whatever the others are.
    """
    if failed_requirements(parts):
        return None
    for part in parts:
        if _needed(part) and part.value is None:
            return f"{part.name} is needed and not available: {part.evidence}"
    if not any(part.role is PartRole.SCORED and part.value is not None for part in parts):
        return NO_PARTS
    return None


def _needed(part: RewardPart) -> bool:
    return part.required or part.role is PartRole.GATE


def _binary(parts: Sequence[RewardPart]) -> float | None:
    holds = [part.holds for part in parts if part.role in (PartRole.SCORED, PartRole.GATE)]
    if False in holds:
        return 0.0
    return None if None in holds else 1.0


def page_reward(facts: Mapping[str, float | bool | str], *, steps: int) -> RewardPart:
    """Make the part of the page's own verdict.

    Its value is 1 if the page ended with a positive reward, else 0: BrowserGym's rule for MiniWoB.
    An episode that reached its horizon before the page declared an end scores 0: not finishing is a
    failure of the policy. The part is not available if the page declares no end, or an end without
    a reward.
    """
    done, raw = facts.get("done"), facts.get("raw_reward")
    if done is None or (done and not isinstance(raw, int | float)):
        return RewardPart(name="page", value=None, weight=1.0, evidence="the page declares no end and no reward")
    if not done:
        return RewardPart(name="page", value=0.0, weight=1.0, evidence=f"page not done after {steps} steps")
    assert isinstance(raw, int | float)
    reason = facts.get("reason")
    evidence = f"raw_reward {raw:g} after {steps} steps" + (f": {reason}" if reason else "")
    return RewardPart(name="page", value=1.0 if raw > 0 else 0.0, weight=1.0, evidence=evidence)
