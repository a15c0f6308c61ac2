"""Answers by content hash, one small file each: shared by processes and nodes without a lock.

A file is written under another name and then renamed, so a reader sees all of it or nothing. What cannot be read is a miss; what cannot be
written is the caller's to report (`OSError`).
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from pydantic import ValidationError

from envs.types import Record, StorageError
from envs.types.paths import AnyPath

CACHE_VERSION = 1


class CachedReply(Record):
    """What an endpoint once answered, after it had been read successfully."""

    cache_version: int = CACHE_VERSION
    content: str
    prompt_tokens: int
    completion_tokens: int


class ReplyCache:
    """A folder of replies.

    Raises:
        StorageError: the folder cannot be made.
    """

    def __init__(self, folder: AnyPath) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: no folder for the judge's cache: {error}") from error

    def get(self, key: str) -> CachedReply | None:
        """The reply of that key; ``None`` if there is none that can be read."""
        try:
            found = CachedReply.model_validate_json(self._path(key).read_bytes())
        except (OSError, ValidationError):
            return None
        return found if found.cache_version == CACHE_VERSION else None

    def put(self, key: str, reply: CachedReply) -> None:
        """Keep a reply. The same key written twice keeps one of the two.

        Raises:
            OSError: the disk is full or read-only.
        """
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            draft.write_text(reply.model_dump_json(), encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
