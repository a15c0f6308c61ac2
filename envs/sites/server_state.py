"""State of a site's server for grading: rows of SQLite files and JSON answers.

It is asked at the end of an episode, and only read: the database itself refuses a query that would
write, attach a file or read a setting, and only GET is sent. Every question ends within its
deadline. Any failure is a `SiteError`, so that the fact is not available.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from envs.sites.site_http import Server, asked, read_json, shortened
from envs.types import SiteError
from envs.types.paths import AnyPath

T = TypeVar("T")

MAX_ROWS = 10_000
"""Largest number of rows of an answer. A fact compares with rows that somebody wrote down."""
MAX_VALUE = 1_000_000
"""Largest text in a row, in bytes, so that one query cannot fill the memory."""
MAX_ROW_BYTES = 4_000_000
"""Largest total of an answer's texts, in bytes, with eight for each number."""
MAX_COLUMNS = 500
"""Largest number of columns of a table or an answer. With `MAX_VALUE` it bounds one row."""
LOCKED_SECONDS = 0.02
"""Seconds between tries while somebody writes."""
STEPS_BETWEEN_LOOKS = 10_000
"""Instructions of SQLite's machine between two looks at the clock: about 0.1 ms."""

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


@dataclass(frozen=True)
class SiteState(Server):
    """A `ServerState` over SQLite files and a server's JSON.

    Example::

        state = SiteState(origin=site.origin, databases={"": Path("shop.sqlite")})
        rows = await state.sql("SELECT total FROM orders WHERE id = 12", "")
    """

    origin: str = ""
    """Origin as in `Server`; empty if HTTP cannot be asked."""
    databases: Mapping[str, AnyPath] = field(default_factory=dict)
    """SQLite files by the name that facts give.

    ``""`` is the only one, or the main one.

    A text that begins with ``file:`` is an SQLite URI, which may name a database in the memory of
    this process (``file:shop?mode=memory&cache=shared``).
    """

    async def sql(self, query: str, database: str) -> list[tuple[Any, ...]]:
        """Return all rows of a ``SELECT``: texts, numbers and nulls.

        Raises:
            SiteError: the database does not exist, the query is refused or fails, there are too
                many rows or a blob, or the deadline passed.
        """
        if database not in self.databases:
            known = ", ".join(repr(name) for name in self.databases) or "none"
            raise SiteError(f"the site has no database {database!r}; there are: {known}")
        place, stop = self.databases[database], threading.Event()
        try:
            # The thread ends by itself; this timeout is for one that cannot even start.
            async with asyncio.timeout(self.deadline + 1):
                return await asyncio.to_thread(_read_rows, place, query, self.deadline, stop)
        except TimeoutError as error:
            raise SiteError(f"{shortened(query)}: no rows within {self.deadline:g} s") from error
        finally:
            stop.set()  # a cancelled caller leaves no query running

    async def get_json(self, path: str) -> Any:
        """Return the JSON at a path of the site; ``None`` for a 404.

        The path may have a query. Redirects are not followed.

        Raises:
            SiteError: there is no origin, the path is of another site, the status is any other, the
                answer is no JSON or too long, or the deadline passed.
        """
        status, body = await self.ask(path)
        if status == 404:
            return None
        if status != 200:
            raise SiteError(f"{asked(path)}: answered {status}; expected 200 or 404")
        return read_json(body, asked(path))


def _read_rows(place: AnyPath, query: str, seconds: float, stop: threading.Event) -> list[tuple[Any, ...]]:
    """Run a query in the calling thread, which belongs to it alone."""
    end = time.monotonic() + seconds
    is_uri = isinstance(place, str) and place.startswith("file:")
    uri = place if is_uri else f"{Path(place).resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=LOCKED_SECONDS, isolation_level=None)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
            # Needed for a database in memory, which has no read-only mode.
            _retry_while_locked(lambda: connection.execute("PRAGMA query_only = ON"), end, stop)
            connection.set_authorizer(_authorize_read)
            connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, MAX_COLUMNS)
            connection.set_progress_handler(lambda: int(stop.is_set() or time.monotonic() > end), STEPS_BETWEEN_LOOKS)
            return _retry_while_locked(lambda: _fetch_rows(connection, query), end, stop)
    except sqlite3.Error as error:
        late = time.monotonic() > end
        cause = f"no rows within {seconds:g} s" if late else f"{error} (only one SELECT is allowed)"
        raise SiteError(f"{shortened(query)}: {cause}") from error
    except (sqlite3.Warning, ValueError, OverflowError) as error:  # two statements in one, a null byte
        raise SiteError(f"{shortened(query)}: {error} (only one SELECT is allowed)") from error


def _fetch_rows(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    """Return all rows, one after another, up to the limits."""
    rows, size = list[tuple[Any, ...]](), 0
    with closing(connection.execute(query)) as cursor:
        for row in cursor:
            rows.append(_check_row(row, query))
            size += sum(len(value.encode()) if isinstance(value, str) else 8 for value in row)
            if len(rows) > MAX_ROWS:
                raise SiteError(f"{shortened(query)}: gives more than {MAX_ROWS:,} rows; ask for a count, or for fewer")
            if size > MAX_ROW_BYTES:
                raise SiteError(f"{shortened(query)}: gives more than {MAX_ROW_BYTES:,} bytes; ask for less")
    return rows


def _retry_while_locked(work: Callable[[], T], end: float, stop: threading.Event) -> T:
    """Return the result of ``work``, tried again while the database is locked.

    SQLite itself could wait for other processes, but not for this process's other connections to a
    shared database.
    """
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            locked = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not locked or stop.wait(LOCKED_SECONDS) or time.monotonic() > end:
                raise


def _authorize_read(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _check_row(row: tuple[Any, ...], query: str) -> tuple[Any, ...]:
    for value in row:
        if isinstance(value, bytes):
            raise SiteError(f"{shortened(query)}: a value is a blob, which no fact compares with; select hex(…) of it")
        if isinstance(value, float) and not math.isfinite(value):
            raise SiteError(f"{shortened(query)}: a value is infinite")
    return row
