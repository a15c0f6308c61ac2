"""The reward stage: grades ended episodes after the browser is released, with bounded concurrency.

An episode enters it after its browser and its slot are released, and leaves it with its reward.
Facts are checked by program once, in a thread. Then the judge and the sources of parts are asked
concurrently. An episode that is not graded within ``rewards.deadline`` of its turn, the judge's
turn included, abstains. Unexpected errors are raised and end the rollout.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.chat import Ledger
from envs.episodes import RecordGrader
from envs.rewards import Component, GradingEvidence, PartSource, reward_source
from envs.rewards.judge import Judge, JudgeConfig, Judgement
from envs.types import Cost, Trajectory, WebTask
from tasks_lib.config import RewardConfig
from tasks_lib.worker.activity import ActivityClock


def judge_account(judge: JudgeConfig | None, spent: Path) -> dict[str, Any]:
    """Return the spending of a run's judges, for its metrics; empty without a judge.

    It has the form ``{"judge": {"requests": {"spent": 12, "left": 88}, "tokens": …}}``, where
    ``left`` is ``None`` without a budget. Also called before anything is played, because a judge
    does not send requests that it cannot count.

    Raises:
        StorageError: the file of the spending cannot be read; names the file, and what to do.
    """
    return {} if judge is None else {"judge": judge.limits.account(Ledger(spent).read())}


@dataclass(slots=True)
class StageCounts:
    """Counters of a reward stage."""

    graded: int = 0
    """Episodes that were graded, including abstentions of the grading."""
    abstained: int = 0
    """Graded episodes that got no reward."""
    timed_out: int = 0
    """Graded episodes whose deadline passed."""
    waiting: int = 0
    """Episodes that wait for their turn now."""
    most_waiting: int = 0
    waiting_seconds: float = 0.0
    """Seconds that episodes waited for their turn, summed over the episodes."""
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by activity: ``program``, ``ask`` (the judge) and components.

    Several activities may run at once.
    """
    cost: Cost = field(default_factory=Cost)
    """Total cost of all rewards."""

    def metrics(self) -> dict[str, Any]:
        """Return the counters as JSON values."""
        return {
            "graded": self.graded,
            "abstained": self.abstained,
            "timed_out": self.timed_out,
            "waiting": self.waiting,
            "most_waiting": self.most_waiting,
            "waiting_seconds": self.waiting_seconds,
            "seconds": dict(self.seconds),
            "tokens": self.cost.tokens,
            "dollars": self.cost.dollars,
        }


class RewardStage:
    """Grades the episodes of one shard. Used from one event loop."""

    def __init__(
        self,
        config: RewardConfig,
        clock: ActivityClock,
        *,
        sources: list[PartSource],
        measure: Callable[[WebTask, GradingEvidence], Awaitable[GradingEvidence]] | None = None,
        threads: Executor | None = None,
        judge: Judge | None = None,
        screenshot: Callable[[str], bytes],
        keep: Callable[[bytes], str] | None = None,
    ) -> None:
        """
        Args:
            measure: Adds measurements to the evidence that the check of facts needs.
            threads: Executor in which facts are checked by program.
            judge: Entered judge, which has limits of its own beside those of ``config``.
            screenshot: Returns the bytes of a blob.
            keep: Stores questions and answers of the judge and returns the blob's name; ``None``:
                they are not stored.
        """
        self.counts = StageCounts()
        self._grader = RecordGrader(
            config.weights(),
            sources,
            screenshot=screenshot,
            measure=measure,
            threads=threads,
            judge=judge,
            own=reward_source(config.function, Component.TASK) if config.function else None,
            deadline=config.deadline,
        )
        self._places = asyncio.Semaphore(config.concurrency)
        self._clock = clock
        self._judge = judge
        self._keep = keep

    async def grade(self, task: WebTask, trajectory: Trajectory) -> Trajectory:
        """Return the episode with its reward, when its turn comes.

        An episode that failed for a reason that is not the policy's is returned as it is.

        Raises:
            JudgeError: the task's rubric or its evaluators are not those that were frozen.
            DamagedLedger: the judge cannot count its spending until its file is repaired. No
                episode is given up for it.
            Exception: an unexpected error of a grader.
        """
        if trajectory.error is not None:
            return trajectory
        counts, arrived = self.counts, time.perf_counter()
        counts.waiting += 1
        counts.most_waiting = max(counts.most_waiting, counts.waiting)
        async with AsyncExitStack() as turns:
            try:
                # The judge's turn first: an episode that waits for it occupies no place here, and
                # its deadline has not begun.
                if self._judge is not None and self._grader.may_ask(task):
                    await turns.enter_async_context(self._judge.turns)
                await turns.enter_async_context(self._places)
            finally:
                counts.waiting -= 1
                counts.waiting_seconds += time.perf_counter() - arrived
            with self._clock("reward"):
                graded = await self._grader.grade(task, trajectory)
                judgement_blob = await self._store_judgement(graded.judgement)
        if self._judge is not None and self._judge.damage is not None:
            raise self._judge.damage
        for name, seconds in graded.seconds.items():
            counts.seconds[name] += seconds
        reward = graded.reward
        counts.graded += 1
        counts.timed_out += graded.timed_out
        counts.abstained += reward.abstained is not None
        counts.cost += reward.cost
        return trajectory.model_copy(update={"reward": reward, "wall": graded.wall, "judgement": judgement_blob})

    async def _store_judgement(self, judgement: Judgement | None) -> str:
        """Store what the judge was asked and answered; return the blob's name or an empty text."""
        if judgement is None or self._keep is None:
            return ""
        return await asyncio.to_thread(self._keep, judgement.model_dump_json().encode())
