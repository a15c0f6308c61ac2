"""Grades an ended episode by rubric, judge and every weighted reward source."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field

from envs.rewards.bundle import page_reward, score
from envs.rewards.compose import Component, PartSource, compose
from envs.rewards.evidence import GradingEvidence
from envs.rewards.facts import FactJudge, FactResult
from envs.rewards.rubric import ask_judge, check_by_program, combine, frozen_hash
from envs.rewards.webarena.parts import check_frozen
from envs.types import BrowserError, Cost, JudgeError, RewardBundle, RewardPart, Rubric, SiteError, WebTask


@dataclass(slots=True)
class Grading:
    """State of the grading of one episode."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by work: ``program``, ``ask`` (the judge), and each component that was asked for."""
    results: dict[str, FactResult] = field(default_factory=dict)
    """Results of the rubric's facts, by their ids."""
    rubric: RewardBundle | None = None
    """Bundle of the rubric, by the program's checks and later with the judge's answers."""
    parts: list[RewardPart] = field(default_factory=list)
    """Parts of the sources so far."""

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to `seconds`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def lost(self, rubric: Rubric, facts: Mapping[str, FactResult]) -> None:
        """Record the facts that the judge did not answer in time, with their cost."""
        if self.rubric is not None and facts:
            self.results |= facts
            # The parts do not depend on the evidence, and the score is not used.
            self.rubric = combine(rubric, self.results, GradingEvidence(), self.rubric.rubric_hash)

    def given_up(self, cause: str) -> RewardBundle:
        """Return the abstention with the parts so far."""
        parts = [*(self.rubric.parts if self.rubric else ()), *self.parts]
        return score(parts, abstained=cause, rubric_hash=self.rubric.rubric_hash if self.rubric else "")


@dataclass(frozen=True, slots=True)
class Grader:
    """Grades episodes, several at once on one event loop."""

    weights: Mapping[str, float]
    """Weights by component."""
    sources: Sequence[PartSource] = ()
    """Sources of parts, several per component if need be; none is asked without a weight."""
    threads: Executor | None = None
    """Threads that check rubrics by program; ``None`` for those of the event loop."""
    own: PartSource | None = None
    """Source that replaces the task's rubric, its evaluators and the page's own verdict."""

    async def grade(
        self,
        task: WebTask,
        evidence: GradingEvidence,
        grading: Grading,
        *,
        judge: FactJudge | None = None,
    ) -> RewardBundle:
        """Grade an episode.

        ``grading`` is filled meanwhile, for callers that stop waiting.

        Raises:
            JudgeError: The task's rubric or its evaluators are not those that were frozen.
        """
        rubric = task.rubric if self.own is None else None
        if task.evaluators is not None:
            # Checked here, because an error in a source makes only its component unavailable, and
            # this error must end the run.
            check_frozen(task.evaluators, task.evaluators_hash)
        if rubric is not None:
            await self._by_program(task, evidence, grading)
        sources = [source for source in self.sources if self.weights.get(source.component, 0.0) > 0]
        if self.own is not None:
            sources = [self.own, *(source for source in sources if source.component != Component.TASK)]
        async with asyncio.TaskGroup() as tasks:
            if rubric is not None and judge is not None:
                tasks.create_task(_ask(rubric, evidence, grading, judge))
            asked = [(source, tasks.create_task(_parts(source, task, evidence, grading))) for source in sources]
        available: defaultdict[str, list[RewardPart]] = defaultdict(list)
        for source, parts in asked:  # in the order of the sources, whoever answered first
            available[source.component] += parts.result()
        page = None if self.own is not None else page_reward(evidence.page_facts, steps=len(evidence.steps))
        return compose(available, self.weights, rubric=grading.rubric, page=page)

    async def _by_program(self, task: WebTask, evidence: GradingEvidence, grading: Grading) -> None:
        loop = asyncio.get_running_loop()
        with grading.timed("program"):
            grading.results, grading.rubric = await loop.run_in_executor(self.threads, _check, task, evidence)


def _check(task: WebTask, evidence: GradingEvidence) -> tuple[dict[str, FactResult], RewardBundle]:
    """Check the rubric's facts by program; return their results and the bundle."""
    assert task.rubric is not None
    known = frozen_hash(task.rubric, task.rubric_hash or None)
    results = check_by_program(task.rubric, evidence)
    return results, combine(task.rubric, results, evidence, known)


async def _ask(rubric: Rubric, evidence: GradingEvidence, grading: Grading, judge: FactJudge) -> None:
    assert grading.rubric is not None
    with grading.timed("ask"):
        asked = await ask_judge(rubric, evidence, judge)
    if asked:
        grading.results |= asked
        grading.rubric = combine(rubric, grading.results, evidence, grading.rubric.rubric_hash)


async def _parts(
    source: PartSource, task: WebTask, evidence: GradingEvidence, grading: Grading
) -> Sequence[RewardPart]:
    started = time.perf_counter()
    parts: Sequence[RewardPart]
    with grading.timed(str(source.component)):  # a plain text: it is a key in metrics.jsonl
        try:
            parts = await source.parts(task, evidence)
        except (JudgeError, SiteError, BrowserError) as error:
            cost = Cost(seconds=time.perf_counter() - started)
            parts = (RewardPart(name=source.component, value=None, weight=1.0, evidence=str(error), cost=cost),)
    grading.parts += parts
    return parts
