"""What an episode keeps beside the page: entries of a key and a value."""

from __future__ import annotations

from envs.types.record import Record


class MemoryEntry(Record):
    """One thing that was kept."""

    key: str
    value: str


class MemoryChange(Record):
    """What an episode did to one key."""

    key: str
    value: str | None
    """``None``: it was forgotten."""


Memory = tuple[MemoryEntry, ...]
"""Entries with different keys, the one that was written last at the end."""
