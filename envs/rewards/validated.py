"""The reward that a task's own Playwright function gave at the end of its episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from envs.rewards.compose import Component
from envs.rewards.evidence import GradingEvidence
from envs.types import RewardPart, WebTask


class ValidatedParts:
    """Part source of tasks with a script (`WebTask.script`)."""

    component: Literal[Component.TASK] = Component.TASK

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """Return one part with the script's reward; none where no ``validate`` ran."""
        if evidence.validated is None:
            return ()
        return (RewardPart(name="validate", value=evidence.validated, weight=1.0, evidence=evidence.validation),)
