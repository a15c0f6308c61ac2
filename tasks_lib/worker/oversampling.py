"""Gives up slow episodes: those that their group does not need, and the last ones of a rollout.

Over-sampling (`rollout.over_sampling`) starts more episodes than a group needs and stops the
slowest. A quorum (`rollout.quorum`) closes a rollout some time after most of its episodes are over,
as WebGym does. Both have a cost: short episodes are kept more often than long ones.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from envs.episodes import CancelScope
from tasks_lib.config import RolloutConfig
from training.records.groups import GroupSpec

NOT_NEEDED = "enough other episodes of its group were over"
"""Cause of the abstention of an episode that its group did not need."""
TOO_LATE = "it was among the last of its rollout (rollout.quorum)"
"""Cause of the abstention of an episode that a quorum did not wait for."""


@dataclass(slots=True)
class OverSampling:
    """Progress of the groups of a shard, and the limits on their episodes.

    Used from one event loop.
    """

    episodes: int = 0
    """Number of episodes of the shard."""
    quorum: float = 1.0
    """Share of the episodes that has to be over before the others are given up; 1: none are."""
    grace: float = 0.0
    """Seconds that the others may still run then."""
    closed: bool = False
    """True after those seconds."""
    _ended: int = 0
    _gradable: Counter[str] = field(default_factory=Counter)
    """Number of episodes that ended without an error and can be graded, by group."""
    _running: defaultdict[str, set[CancelScope]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, rollout: RolloutConfig, groups: Sequence[GroupSpec]) -> OverSampling:
        """Return the limits of a shard, before any of its episodes is played.

        An evaluation waits for all of them: leaving slow episodes out would bias its result.
        """
        trains = groups[0].phase.startswith("i")
        return cls(sum(len(group.seeds) for group in groups), rollout.quorum if trains else 1.0, rollout.grace)

    def reason(self, group: GroupSpec) -> str:
        """Return why the running episodes of a group are given up; empty if they are not."""
        if self.has_enough(group):
            return NOT_NEEDED
        return TOO_LATE if self.closed else ""

    def has_enough(self, group: GroupSpec) -> bool:
        """True if the group does not need its running episodes."""
        return 0 < group.enough <= self._gradable[group.group_id]

    @contextmanager
    def running(self, group: GroupSpec, episode: CancelScope) -> Iterator[None]:
        """Register a running episode, which is cancelled when it is given up."""
        self._running[group.group_id].add(episode)
        try:
            yield
        finally:
            self._running[group.group_id].discard(episode)

    def record_end(self) -> None:
        """Count an episode that is over, with or without an error."""
        self._ended += 1
        if self.quorum < 1 and self._ended == math.ceil(self.quorum * self.episodes):
            asyncio.get_running_loop().call_later(self.grace, self._close)

    def _close(self) -> None:
        self.closed = True
        for episodes in self._running.values():
            for episode in episodes:
                episode.cancel()

    def record_gradable(self, group: GroupSpec) -> None:
        """Count an episode of a group that ended without an error and can be graded."""
        self._gradable[group.group_id] += 1
        if self.has_enough(group):
            for episode in self._running[group.group_id]:
                episode.cancel()
