"""Files of lines that are written atomically, with their number of lines and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from envs.atomic import open_atomic
from envs.types import StorageError


class LineFile:
    """A file that lines are written to."""

    def __init__(self, file: IO[bytes]) -> None:
        self.count = 0
        """Lines written so far."""
        self._file = file
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


@contextmanager
def open_lines(path: Path) -> Iterator[LineFile]:
    """Write a file of lines by `open_atomic`.

    Raises:
        StorageError: The temporary file cannot be opened.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_atomic(path))
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}") from error
        yield LineFile(file)


def file_digest(path: Path) -> str:
    """Return the sha256 of a file. Raises ``OSError``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
