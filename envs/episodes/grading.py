"""Grades one ended episode: by program, judge and sources of parts, within a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from envs.rewards import GradingEvidence, PartSource, score
from envs.rewards.behaviour import ActionErrors, Length, Performance, TurnForm, ValidatedParts
from envs.rewards.grader import Grader, Grading
from envs.rewards.judge import Judge, Judgement
from envs.rewards.judge_facts import RubricJudge
from envs.rewards.webarena import WebArenaParts
from envs.types import JudgeFact, RewardBundle, Rubric, Trajectory, WebTask
from envs.types.action_text import STRICT

JUDGED_WALL = "judge"
"""Kind of a wall that only the judge saw."""

GRADING_DEADLINE = 1200.0
"""Longest grading of an episode, in seconds. A slow judge answers a dozen one-minute questions."""


def part_sources(addresses: Mapping[str, str] | None = None, judge: Judge | None = None) -> list[PartSource]:
    """Return the sources of reward parts besides rubrics and pages.

    Sources without a weight are never asked.

    Args:
        addresses: Addresses of live sites by their names, for WebArena's evaluators.
        judge: An entered judge, which compares answers for the evaluators.
    """
    return [
        WebArenaParts(addresses, judge),
        ValidatedParts(),
        Performance(),
        TurnForm(STRICT),
        Length(),
        ActionErrors(),
    ]


@dataclass(frozen=True, slots=True)
class Graded:
    """Result of grading an episode."""

    reward: RewardBundle
    wall: str
    """Kind of the wall if only the judge saw one; else empty."""
    judgement: Judgement | None
    """The judge's questions and answers; ``None`` if it was not asked."""
    timed_out: bool
    """True if the deadline passed, so that the episode abstains."""
    seconds: Mapping[str, float]
    """Seconds by activity: ``program``, ``ask`` (the judge) and components. They may overlap."""


class RecordGrader:
    """Grades episodes, several at the same time on one event loop."""

    def __init__(
        self,
        weights: Mapping[str, float],
        sources: Sequence[PartSource],
        *,
        screenshot: Callable[[str], bytes],
        measure: Callable[[WebTask, GradingEvidence], Awaitable[GradingEvidence]] | None = None,
        own: PartSource | None = None,
        threads: Executor | None = None,
        judge: Judge | None = None,
        deadline: float = GRADING_DEADLINE,
    ) -> None:
        """
        Args:
            weights: Weights by component.
            sources: Sources of reward parts.
            screenshot: Returns the bytes of a blob.
            measure: Adds measurements to the evidence before facts are checked.
            own: Source that replaces the task's rubric, evaluators or page.
            threads: Executor in which facts are checked by program.
            judge: An entered judge.
            deadline: Seconds for one episode.
        """
        self._grader = Grader(weights, sources, threads, own)
        self._judge = judge
        self._measure = measure
        self._screenshot = screenshot
        self._deadline = deadline

    def may_ask(self, task: WebTask) -> bool:
        """Return True if the judge may be asked about episodes of a task."""
        if self._judge is None or self._grader.own is not None:
            return False
        return task.evaluators is not None or (task.rubric is not None and _asks_judge(task.rubric))

    async def grade(self, task: WebTask, trajectory: Trajectory) -> Graded:
        """Return the reward of an ended episode.

        An episode that met a wall abstains, since it says nothing about the policy.

        Raises:
            JudgeError: the task's rubric or its evaluators are not those that were frozen.
            Exception: a grader failed in a way that was not foreseen.
        """
        grading, judge, timed_out = Grading(), self._episode_judge(task, trajectory), False
        try:
            async with asyncio.timeout(self._deadline) as limit:
                evidence = GradingEvidence.of(trajectory)
                if self._measure is not None:
                    evidence = await self._measure(task, evidence)
                reward = await self._grader.grade(task, evidence, grading, judge=judge)
        except TimeoutError:
            if not limit.expired():
                raise
            timed_out = True
            cause = f"not graded within {self._deadline:g} s (rewards.deadline)"
            if judge is not None and task.rubric is not None:
                grading.lost(task.rubric, await judge.give_up(cause))
            reward = grading.given_up(cause)
        finally:
            if judge is not None:
                judge.close()
        judgement, wall = judge.judgement if judge is not None else None, ""
        if judgement is not None and judgement.blocked:
            # A program's result on a wall says nothing about the policy.
            reward = score(reward.parts, abstained=judgement.reason, rubric_hash=reward.rubric_hash)
            wall = JUDGED_WALL
        return Graded(reward, wall, judgement, timed_out, grading.seconds)

    def _episode_judge(self, task: WebTask, trajectory: Trajectory) -> RubricJudge | None:
        """Return the judge of this episode, or ``None`` if it need not be asked."""
        rubric = task.rubric
        if self._judge is None or self._grader.own is not None or rubric is None or not _asks_judge(rubric):
            return None
        read = trajectory.steps[0].observation.instruction if trajectory.steps else ""
        return RubricJudge(self._judge, rubric, instruction=task.instruction or read, screenshot=self._screenshot)


def _asks_judge(rubric: Rubric) -> bool:
    return any(isinstance(fact, JudgeFact) for fact in rubric.facts())
