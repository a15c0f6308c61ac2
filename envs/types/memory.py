"""The memory of an episode: notes that it keeps as a key and a value."""

from __future__ import annotations

from envs.types.record import Record


class MemoryEntry(Record):
    """One note."""

    key: str
    value: str


class MemoryChange(Record):
    """A change of one key by an episode."""

    key: str
    value: str | None
    """The new value; ``None`` if the key was forgotten."""


Memory = tuple[MemoryEntry, ...]
"""Entries with different keys, the last written one at the end."""
