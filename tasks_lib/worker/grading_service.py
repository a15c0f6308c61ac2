"""Grades stored episodes again on a worker. Loads no policy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tasks_lib.folder.regraded import Regraded
from tasks_lib.worker.activity import ACTIVITIES, ActivityClock
from tasks_lib.worker.requests import GradeReport, GradeRequest
from tasks_lib.worker.resources import RunResources, WorkerResources
from tasks_lib.worker.reward_stage import RewardStage, judge_account
from training.ledger.store import RunStore, write_json_once


@dataclass(frozen=True)
class GradingService:
    """Grades the episodes of requests with the resources of a worker."""

    worker: WorkerResources

    def grade(self, request: GradeRequest) -> GradeReport:
        """Grade the episodes of ``request`` that are not graded yet. Blocks."""
        store = RunStore(Path(request.run_dir))
        missing = [episode for episode in request.episodes if not store.regraded_path(request.name, episode).exists()]
        stage: dict[str, Any] = {}
        if missing:
            judge_account(request.rollout.judge, request.spent_path)
            with self.worker.prepared(request) as run:
                stage = self.worker.loop.carry_out(self._grade_all(request, missing, store, run))
        return GradeReport(graded=len(missing), already_graded=len(request.episodes) - len(missing), stage=stage)

    async def _grade_all(
        self, request: GradeRequest, episodes: list[str], store: RunStore, run: RunResources
    ) -> dict[str, Any]:
        """Grade stored episodes and return the metrics of the reward stage."""
        stage = run.reward_stage(request, store, ActivityClock(ACTIVITIES), self.worker.grading)
        async with asyncio.TaskGroup() as batch:
            for episode_id in episodes:
                batch.create_task(self._grade(request, episode_id, store, stage))
        return stage.counts.metrics()

    async def _grade(self, request: GradeRequest, episode_id: str, store: RunStore, stage: RewardStage) -> None:
        loop, files = asyncio.get_running_loop(), self.worker.files
        trajectory = await loop.run_in_executor(files, store.trajectory, episode_id)
        graded = await stage.grade(request.attempted(episode_id, trajectory.task_id), trajectory)
        result = Regraded(
            episode_id=episode_id,
            task_id=trajectory.task_id,
            reward=graded.reward,
            before=trajectory.reward,
            wall=graded.wall,
            judgement=graded.judgement,
        )
        path = store.regraded_path(request.name, episode_id)
        # Another worker may grade the same episode, and its judge may differ: the first counts.
        await loop.run_in_executor(files, partial(write_json_once, path, result, sealed=True))
