"""Merges the memory changes of a task family's episodes, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envs.memory.episode import MAX_ENTRIES
from envs.types import Memory, MemoryChange, MemoryEntry


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one finished episode changed."""

    score: float
    """Its reward: of two episodes that wrote one key, the better one's value stays."""
    episode_id: str
    changes: tuple[MemoryChange, ...]


def merge_memories(memory: Memory, contributions: Iterable[Contribution]) -> Memory:
    """The memory after these episodes, which all began with ``memory``.

    Changes are applied by ascending reward, then by episode id, whatever order they are given in: of two values of a key the last one stays,
    and what is forgotten by a worse episode is back when a better one wrote it. Over `MAX_ENTRIES`, the entries that were written first are dropped.
    """
    now = {entry.key: entry.value for entry in memory}
    for one in sorted(contributions, key=lambda each: (each.score, each.episode_id)):
        for change in one.changes:
            now.pop(change.key, None)
            if change.value is not None:
                now[change.key] = change.value
    return tuple(MemoryEntry(key=key, value=value) for key, value in [*now.items()][-MAX_ENTRIES:])
