"""Files that are not there before they are whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envs.types import StorageError


class WholeFile:
    """Lines of a file that gets its name at the end."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        """Lines so far."""
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        self._file = self._draft.open("wb")
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of what has been written."""
        return self._digest.hexdigest()

    def write(self, line: str) -> None:
        """One line."""
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
        """As if it had never been begun."""
        self._file.close()
        self._draft.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[WholeFile]:
    """A file that is there, whole, when the block ends well, and else is as it was.

    Raises:
        StorageError: it cannot be begun.
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
    """Digest of a file. Raises ``OSError``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
