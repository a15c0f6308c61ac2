"""The memory that one episode works on."""

from __future__ import annotations

from envs.actions.errors import ActionError, closest_names, shorten
from envs.types import ErrorCode, Memory, MemoryChange, MemoryEntry, Remember
from envs.types.actions import MemoryAction

MAX_ENTRIES = 32
"""More than a prompt shows anyway: at 64 + 500 characters each they would be 18,000."""

MAX_KEY = 64
"""Characters of a key: some words."""

MAX_VALUE = 500
"""Characters of a value: a paragraph. What is longer is a page, and that can be gone back to."""

SURE_SECRET = 4
"""Characters from which on a secret is looked for inside of other text; a shorter one would be found in ordinary words."""


class EpisodeMemory:
    """Entries by key, in the order in which they were written last.

    Made for one episode, from what its group was given.
    """

    def __init__(self, start: Memory = ()) -> None:
        self._start = {entry.key: entry.value for entry in start}
        self._now = dict(self._start)
        self._secrets: list[str] = []

    @property
    def entries(self) -> Memory:
        """What is kept now, what was written last at the end."""
        return tuple(MemoryEntry(key=key, value=value) for key, value in self._now.items())

    def apply(self, action: MemoryAction) -> ActionError | None:
        """Carry out an action, or say why not; then nothing has changed."""
        if isinstance(action, Remember):
            return self._remember(action.key, action.value)
        if action.key not in self._now:
            like = tuple(f'"{shorten(name)}"' for name in closest_names(action.key, self._now))
            known = "it is empty" if not self._now else "use a key that it shows"
            return ActionError(ErrorCode.NO_SUCH_ENTRY, f"the memory has no entry {shorten(action.key)!r}", known, like)
        del self._now[action.key]
        return None

    def hide(self, secret: str) -> None:
        """From now on no entry may hold this text; those that do are dropped.

        Texts of white space hide nothing.
        """
        if secret.strip():
            self._secrets.append(secret)
            self._now = {key: value for key, value in self._now.items() if not self._contains_secret(key, value)}

    def changes(self) -> tuple[MemoryChange, ...]:
        """What is otherwise than it was at the start: what was forgotten, then what was written, in the order of writing."""
        forgotten = [MemoryChange(key=key, value=None) for key in self._start if key not in self._now]
        written = [
            MemoryChange(key=key, value=value) for key, value in self._now.items() if self._start.get(key) != value
        ]
        return (*forgotten, *written)

    def _remember(self, key: str, value: str) -> ActionError | None:
        for what, text, most in (("key", key, MAX_KEY), ("value", value, MAX_VALUE)):
            if len(text) > most:
                message = f"the {what} has {len(text)} characters, and may have {most}"
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
            secret in text if len(secret) >= SURE_SECRET else secret == text.strip()
            for secret in self._secrets
            for text in (key, value)
        )
