"""Judges all ``judge`` facts of an episode's rubric by one grading of the LLM judge.

::

    grade(rubric, evidence, judge=RubricJudge(judge, rubric, instruction=…, screenshot=store.blob))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from envs.observation.hashes import action_signature
from envs.rewards.chromiumrl import StepDiff, describe_diff
from envs.rewards.evidence import GradingEvidence
from envs.rewards.facts import FactResult
from envs.rewards.judge import (
    CallRecord,
    Judge,
    JudgeCase,
    JudgeCheck,
    JudgedFact,
    Judgement,
    JudgeStep,
    Purpose,
    cost_of,
)
from envs.types import Cost, FactGroup, Rubric, Step
from envs.types import JudgeFact as RubricFact

NO_CLAIM = "there is no answer, so nothing is claimed"
THE_END = "none: the page after the last action"
"""Text in place of an action beside the last picture."""
NOT_APART = "the judge does not ask for it apart: its one verdict covers it"


class RubricJudge:
    """`envs.rewards.FactJudge` of one episode.

    The first call starts the grading of all facts; the other calls wait for its result.

    The value of a fact is the share of votes for it. Where the judge abstains, the fact is not
    available, but its cost is recorded all the same. The page after the last action is shown last,
    if there is a picture of it. A judge with one verdict for the whole episode (WebJudge,
    WebVoyager) gives every fact the same value. If the answer claims something that no page showed
    (WebGym's criterion B), no fact holds.
    """

    def __init__(self, judge: Judge, rubric: Rubric, *, instruction: str, screenshot: Callable[[str], bytes]) -> None:
        """
        Args:
            judge: An entered judge.
            rubric: Rubric whose ``judge`` facts are judged.
            instruction: Instruction of the task, as the policy read it.
            screenshot: Returns the bytes of a step's picture, or of its changes (JSON), by name.
        """
        self._judge = judge
        self._instruction = instruction
        self._screenshot = screenshot
        self._facts = [
            (group, fact) for group in rubric.fact_groups for fact in group.facts if isinstance(fact, RubricFact)
        ]
        self._asked = [fact for fact in rubric.facts() if isinstance(fact, RubricFact)]
        """``judge`` facts, gates included."""
        self._pays = next((fact.id for fact in self._asked), "")
        """Id of the fact that bears the costs of questions about the whole episode."""
        self._pending: asyncio.Future[Judgement] | None = None
        self._calls: list[CallRecord] = []
        self.judgement: Judgement | None = None
        """The judgement with every call and check; ``None`` before the judge was asked."""

    async def judge(self, fact: RubricFact, group: FactGroup | None, evidence: GradingEvidence) -> FactResult:
        """Judge a fact; if the judge abstained, the fact is not available, with the cause."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._ask_judge(evidence))
        judgement = self.judgement = await asyncio.shield(self._pending)
        value: float | None
        if judgement.state == "abstained":
            value, why = None, judgement.reason
        elif fact.criterion == "grounded":
            value, why = _grounded(judgement, NOT_APART if evidence.answer else NO_CLAIM)
        else:
            value, why = _of_fact(judgement, fact.id)
        return FactResult(value=value, evidence=why, cost=self._cost(judgement, fact))

    async def _ask_judge(self, evidence: GradingEvidence) -> Judgement:
        episode = await asyncio.to_thread(self._episode, evidence)  # blobs of all steps are read
        return await self._judge.judge(episode, self._calls)

    async def give_up(self, cause: str) -> dict[str, FactResult]:
        """Cancel the grading; return the results of the lost facts, with their cost.

        The calls so far stay in `judgement`, an abstention.
        """
        if self._pending is None or self.judgement is not None:
            return {}
        self._pending.cancel()
        await asyncio.wait([self._pending])
        if self._pending.cancelled():
            self.judgement = Judgement(state="abstained", score=None, reason=cause, calls=tuple(self._calls))
        else:  # it was over just now, or it failed
            self.judgement = self._pending.result()
        judgement = self.judgement
        return {
            fact.id: FactResult(value=None, evidence=cause, cost=self._cost(judgement, fact)) for fact in self._asked
        }

    def close(self) -> None:
        """Cancel a grading that is still under way."""
        if self._pending is not None:
            self._pending.cancel()

    def _episode(self, evidence: GradingEvidence) -> JudgeCase:
        steps = [
            JudgeStep(
                screenshot=self._screenshot(step.screenshot),
                action=action_signature(step.action, step.observation.elements),
                url=step.observation.url,
                page_text=step.observation.text,
                changes=self._changes(step),
            )
            for step in evidence.steps
        ]
        final = evidence.final
        # An answer leaves the page as it was: its picture is that of the step, and is shown once.
        if steps and final is not None and evidence.final_screenshot not in ("", evidence.steps[-1].screenshot):
            picture = self._screenshot(evidence.final_screenshot)
            steps.append(JudgeStep(screenshot=picture, action=THE_END, url=final.url, page_text=final.text))
        facts = tuple(
            JudgedFact(fact_id=fact.id, text=fact.description, group=group.description)
            for group, fact in self._facts
            if fact.criterion == "fact"
        )
        return JudgeCase(
            instruction=self._instruction,
            steps=tuple(steps),
            answer=evidence.answer or None,
            facts=facts,
        )

    def _changes(self, step: Step) -> str:
        """Describe the recorded changes of a step."""
        return describe_diff(StepDiff.model_validate_json(self._screenshot(step.dom_diff))) if step.dom_diff else ""

    def _cost(self, judgement: Judgement, fact: RubricFact) -> Cost:
        own = {other.id for _, other in self._facts}
        return cost_of(
            call
            for call in judgement.calls
            if (call.subject == fact.id if call.subject in own else fact.id == self._pays)
        )


def _of_fact(judgement: Judgement, name: str) -> tuple[float | None, str]:
    check = _check(judgement, Purpose.CRITERION_A, name)
    if check is not None:
        if check.holds is None:
            return None, check.reason
        return check.ayes / (check.ayes + check.noes), check.reason
    if judgement.state == "passed":
        return 1.0, judgement.reason
    if judgement.score is None:
        return None, f"it was not asked about: another one failed ({judgement.reason})"
    return 0.0, judgement.reason


def _grounded(judgement: Judgement, not_asked: str) -> tuple[float | None, str]:
    check = _check(judgement, Purpose.CRITERION_B, "")
    if check is None:
        return 1.0, not_asked
    if check.holds is None:
        return None, check.reason
    return check.ayes / (check.ayes + check.noes), check.reason


def _check(judgement: Judgement, purpose: Purpose, subject: str) -> JudgeCheck | None:
    return next((check for check in judgement.checks if (check.purpose, check.subject) == (purpose, subject)), None)
