"""Opens a run's journal file, or begins a new one where it is damaged.

The run's files alone restore its content.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Any, Literal

from envs.types import StorageError
from training.ledger.disk import raise_disk_errors

LOCK_SECONDS = 10.0
"""Seconds that the file may be held by another process (a backup, a browser of databases)."""
logger = logging.getLogger(__name__)


class JournalConnection(sqlite3.Connection):
    """A connection whose write faults are ``DiskError``s that name the file."""

    path: Path

    def execute(self, *args: Any) -> sqlite3.Cursor:
        with raise_disk_errors(self.path):
            return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        with raise_disk_errors(self.path):
            return super().executemany(*args)

    def __exit__(self, *error: Any) -> Literal[False]:
        with raise_disk_errors(self.path):  # the commit does most of the writing
            return super().__exit__(*error)


def open_journal(path: Path, schema: str) -> JournalConnection:
    """Open a connection to a journal with these tables.

    A damaged file is moved to ``<name>.damaged-<n>`` and a new one begun.

    Raises:
        StorageError: Another process holds the file.
        DiskError: The file cannot be written: the disk is full, read-only or failing.
    """
    with raise_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _open(path, schema)
        except sqlite3.DatabaseError as error:
            if _is_locked(error):
                raise StorageError(
                    f"{path} is held by another process; end it, or wait for it, and start the same command again"
                ) from error
            damaged, why = _move_aside(path), " ".join(str(error).split())
            logger.warning(
                "%s cannot be used (%s): moved to %s and made again from the run's files", path, why, damaged.name
            )
            return _open(path, schema)


def _open(path: Path, schema: str) -> JournalConnection:
    """Open and check the file; ``sqlite3.DatabaseError`` if it is damaged or has other tables."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=LOCK_SECONDS, factory=JournalConnection)
    connection.path = path
    try:
        connection.execute("PRAGMA journal_mode=DELETE")
        (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(str(result))
        connection.executescript(schema)
        if _tables(connection) != _tables_of(schema):
            raise sqlite3.DatabaseError("it has other tables")
        # Take the write lock and release it, so that a file that cannot be written to fails now.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except BaseException:
        connection.close()
        raise
    return connection


def _tables(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return (table, column) of all tables."""
    return set(
        connection.execute(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        )
    )


def _tables_of(schema: str) -> set[tuple[str, str]]:
    empty = sqlite3.connect(":memory:")
    try:
        empty.executescript(schema)
        return _tables(empty)
    finally:
        empty.close()


def _is_locked(error: sqlite3.DatabaseError) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _move_aside(path: Path) -> Path:
    """Rename the file and what SQLite left beside it; return the file's new name.

    SQLite would apply its leftovers to the new file.
    """
    number = 1
    while (damaged := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for ending in ("", "-journal", "-wal", "-shm"):
        beside = path.with_name(path.name + ending)
        if beside.exists() or beside.is_symlink():
            os.replace(beside, damaged.with_name(damaged.name + ending))
    return damaged
