"""Writes files atomically: a file gets its name when it is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def open_atomic(path: Path, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when the block ends well; else ``path`` stays as it was.

    ``sync=False`` leaves out the fsync: for content that is checked when read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):  # what stopped the write is the error to report
            draft.unlink(missing_ok=True)
        raise
