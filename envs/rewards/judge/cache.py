"""Cache of replies by content hash, one file each.

Processes and nodes share it without a lock. A file is written under another name and then renamed,
so a reader sees all of it or nothing. A file that cannot be read is a miss. A failed write raises
`OSError`, which the caller reports.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from envs.atomic import open_atomic
from envs.types import Record, StorageError
from envs.types.paths import AnyPath

CACHE_VERSION = 1


class CachedReply(Record):
    """A reply of an endpoint that was read successfully."""

    cache_version: int = CACHE_VERSION
    content: str
    prompt_tokens: int
    completion_tokens: int


class ReplyCache:
    """A folder of replies.

    Raises:
        StorageError: The folder cannot be made.
    """

    def __init__(self, folder: AnyPath) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: no folder for the judge's cache: {error}") from error

    def get(self, key: str) -> CachedReply | None:
        """Return the reply of a key; ``None`` without one that can be read."""
        try:
            reply = CachedReply.model_validate_json(self._path(key).read_bytes())
        except (OSError, ValidationError):
            return None
        return reply if reply.cache_version == CACHE_VERSION else None

    def put(self, key: str, reply: CachedReply) -> None:
        """Store a reply. If a key is written twice, one of the two replies stays.

        Raises:
            OSError: The disk is full or read-only.
        """
        with open_atomic(self._path(key), sync=False) as file:
            file.write(reply.model_dump_json().encode())

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
