"""The reward stage: grades ended episodes after the browser is released, with bounded concurrency.

An episode enters it when its browser and its slot were given back, and leaves it with its reward, for whoever stores it. Facts are checked by
program once, in a thread; then the judge and the sources of parts are asked, at the same time. An episode that is not graded
within ``rewards.deadline`` of its turn, the judge's turn included, abstains. What fails unexpectedly is raised, and ends the rollout.
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

from envs.episodes import EpisodeGrader
from envs.rewards import Component, EpisodeEvidence, PartSource, reward_source
from envs.rewards.judge import Judge, JudgeConfig, Judgement, Ledger
from envs.types import Cost, Trajectory, WebTask
from tasks_lib.config import RewardConfig
from tasks_lib.episode.activity import ActivityClock


def judge_account(judge: JudgeConfig | None, spent: Path) -> dict[str, Any]:
    """What the judges of a run have spent, for its metrics: ``{"judge": {"requests": {"spent": 12, "left": 88}, "tokens": …}}``; ``left`` is
    ``None`` without a budget. Nothing without a judge. Also called before anything is played: what cannot be counted would not be judged.

    Raises:
        StorageError: it cannot be read what was spent; names the file, and what to do.
    """
    return {} if judge is None else {"judge": judge.limits.account(Ledger(spent).read())}


@dataclass(slots=True)
class StageCounts:
    """What a reward stage has done."""

    graded: int = 0
    """Episodes that were graded, abstentions of the grading among them."""
    abstained: int = 0
    """Of those, episodes that nobody could give a reward."""
    timed_out: int = 0
    """Of those, episodes whose deadline passed."""
    waiting: int = 0
    """Episodes that wait now."""
    most_waiting: int = 0
    waiting_seconds: float = 0.0
    """Sum of the times that episodes waited for their turn."""
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Sums by what took them: ``program``, ``ask`` (the judge) and components. Several may run at once."""
    cost: Cost = field(default_factory=Cost)
    """Of all bundles together."""

    def metrics(self) -> dict[str, Any]:
        """As plain values."""
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
    """Grades the episodes of one shard. One event loop."""

    def __init__(
        self,
        config: RewardConfig,
        clock: ActivityClock,
        *,
        sources: list[PartSource],
        measure: Callable[[WebTask, EpisodeEvidence], Awaitable[EpisodeEvidence]] | None = None,
        threads: Executor | None = None,
        judge: Judge | None = None,
        screenshot: Callable[[str], bytes],
        keep: Callable[[bytes], str] | None = None,
    ) -> None:
        """
        Args:
            measure: Adds to the evidence what has to be measured before facts can be checked.
            threads: Where facts are checked by program.
            judge: Entered. Has limits of its own beside those of ``config``.
            screenshot: The bytes of a blob.
            keep: Stores a blob and gives its name, for what the judge was asked and said; ``None``: that is not kept.
        """
        self.counts = StageCounts()
        self._grader = EpisodeGrader(
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
        """The episode with its reward, when it is its turn; one that failed for a reason that is not the policy's stays as it is.

        Raises:
            JudgeError: the task's rubric or its evaluators are not those that were frozen.
            DamagedLedger: the judge cannot count what it spends until somebody mends that. No episode is given up for it.
            Exception: a grader failed in a way that nobody foresaw.
        """
        if trajectory.error is not None:
            return trajectory
        counts, arrived = self.counts, time.perf_counter()
        counts.waiting += 1
        counts.most_waiting = max(counts.most_waiting, counts.waiting)
        async with AsyncExitStack() as held:
            try:
                # The judge's turn first: an episode that waits for it takes no other's place, and its deadline has not begun.
                if self._judge is not None and self._grader.may_ask(task):
                    await held.enter_async_context(self._judge.turns)
                await held.enter_async_context(self._places)
            finally:
                counts.waiting -= 1
                counts.waiting_seconds += time.perf_counter() - arrived
            with self._clock("reward"):
                found = await self._grader.grade(task, trajectory)
                kept = await self._kept(found.judgement)
        if self._judge is not None and self._judge.damage is not None:
            raise self._judge.damage
        for name, seconds in found.seconds.items():
            counts.seconds[name] += seconds
        reward = found.reward
        counts.graded += 1
        counts.timed_out += found.timed_out
        counts.abstained += reward.abstained is not None
        counts.cost += reward.cost
        return trajectory.model_copy(update={"reward": reward, "wall": found.wall, "judgement": kept})

    async def _kept(self, judgement: Judgement | None) -> str:
        """Name of the blob of what the judge was asked and said; empty without one."""
        if judgement is None or self._keep is None:
            return ""
        return await asyncio.to_thread(self._keep, judgement.model_dump_json().encode())
