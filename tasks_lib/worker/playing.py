"""Plays the episodes of a slot, stores them, and commits them as groups.

Two workers may play the same group at once. Each stores its trajectories under its own token. The
first to write the group's record wins, and the other one deletes its trajectories of that group.
Trajectories of a worker that died stay, as `RunStore.orphans`.
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
from tasks_lib.worker.activity import ActivityClock
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.blocklist import Blocklist
from tasks_lib.worker.live import LiveState, SlotStatus
from tasks_lib.worker.permits import Permits
from tasks_lib.worker.reward_stage import RewardStage
from tasks_lib.worker.slots import order_episodes, plan_slots
from training.ledger.journal import read_group
from training.ledger.store import RunStore, write_json_once
from training.records.groups import EpisodeSummary, GroupRecord, GroupSpec

logger = logging.getLogger(__name__)

WAITING = 4
"""Episodes of a rollout that wait for a permit or hold one, per episode played at once.

Enough that an episode of the page just left is usually among them.
"""


@dataclass(slots=True)
class PermitCounts:
    """Waiting times of episodes before they were played."""

    done: int = 0
    """Episodes that were started."""
    waiting_seconds: float = 0.0
    """Sum of their waiting times, from the arrival of their shard at the worker.

    They wait for a slot, for other episodes in it, and for a permit.
    """


@dataclass(frozen=True)
class Play:
    """Plays the episodes of one rollout.

    Grading and storing run in ``tasks``, so that a slot plays its next episode at once.
    """

    groups: list[GroupSpec]
    runner: EpisodeRunner
    committer: GroupCommitter
    live: LiveState
    tasks: asyncio.TaskGroup
    permits: Permits
    """Permits of the worker, shared by all its rollouts."""
    counts: PermitCounts = field(default_factory=PermitCounts)
    _arrived: float = field(default_factory=time.perf_counter)

    def slots(self, count: int, *, fixed: bool) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the coroutines to run concurrently.

        Args:
            count: Episodes that the worker plays at once.
            fixed: True to plan the episodes of ``count`` slots beforehand; otherwise each episode
                waits for a permit.
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
        """Play the (group index, sample) pairs of a plan in order, in one session of the actor."""
        status = self.live.take_slot()
        async with self.permits.hold(None), self.runner.actor.session(session):
            for index, sample in plan:
                await self._episode(index, sample, status, session)
            status.set_free()

    async def _wait_and_play(self, queue: Iterator[tuple[int, int]]) -> None:
        """Play episodes that no other slot has taken from the queue.

        Each waits for a permit and is played in a session of its own.
        """
        for index, sample in queue:
            task = self.groups[index].task
            page = (task.site, task.path) if self.runner.sites[task.site].stateless_pages else None
            session = f"{self.groups[index].group_id}-s{sample:02d}"
            async with self.permits.hold(page), self.runner.actor.session(session):
                status = self.live.take_slot()
                await self._episode(index, sample, status, session)
                status.set_free()

    async def _episode(self, index: int, sample: int, status: SlotStatus, session: str) -> None:
        self.counts.done += 1
        self.counts.waiting_seconds += time.perf_counter() - self._arrived
        attempts = await self.runner.run(self.groups[index], sample, status, session)
        self.live.record_end(attempts)
        self.tasks.create_task(self.committer.add(self.groups[index], attempts))


class GroupCommitter:
    """Grades and stores trajectories as they come.

    A group is committed when all its episodes are stored.
    """

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
            ours: Names of sites that we serve ourselves; a judge cannot block them.
        """
        self.token = os.urandom(6).hex()
        """Random id of this attempt at its groups.

        It is in the file names of their trajectories, and in the records of the groups it commits.
        """
        self._open = {group.group_id: len(group.seeds) for group in groups}
        self._summaries: dict[str, list[EpisodeSummary]] = {group.group_id: [] for group in groups}
        self._store = store
        self._blocklist = Blocklist(store, ours)
        self._clock = clock
        self._files = files
        self._stage = stage

    async def add(self, group: GroupSpec, attempts: list[Trajectory]) -> None:
        """Grade and store the attempts of an episode; commit the group after its last episode."""
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
        """Write the group's record, unless another attempt wrote it."""
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
            logger.warning("another worker committed group %s first: deleted our episodes of it", group.group_id)
            for episode in record.episodes:
                self._store.trajectory_path(episode.episode_id, self.token).unlink(missing_ok=True)
