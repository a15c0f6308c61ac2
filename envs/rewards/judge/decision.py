"""Makes a judgement of answered checks. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from envs.rewards.judge.records import JudgeCheck, Judgement
from envs.rewards.judge.votes import JudgeCalls


def abstain(grading: JudgeCalls, cause: str, *, blocked: bool = False) -> Judgement:
    """Return an abstention with its cause and all checks and calls so far."""
    return Judgement(
        state="abstained",
        score=None,
        reason=cause,
        blocked=blocked,
        checks=tuple(grading.checks),
        calls=tuple(grading.calls),
    )


def rule(grading: JudgeCalls, deciding: Sequence[JudgeCheck], *, asked_all: bool = True) -> Judgement:
    """Return the judgement of checks that must all hold.

    If one check fails, the episode fails, whatever the others say. Otherwise, if one abstained, so
    does the judgement. The score is the share of checks that hold; it is ``None`` if a check
    abstained or not all were asked (``asked_all`` is false).
    """
    known = [check.holds for check in deciding if check.holds is not None]
    score = sum(known) / len(deciding) if asked_all and len(known) == len(deciding) else None
    failed = next((check for check in deciding if check.holds is False), None)
    lost = next((check for check in deciding if check.holds is None), None)
    if failed is not None:
        return _judgement(grading, "failed", score, f"{_name(failed)}: {failed.reason}")
    if lost is not None:
        return abstain(grading, f"{_name(lost)}: {lost.reason}")
    return _judgement(grading, "passed", score, "; ".join(f"{_name(check)}: {check.reason}" for check in deciding))


def reject(grading: JudgeCalls, reason: str) -> Judgement:
    """Return a failure with score 0, for a missing answer or one with unseen claims."""
    return _judgement(grading, "failed", 0.0, reason)


def _judgement(grading: JudgeCalls, state: str, score: float | None, reason: str) -> Judgement:
    return Judgement.model_validate(
        {"state": state, "score": score, "reason": reason, "checks": grading.checks, "calls": grading.calls}
    )


def _name(check: JudgeCheck) -> str:
    return f"{check.purpose} {check.subject}".strip()
