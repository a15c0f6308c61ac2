"""Over-sampling of groups (`rollout.spare`): start more episodes than needed, stop the slowest.

So no group waits for its slowest episodes. What it costs is that of a group's episodes the short ones are kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from envs.episodes import CancelScope
from training.groups import GroupSpec


@dataclass(slots=True)
class OverSampling:
    """How far the groups of a shard are. Used in one event loop."""

    _over: Counter[str] = field(default_factory=Counter)
    """Episodes that ended with something to be graded, by group."""
    _running: defaultdict[str, set[CancelScope]] = field(default_factory=lambda: defaultdict(set))

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

    def one_more(self, group: GroupSpec) -> None:
        """An episode of a group ended with something to be graded."""
        self._over[group.group_id] += 1
        if self.has_enough(group):
            for episode in self._running[group.group_id]:
                episode.cancel()
