"""The memory that one episode works on."""

from __future__ import annotations

from envs.actions.errors import ActionError, closest_names, shorten
from envs.types import ErrorCode, Memory, MemoryChange, MemoryEntry, Remember
from envs.types.actions import MemoryAction

MAX_ENTRIES = 32
"""Most entries. A prompt shows fewer: at 64 + 500 characters each they would be 18,000."""

MAX_KEY = 64
"""Length of a key, in characters: some words."""

MAX_VALUE = 500
"""Longest value, in characters: a paragraph. A longer text is a page, which can be visited."""

MIN_EMBEDDED_SECRET = 4
"""Length from which a secret is searched inside other text. Shorter ones are in ordinary words."""


class EpisodeMemory:
    """Entries of one episode by key, in the order in which they were written last."""

    def __init__(self, start: Memory = ()) -> None:
        self._start = {entry.key: entry.value for entry in start}
        self._now = dict(self._start)
        self._secrets: list[str] = []

    @property
    def entries(self) -> Memory:
        """The current entries; the one written last is at the end."""
        return tuple(MemoryEntry(key=key, value=value) for key, value in self._now.items())

    def apply(self, action: MemoryAction) -> ActionError | None:
        """Carry out an action, or return why it is refused; then nothing has changed."""
        if isinstance(action, Remember):
            return self._remember(action.key, action.value)
        if action.key not in self._now:
            like = tuple(f'"{shorten(name)}"' for name in closest_names(action.key, self._now))
            known = "it is empty" if not self._now else "use a key that it shows"
            return ActionError(ErrorCode.NO_SUCH_ENTRY, f"the memory has no entry {shorten(action.key)!r}", known, like)
        del self._now[action.key]
        return None

    def hide(self, secret: str) -> None:
        """Forbid a text in entries and drop those that have it. Blank texts are ignored."""
        if secret.strip():
            self._secrets.append(secret)
            self._now = {key: value for key, value in self._now.items() if not self._contains_secret(key, value)}

    def changes(self) -> tuple[MemoryChange, ...]:
        """Return the changes since the start.

        First the forgotten entries, then the written ones in the order of writing.
        """
        forgotten = [MemoryChange(key=key, value=None) for key in self._start if key not in self._now]
        written = [
            MemoryChange(key=key, value=value) for key, value in self._now.items() if self._start.get(key) != value
        ]
        return (*forgotten, *written)

    def _remember(self, key: str, value: str) -> ActionError | None:
        for what, text, limit in (("key", key, MAX_KEY), ("value", value, MAX_VALUE)):
            if len(text) > limit:
                message = f"the {what} has {len(text)} characters, and may have {limit}"
                return ActionError(ErrorCode.TOO_LONG, message, "keep what matters")
            if not text.strip():
                return ActionError(ErrorCode.BAD_ACTION, f"remember: the {what} is blank", "write a word")
        if self._contains_secret(key, value):
            return ActionError(ErrorCode.SECRET, "it holds what was typed into a password field", "leave passwords out")
        if key not in self._now and len(self._now) >= MAX_ENTRIES:
            return ActionError(
                ErrorCode.MEMORY_FULL, f"the memory has {len(self._now)} entries, the most it takes", "forget one first"
            )
        self._now.pop(key, None)
        self._now[key] = value
        return None

    def _contains_secret(self, key: str, value: str) -> bool:
        return any(
            secret in text if len(secret) >= MIN_EMBEDDED_SECRET else secret == text.strip()
            for secret in self._secrets
            for text in (key, value)
        )
