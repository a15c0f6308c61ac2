"""WebArena's evaluators as parts of the bundle.

The bundle's ``binary`` is the benchmark's score, the product; its ``score`` is the partial one, the
mean over evaluators of the mean of their comparisons. Where the product hangs on what is not known,
the bundle abstains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from envs.rewards.compose import Component
from envs.rewards.evidence import GradingEvidence
from envs.rewards.judge import cost_of
from envs.rewards.webarena.evaluate import AnswerJudge, EvaluatorResult, evaluate
from envs.types import Cost, JudgeError, RewardPart, WebTask
from envs.types.webarena import EvalType, WebArenaEval, evaluators_hash, placed


class WebArenaParts:
    """The `envs.rewards.compose.PartSource` of tasks with ``evaluators``."""

    component: Literal[Component.TASK] = Component.TASK

    def __init__(self, addresses: Mapping[str, str] | None = None, judge: AnswerJudge | None = None) -> None:
        """
        Args:
            addresses: Addresses of sites by name, for the placeholders.
            judge: An entered judge that compares answers in other words; without one those
                comparisons are not available.
        """
        self._addresses = addresses or {}
        self._judge = judge

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """One for each comparison, with its share of the partial score.

        Raises:
            JudgeError: the evaluators are not those that were frozen.
        """
        if task.evaluators is None:
            return ()
        check_frozen(task.evaluators, task.evaluators_hash)
        final, read = evidence.final, evidence.steps[0].observation.instruction if evidence.steps else ""
        result = await evaluate(
            placed(task.evaluators, self._addresses),
            question=task.instruction or read,
            answer=evidence.answer,
            last_url=final.url if final else "",
            seen=evidence.looked or (),
            judge=self._judge,
        )
        return parts_of(result)


def check_frozen(evaluators: WebArenaEval, expected: str) -> None:
    """Raises ``JudgeError`` if evaluators are not those of an expected hash; none is expected where
    it is empty."""
    if expected and (actual := evaluators_hash(evaluators)) != expected:
        raise JudgeError(
            f"the evaluators have hash {actual}, and {expected} was frozen for this run: they were changed since. "
            "Grade by those that were frozen, or start a new run with these"
        )


def parts_of(result: EvaluatorResult) -> tuple[RewardPart, ...]:
    """The parts of an evaluation. Pure."""
    known = Counter[EvalType](part.evaluator for part in result.parts if part.value is not None)
    judged = [part.name for part in result.parts if part.name.startswith(("fuzzy_match", "unachievable", "eval_vqa"))]
    cost = cost_of(result.calls)
    return tuple(
        RewardPart(
            name=f"{part.evaluator}/{part.name}",
            value=part.value,
            weight=1.0 / max(1, known[part.evaluator]),
            evidence=part.evidence,
            required=part.value is None and result.score is None,
            cost=cost if part.name in judged[:1] else Cost(),
        )
        for part in result.parts
    )
