"""Reads the state of an instance: hashes of its files and of its databases' rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any

_MAGIC = b"SQLite format 3\0"
_SIDE_FILES = ("-wal", "-shm", "-journal")


def hash_state(folder: Path, ignored: Iterable[str]) -> dict[str, Any]:
    """Return ``parts``: a hash for each file, and for each table of an SQLite file.

    Rows are hashed, not the bytes of an SQLite file, which depend on where its pages lie.

    Args:
        ignored: Patterns of files (``*.log``), tables (``shop.sqlite:session``) and columns
            (``shop.sqlite:*.date_created``).
    """
    patterns, parts = list(ignored), dict[str, str]()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or name.endswith(_SIDE_FILES) or _matches(name, patterns):
            continue
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
            if head == _MAGIC:
                with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
                    parts |= hash_tables(database, f"{name}:", patterns)
            else:
                parts[name] = sha256(head + file.read()).hexdigest()[:16]
    return {"parts": parts}


def read_database(path: Path) -> bytes:
    """Return the bytes of an SQLite file as it is now, with what its log holds."""
    with (
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(":memory:")) as copy,
    ):
        source.backup(copy)
        content: bytes = copy.serialize()
        return content


def hash_tables(database: sqlite3.Connection, prefix: str = "", patterns: Iterable[str] = ()) -> dict[str, str]:
    """Return a hash of the rows of each table, by its name after ``prefix``.

    Args:
        patterns: Tables and columns that are left out, as in `hash_state`.
    """
    hashes, ignored = {}, list(patterns)
    names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    for name in names:
        if _matches(f"{prefix}{name}", ignored):
            continue
        quoted = name.replace('"', '""')
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{quoted}")')]
        kept = [column for column in columns if not _matches(f"{prefix}{name}.{column}", ignored)]
        listed = ", ".join(f'"{column}"' for column in kept) or "1"
        rows = sorted(repr(tuple(row)) for row in database.execute(f'SELECT {listed} FROM "{quoted}"'))
        hashes[f"{prefix}{name}"] = sha256("\n".join(rows).encode()).hexdigest()[:16]
    return hashes


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
