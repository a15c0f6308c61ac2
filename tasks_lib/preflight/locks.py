"""Checks that the locks of a run keep another process out.

Run as a program, this file is that other process. It imports only the standard library, so that it
starts at once.
"""

from __future__ import annotations

import fcntl
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

LOCK, DATABASE = "run.lock", "journal.sqlite"
"""Files of a run that are locked: one with ``flock``, one by SQLite with POSIX locks."""


@contextmanager
def held_locks(folder: Path) -> Iterator[None]:
    """Hold both locks inside the block, as a run does.

    Raises:
        OSError, sqlite3.Error: the file system has no such lock.
    """
    database = sqlite3.connect(folder / DATABASE, timeout=0, isolation_level=None)
    with open(folder / LOCK, "w") as file, closing(database):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        database.execute("PRAGMA journal_mode=DELETE")
        database.execute("BEGIN IMMEDIATE")
        yield


def lock_problems(folder: Path) -> list[str]:
    """Return the problems of locks that another process holds.

    A lock has a problem if this process gets it too, or cannot ask for it.
    """
    problems = []
    try:
        with open(folder / LOCK, "r+") as file:  # flock on NFS needs a file open for writing
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        problems.append("flock gives a lock that another process holds")
    except BlockingIOError:
        pass
    except OSError as error:
        problems.append(f"flock fails ({error})")
    try:
        database = sqlite3.connect(f"file:{folder / DATABASE}?mode=rw", timeout=0, isolation_level=None, uri=True)
        with closing(database):
            database.execute("BEGIN IMMEDIATE")
        problems.append("SQLite writes to a file that another process is writing to (POSIX locks)")
    except sqlite3.Error as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            problems.append(f"SQLite cannot lock a file ({error})")
    return problems


if __name__ == "__main__":
    print("\n".join(lock_problems(Path(sys.argv[1]))))
