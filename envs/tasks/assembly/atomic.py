"""Writes files atomically: a file gets its name when it is complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envs.types import StorageError


class WholeFile:
    """A file that has a temporary name until it is complete."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        """Lines written so far."""
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        self._file = self._draft.open("wb")
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Digest of the data written so far."""
        return self._digest.hexdigest()

    def write(self, line: str) -> None:
        """Write one line."""
        data = line.encode() + b"\n"
        self._digest.update(data)
        self._file.write(data)
        self.count += 1

    def commit(self) -> None:
        """Give the file its name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.replace(self._path)

    def drop(self) -> None:
        """Delete the temporary file."""
        self._file.close()
        self._draft.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[WholeFile]:
    """Write a file atomically: it appears when the block ends well, and is unchanged otherwise.

    Raises:
        StorageError: the temporary file cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = WholeFile(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}") from error
    try:
        yield file
    except BaseException:
        file.drop()
        raise
    file.commit()


def file_digest(path: Path) -> str:
    """Return the sha256 of a file. Raises ``OSError``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
