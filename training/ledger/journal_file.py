"""Opens a run's journal file, or begins a new one where damaged.

The run's files alone give all of it back.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from envs.types import StorageError
from training.ledger.disk import raise_disk_errors

LOCK_SECONDS = 10.0
"""How long another process (a backup, a browser of databases) may hold the file."""
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
        with raise_disk_errors(self.path):  # most is written by the commit
            return super().__exit__(*error)


def open_journal(path: Path, schema: str, older: Sequence[str] = ()) -> JournalConnection:
    """A connection to a whole journal with these tables.

    A damaged file is moved to ``<name>.damaged-<n>`` and a new one begun.

    Args:
        older: Tables that older code made besides (``CREATE TABLE …``): a whole journal with them opens, without them.

    Raises:
        StorageError: Another process holds the file.
        DiskError: It cannot be written: the disk is full, read-only or failing.
    """
    with raise_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _opened(path, schema, older)
        except sqlite3.DatabaseError as error:
            if _is_locked(error):
                raise StorageError(
                    f"{path} is held by another process; end it, or wait for it, and start the same command again"
                ) from error
            damaged, why = _move_aside(path), " ".join(str(error).split())
            logger.warning(
                "%s cannot be used (%s): moved to %s and made again from the run's files", path, why, damaged.name
            )
            return _opened(path, schema, older)


def _opened(path: Path, schema: str, older: Sequence[str]) -> JournalConnection:
    """``sqlite3.DatabaseError`` when the file is none, is damaged, or has other tables."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=LOCK_SECONDS, factory=JournalConnection)
    connection.path = path
    try:
        connection.execute("PRAGMA journal_mode=DELETE")
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(str(found))
        _drop(connection, older)
        connection.executescript(schema)
        if _tables(connection) != _expected(schema):
            raise sqlite3.DatabaseError("it has other tables")
        # Taken and given back: says now whether the file can be written to.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except BaseException:
        connection.close()
        raise
    return connection


def _drop(connection: sqlite3.Connection, older: Sequence[str]) -> None:
    """Drop tables of older code, if they are just as it made them: nothing is in them that the run's files do not say."""
    there = _tables(connection)
    for statement in older:
        table = _expected(statement)
        (name,) = {name for name, _ in table}
        if table == {(other, column) for other, column in there if other == name}:
            connection.execute(f'DROP TABLE "{name}"')


def _tables(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """(table, column) of all."""
    return set(
        connection.execute(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        )
    )


def _expected(schema: str) -> set[tuple[str, str]]:
    empty = sqlite3.connect(":memory:")
    try:
        empty.executescript(schema)
        return _tables(empty)
    finally:
        empty.close()


def _is_locked(error: sqlite3.DatabaseError) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _move_aside(path: Path) -> Path:
    """Kept under another name, with what SQLite left beside it, which would be applied to the new file."""
    number = 1
    while (damaged := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for ending in ("", "-journal", "-wal", "-shm"):
        beside = path.with_name(path.name + ending)
        if beside.exists() or beside.is_symlink():
            os.replace(beside, damaged.with_name(damaged.name + ending))
    return damaged
