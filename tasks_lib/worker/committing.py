"""Plays the episodes of a slot, stores them, and commits them as groups.

A group may be played by two workers at once. Each stores its trajectories under its own token; the first to make the group's record
wins, and the other one deletes what it stored of that group. What a worker that died has stored stays, as `RunStore.orphans`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from envs.types import Trajectory
from tasks_lib.episode.activity import ActivityClock
from tasks_lib.episode.live import LiveState, SlotStatus
from tasks_lib.episode.play import EpisodeRunner
from tasks_lib.episode.reward_stage import RewardStage
from tasks_lib.worker.blocklist import Blocklist
from tasks_lib.worker.permits import Permits
from tasks_lib.worker.slots import order_episodes, plan_slots
from training.groups import EpisodeSummary, GroupRecord, GroupSpec
from training.ledger.journal import read_group
from training.ledger.store import RunStore, write_json_once

logger = logging.getLogger(__name__)

WAITING = 4
"""Episodes of a rollout that wait for a permit, or have one, for each that a worker plays at once: enough to find one of the same page."""


@dataclass(slots=True)
class PermitCounts:
    """How long episodes waited until they were played."""

    done: int = 0
    """Episodes that were begun."""
    waiting_seconds: float = 0.0
    """Sum of the times from when their shard came to the worker: for a slot, for others in it, and for a permit."""


@dataclass(frozen=True)
class Play:
    """Plays the episodes of one rollout. They are graded and stored beside it, in ``tasks``: a slot goes on at once."""

    groups: list[GroupSpec]
    runner: EpisodeRunner
    committer: GroupCommitter
    live: LiveState
    tasks: asyncio.TaskGroup
    permits: Permits
    """Of the worker, over all its rollouts."""
    counts: PermitCounts = field(default_factory=PermitCounts)
    _came: float = field(default_factory=time.perf_counter)

    def slots(self, count: int, *, fixed: bool) -> Iterator[Coroutine[Any, Any, None]]:
        """What is to be run side by side.

        Args:
            count: Episodes that the worker plays at once.
            fixed: The episodes of ``count`` slots are planned beforehand; otherwise each waits for a permit.
        """
        if fixed:
            for number, plan in enumerate(plan_slots(self.groups, count)):
                yield self._slot(plan, f"{self.groups[0].group_id}-slot-{number}")
        else:
            episodes = order_episodes(self.groups)
            queue = iter(episodes)
            for _ in range(min(WAITING * count, len(episodes))):
                yield self._wait_and_play(queue)

    async def _slot(self, plan: Iterable[tuple[int, int]], session: str) -> None:
        """Play the (group index, sample) of a plan one after the other, in one session of the actor."""
        status = self.live.slot()
        async with self.permits.hold(None), self.runner.actor.session(session):
            for index, sample in plan:
                await self._episode(index, sample, status, session)
            status.rest()

    async def _wait_and_play(self, queue: Iterator[tuple[int, int]]) -> None:
        """Play what nobody has taken from a queue yet, each episode when it gets a permit and in a session of its own."""
        for index, sample in queue:
            task = self.groups[index].task
            page = (task.site, task.path) if self.runner.sites[task.site].stateless_pages else None
            session = f"{self.groups[index].group_id}-s{sample:02d}"
            async with self.permits.hold(page), self.runner.actor.session(session):
                status = self.live.slot()
                await self._episode(index, sample, status, session)
                status.rest()

    async def _episode(self, index: int, sample: int, status: SlotStatus, session: str) -> None:
        self.counts.done += 1
        self.counts.waiting_seconds += time.perf_counter() - self._came
        attempts = await self.runner.run(self.groups[index], sample, status, session)
        self.live.ended(attempts)
        self.tasks.create_task(self.committer.add(self.groups[index], attempts))


class GroupCommitter:
    """Has trajectories graded and stores them as they come, and commits a group once all its episodes are stored."""

    def __init__(
        self,
        groups: list[GroupSpec],
        store: RunStore,
        clock: ActivityClock,
        files: ThreadPoolExecutor,
        stage: RewardStage,
        ours: Collection[str] = (),
    ) -> None:
        """
        Args:
            ours: Sites that we serve ourselves: no judge's word blocks them.
        """
        self.token = os.urandom(6).hex()
        """Of this attempt at its groups: in the names of their trajectories' files, and in the records of the groups that it wins."""
        self._open = {group.group_id: len(group.seeds) for group in groups}
        self._summaries: dict[str, list[EpisodeSummary]] = {group.group_id: [] for group in groups}
        self._store = store
        self._blocklist = Blocklist(store, ours)
        self._clock = clock
        self._files = files
        self._stage = stage

    async def add(self, group: GroupSpec, attempts: list[Trajectory]) -> None:
        """Store the attempts of an episode, graded, and commit the group with its last one."""
        attempts = [await self._stage.grade(group.task, attempt) for attempt in attempts]
        with self._clock("store"):
            loop = asyncio.get_running_loop()
            for trajectory in attempts:
                sha256 = await loop.run_in_executor(self._files, self._store.put_trajectory, trajectory, self.token)
                if trajectory.wall:
                    await loop.run_in_executor(self._files, self._blocklist.record_wall, group.task, trajectory)
                self._summaries[group.group_id].append(EpisodeSummary.of(trajectory, sha256))
            self._open[group.group_id] -= 1
            if self._open[group.group_id] == 0:
                version = attempts[-1].policy_version
                await loop.run_in_executor(self._files, self._commit, group, version)

    def _commit(self, group: GroupSpec, version: int) -> None:
        """Make the group's record, unless another attempt has."""
        if group.task.rubric is not None:
            self._store.put_rubric(group.task.rubric)
        record = GroupRecord(
            group_id=group.group_id,
            token=self.token,
            task_id=group.task.task_id,
            kind=group.task.kind,
            policy_version=version,
            episodes=tuple(sorted(self._summaries[group.group_id], key=lambda episode: episode.episode_id)),
        )
        write_json_once(self._store.group_path(group.group_id), record, sealed=True)
        if read_group(self._store, group.group_id).token != self.token:
            logger.warning("another worker committed group %s first: this worker's episodes of it go", group.group_id)
            for episode in record.episodes:
                self._store.trajectory_path(episode.episode_id, self.token).unlink(missing_ok=True)
