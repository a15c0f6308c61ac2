"""Gives up slow episodes: those that their group does not need, and the last ones of a rollout.

Over-sampling (`rollout.over_sampling`) starts more episodes than a group needs and stops the slowest. A quorum (`rollout.quorum`) closes a
rollout some time after most of its episodes are over, as WebGym does. What both cost is that of the episodes the short ones are kept.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from envs.episodes import CancelScope
from training.groups import GroupSpec

NOT_NEEDED = "enough other episodes of its group were over"
"""Cause of the abstention of an episode that its group did not need."""
TOO_LATE = "it was among the last of its rollout (rollout.quorum)"
"""Cause of the abstention of an episode that a quorum did not wait for."""


@dataclass(slots=True)
class OverSampling:
    """How far the groups of a shard are. Used in one event loop."""

    episodes: int = 0
    """Of the shard."""
    quorum: float = 1.0
    """Share of them that has to be over before the others are given up; 1: all are waited for."""
    grace: float = 0.0
    """Seconds that the others have then."""
    closed: bool = False
    """They had them."""
    _ended: int = 0
    _over: Counter[str] = field(default_factory=Counter)
    """Episodes that ended with something to be graded, by group."""
    _running: defaultdict[str, set[CancelScope]] = field(default_factory=lambda: defaultdict(set))

    def reason(self, group: GroupSpec) -> str:
        """Why the episodes of a group that are not over are not needed any more; empty if they are."""
        if self.has_enough(group):
            return NOT_NEEDED
        return TOO_LATE if self.closed else ""

    def has_enough(self, group: GroupSpec) -> bool:
        """Whether the episodes of a group that are not over are not needed any more."""
        return 0 < group.enough <= self._over[group.group_id]

    @contextmanager
    def running(self, group: GroupSpec, episode: CancelScope) -> Iterator[None]:
        """An episode runs, and is cut as soon as its group has enough others."""
        self._running[group.group_id].add(episode)
        try:
            yield
        finally:
            self._running[group.group_id].discard(episode)

    def ended(self) -> None:
        """An episode is over, whatever became of it."""
        self._ended += 1
        if self.quorum < 1 and self._ended == math.ceil(self.quorum * self.episodes):
            asyncio.get_running_loop().call_later(self.grace, self._close)

    def _close(self) -> None:
        self.closed = True
        for episodes in self._running.values():
            for episode in episodes:
                episode.cancel()

    def one_more(self, group: GroupSpec) -> None:
        """An episode of a group ended with something to be graded."""
        self._over[group.group_id] += 1
        if self.has_enough(group):
            for episode in self._running[group.group_id]:
                episode.cancel()
