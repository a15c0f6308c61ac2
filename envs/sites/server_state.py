"""The state of a real site's server, asked for at the end of an episode: rows of its SQLite files, JSON that it answers.

Reading only: a query that would write, attach a file or read a setting is refused by the database itself, and only GET is sent. Every question
ends within its deadline, and whatever goes wrong is a `SiteError`, so that the fact is not available.
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
"""Rows of an answer. A fact compares with rows that somebody wrote down."""
MAX_VALUE = 1_000_000
"""Bytes of a text in a row, so that one query cannot fill the memory."""
MAX_ROW_BYTES = 4_000_000
"""Bytes of all texts of an answer's rows, and eight for each number."""
MAX_COLUMNS = 500
"""Of a table or an answer that is asked for: with `MAX_VALUE` it bounds one row."""
LOCKED_SECONDS = 0.02
"""Between tries while somebody writes."""
STEPS_BETWEEN_LOOKS = 10_000
"""Instructions of SQLite's machine between two looks at the clock: about a tenth of a millisecond."""

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


@dataclass(frozen=True)
class SiteState(Server):
    """A `ServerState` over SQLite files and a server's JSON.

    Example::

        state = SiteState(origin=site.origin, databases={"": Path("shop.sqlite")})
        rows = await state.sql("SELECT total FROM orders WHERE id = 12", "")
    """

    origin: str = ""
    """As of `Server`; empty: HTTP cannot be asked."""
    databases: Mapping[str, AnyPath] = field(default_factory=dict)
    """SQLite files by the name that facts give; ``""`` is the only one, or the main one. A text that begins with ``file:`` is an SQLite
    URI, which may name a database in the memory of this process (``file:shop?mode=memory&cache=shared``)."""

    async def sql(self, query: str, database: str) -> list[tuple[Any, ...]]:
        """All rows of a ``SELECT``: texts, numbers and nulls.

        Raises:
            SiteError: no such database, a query that is refused or fails, too many rows, a blob, or the deadline.
        """
        if database not in self.databases:
            known = ", ".join(repr(name) for name in self.databases) or "none"
            raise SiteError(f"the site has no database {database!r}; there are: {known}")
        place, stop = self.databases[database], threading.Event()
        try:
            async with asyncio.timeout(
                self.deadline + 1
            ):  # the thread ends by itself; this is for one that cannot even start
                return await asyncio.to_thread(_rows, place, query, self.deadline, stop)
        except TimeoutError as error:
            raise SiteError(f"{shortened(query)}: no rows within {self.deadline:g} s") from error
        finally:
            stop.set()  # a cancelled caller leaves no query running

    async def get_json(self, path: str) -> Any:
        """The JSON at a path of the site, with its query; ``None`` for a 404. Redirects are not followed.

        Raises:
            SiteError: no origin, a path of another site, any other status, no JSON, too long an answer, or the deadline.
        """
        status, body = await self.ask(path)
        if status == 404:
            return None
        if status != 200:
            raise SiteError(f"{asked(path)}: answered {status}; expected 200 or 404")
        return read_json(body, asked(path))


def _rows(place: AnyPath, query: str, seconds: float, stop: threading.Event) -> list[tuple[Any, ...]]:
    """In a thread of its own."""
    end = time.monotonic() + seconds
    is_uri = isinstance(place, str) and place.startswith("file:")
    uri = place if is_uri else f"{Path(place).resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=LOCKED_SECONDS, isolation_level=None)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
            # Also of a database in memory, which has no read-only mode.
            _patiently(lambda: connection.execute("PRAGMA query_only = ON"), end, stop)
            connection.set_authorizer(_only_reads)
            connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, MAX_COLUMNS)
            connection.set_progress_handler(lambda: int(stop.is_set() or time.monotonic() > end), STEPS_BETWEEN_LOOKS)
            return _patiently(lambda: _fetched(connection, query), end, stop)
    except sqlite3.Error as error:
        late = time.monotonic() > end
        cause = f"no rows within {seconds:g} s" if late else f"{error} (only one SELECT is allowed)"
        raise SiteError(f"{shortened(query)}: {cause}") from error
    except (sqlite3.Warning, ValueError, OverflowError) as error:  # two statements in one, a null byte
        raise SiteError(f"{shortened(query)}: {error} (only one SELECT is allowed)") from error


def _fetched(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    """All rows, one after another, as long as they are no more than may be kept."""
    rows, size = list[tuple[Any, ...]](), 0
    with closing(connection.execute(query)) as found:
        for row in found:
            rows.append(_plain(row, query))
            size += sum(len(value.encode()) if isinstance(value, str) else 8 for value in row)
            if len(rows) > MAX_ROWS:
                raise SiteError(f"{shortened(query)}: gives more than {MAX_ROWS:,} rows; ask for a count, or for fewer")
            if size > MAX_ROW_BYTES:
                raise SiteError(f"{shortened(query)}: gives more than {MAX_ROW_BYTES:,} bytes; ask for less")
    return rows


def _patiently(work: Callable[[], T], end: float, stop: threading.Event) -> T:
    """What ``work`` gives, tried again while the database is locked. SQLite itself could wait for other processes, but not for other connections of
    this one to a shared database."""
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            locked = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not locked or stop.wait(LOCKED_SECONDS) or time.monotonic() > end:
                raise


def _only_reads(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _plain(row: tuple[Any, ...], query: str) -> tuple[Any, ...]:
    for value in row:
        if isinstance(value, bytes):
            raise SiteError(f"{shortened(query)}: a value is a blob, which no fact compares with; select hex(…) of it")
        if isinstance(value, float) and not math.isfinite(value):
            raise SiteError(f"{shortened(query)}: a value is infinite")
    return row
