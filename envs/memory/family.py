"""Merges the memory changes of a task family's episodes, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envs.memory.episode import MAX_ENTRIES
from envs.types import Memory, MemoryChange, MemoryEntry


@dataclass(frozen=True, slots=True)
class Contribution:
    """Memory changes of one finished episode."""

    score: float
    """Reward of the episode. If two episodes wrote one key, the value of the better one stays."""
    episode_id: str
    changes: tuple[MemoryChange, ...]


def merge_memories(memory: Memory, contributions: Iterable[Contribution]) -> Memory:
    """Return the memory after these episodes, which all began with ``memory``.

    Changes are applied by ascending reward, then by episode id, in whatever order they are given.
    Of two values of a key the last one stays, and an entry that a worse episode forgot returns when
    a better one wrote it. Above `MAX_ENTRIES`, the entries that were written first are dropped.
    """
    now = {entry.key: entry.value for entry in memory}
    for contribution in sorted(contributions, key=lambda item: (item.score, item.episode_id)):
        for change in contribution.changes:
            now.pop(change.key, None)
            if change.value is not None:
                now[change.key] = change.value
    return tuple(MemoryEntry(key=key, value=value) for key, value in [*now.items()][-MAX_ENTRIES:])
