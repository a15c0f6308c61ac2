"""Reward parts on behaviour (performance, turn format, length, errors), and of a task's script."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import ClassVar

from envs.rewards.chromiumrl.quality import episode_quality
from envs.rewards.compose import Component
from envs.rewards.evidence import GradingEvidence
from envs.types import PartRole, RewardPart, WebTask

NO_SIGNALS = "signals were not recorded"
NO_TURN = "the policy had no turn"


class Performance:
    """ChromiumRL's quality over the signals of the episode."""

    component: ClassVar = Component.PERFORMANCE

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """Return one part; it is not available without signals."""
        if evidence.signals is None:
            return (RewardPart(name="performance", value=None, weight=1.0, evidence=NO_SIGNALS),)
        return (episode_quality(evidence.signals).part(),)


class TurnForm:
    """Share of turns in a strict form."""

    component: ClassVar = Component.FORMAT

    def __init__(self, strict: Set[str]) -> None:
        """
        Args:
            strict: Names of the strict forms, as steps record them.
        """
        self._strict = strict

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """Return one part; it is not available without a turn."""
        turns = len(evidence.steps)
        if not turns:
            return (RewardPart(name="format", value=None, weight=1.0, evidence=NO_TURN),)
        strict = sum(step.form in self._strict for step in evidence.steps)
        others = sorted({step.form or "unknown" for step in evidence.steps} - self._strict)
        seen = f"{strict} of {turns} turns in a strict form" + (f"; others: {', '.join(others)}" if others else "")
        return (RewardPart(name="format", value=strict / turns, weight=1.0, evidence=seen),)


class Length:
    """Penalty for the used share of the horizon."""

    component: ClassVar = Component.LENGTH

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """Return one penalty: -steps / horizon."""
        steps = len(evidence.steps)
        return (_penalty("length", steps, task.horizon, f"{steps} steps of at most {task.horizon}"),)


class ActionErrors:
    """Penalty for the share of actions that were not carried out."""

    component: ClassVar = Component.ACTION_ERRORS

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """Return one penalty: -errors / steps."""
        errors = [str(step.error) for step in evidence.steps if step.error is not None]
        names = f": {', '.join(sorted(set(errors)))}" if errors else ""
        seen = f"{len(errors)} of {len(evidence.steps)} actions were not carried out{names}"
        return (_penalty("action_errors", len(errors), len(evidence.steps), seen),)


def _penalty(name: str, count: int, max_count: int, evidence: str) -> RewardPart:
    value = -min(1.0, count / max_count) if max_count else 0.0
    return RewardPart(name=name, value=value, weight=1.0, role=PartRole.PENALTY, evidence=evidence)


class ValidatedParts:
    """Part source of tasks with a script (`WebTask.script`)."""

    component: ClassVar = Component.TASK

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """Return one part with the script's reward; none where no ``validate`` ran."""
        if evidence.validated is None:
            return ()
        return (RewardPart(name="validate", value=evidence.validated, weight=1.0, evidence=evidence.validation),)
