"""The journal's file: whatever it is found as, the run goes on with what its files say, or one line
says why not."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from envs.types import DiskError, StorageError
from training.ledger import journal as ledger_journal
from training.ledger import journal_file
from training.ledger.journal import Journal
from training.ledger.store import RunStore, write_json


def _other_tables(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE groups (name TEXT)")


def _middle_overwritten(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\x5a" * (len(data) - 4096))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(os.urandom(3000)),
    "text": lambda path: path.write_text("no database\n" * 100),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "cut in its header": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "pages overwritten": _middle_overwritten,
    "other tables": _other_tables,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_journal_is_set_aside_and_made_again(
    tmp_path: Path, synthetic_group, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    store = RunStore(tmp_path)
    for number in range(40):
        record = synthetic_group(f"i000000-g{number:04d}", [0, 1, None])
        write_json(store.group_path(record.group_id), record)

    def opened() -> dict[str, int]:
        with closing(Journal(store.journal_path)) as journal:
            journal.refresh(store)
            return journal.episodes()

    counted = opened()
    assert counted["started"] == 120
    for times in (1, 2):
        caplog.clear()
        DAMAGE[damage](store.journal_path)
        store.journal_path.with_name("journal.sqlite-journal").write_bytes(b"left by a killed process")
        assert opened() == counted
        (line,) = [each.getMessage() for each in caplog.records]
        assert f"moved to journal.sqlite.damaged-{times} and made again" in line and "\n" not in line
    caplog.clear()
    assert opened() == counted and not caplog.records
    store.journal_path.write_bytes(b"")  # what SQLite itself makes a new one of
    assert opened() == counted


def test_a_journal_that_another_process_holds_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "LOCK_SECONDS", 0.1)
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match=r"journal.sqlite is held by another process; end it, or wait"):
            Journal(path)
    Journal(path).close()
    assert [each.name for each in tmp_path.iterdir()] == ["journal.sqlite"]


def test_a_full_disk_is_named_when_the_journal_is_written(
    tmp_path: Path, synthetic_group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit of pages gives the error that a full disk does."""

    def open_full(*given: Any) -> sqlite3.Connection:
        connection = journal_file.open_journal(*given)
        connection.execute("PRAGMA max_page_count=1")
        return connection

    monkeypatch.setattr(ledger_journal, "open_journal", open_full)
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        groups = [synthetic_group(f"i000000-g{number:04d}", [0, 1]) for number in range(5000)]
        with pytest.raises(DiskError, match=r"cannot write .*journal.sqlite: no space left on the disk") as said:
            journal.accept(groups)
        assert journal.episodes()["started"] == 0 and "\n" not in str(said.value)


def test_a_journal_that_cannot_be_replaced_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"garbage" * 100)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DiskError, match=r"journal.sqlite: the file system is read-only"):
        Journal(path)
