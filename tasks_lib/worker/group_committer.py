"""Grades and stores ended episodes, and commits their groups.

Two workers may play the same group at once. Each stores its trajectories under its own token. The
first to write the group's record wins, and the other one deletes its trajectories of that group.
Trajectories of a worker that died stay, as `RunStore.orphans`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from envs.types import Trajectory
from tasks_lib.worker.activity import ActivityClock
from tasks_lib.worker.blocklist import Blocklist
from tasks_lib.worker.reward_stage import RewardStage
from training.ledger.journal import read_group
from training.ledger.store import RunStore, write_json_once
from training.records.groups import EpisodeSummary, GroupRecord, GroupSpec

logger = logging.getLogger(__name__)


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
        announce: Callable[[str], None] = lambda group_id: None,
    ) -> None:
        """
        Args:
            ours: Names of sites that we serve ourselves; a judge cannot block them.
            announce: Called with the id of each group that has its record.
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
        self._announce = announce

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
        self._announce(group.group_id)
