"""Counts the requests and tokens of all judges of a run, in one SQLite file.

The writers of a task set share one in the same way. Workers on several machines count in the file,
die and are started again; a resumed run continues the count. Every change is one transaction. A
request is counted before it is sent, so it is counted even if its process dies: never are more
requests sent than the budget allows. The file has SQLite's rollback journal, so it also works on a
network file system with POSIX locks.

Where there is no file yet, the count starts from ``<name>.json`` beside it, which has the form
``{"requests": 7, "tokens": 900}``: a person writes it when the file is damaged.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, ValidationError

from envs.types import Record, StorageError
from envs.types.paths import AnyPath

LOCK_SECONDS = 30.0
"""Seconds to wait for the lock.

It is held for milliseconds: a longer wait means that its owner is stopped or its machine is gone.
"""

RETRY_SECONDS = 0.1
"""Seconds to wait for the lock after a wait that failed, until one succeeds.

Requests that queue up meanwhile then fail soon.
"""

_SCHEMA = """CREATE TABLE IF NOT EXISTS spent (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    requests INTEGER NOT NULL CHECK (requests >= 0),
    tokens INTEGER NOT NULL CHECK (tokens >= 0)
) STRICT"""

MAX_COUNT = 2**63 - 1
"""Largest integer of SQLite."""


class DamagedLedger(StorageError):
    """The ledger's file is damaged.

    Unlike a held lock or a full disk, this needs a person to repair it.
    """


class Spent(Record):
    """Requests and tokens that were spent."""

    requests: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of requests that were sent, retries included.

    It includes those that a process had counted when it died before it sent them.
    """
    tokens: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of prompt and completion tokens of the requests that were answered."""


class SpendingLimits(NamedTuple):
    """Budget of requests and tokens; ``None`` for no limit."""

    requests: int | None
    tokens: int | None

    def refusal(self, spent: Spent) -> str | None:
        """Return the reason why no more requests may be sent; ``None`` if they may."""
        if self.requests is not None and spent.requests >= self.requests:
            return f"the budget of {self.requests} requests is used up (budget_requests)"
        if self.tokens is not None and spent.tokens >= self.tokens:
            return f"the budget of {self.tokens} tokens is used up (budget_tokens)"
        return None

    def account(self, spent: Spent) -> dict[str, dict[str, int | None]]:
        """Return spent and left (``None`` for no limit) of requests and tokens, for metrics."""
        return {
            name: {"spent": used, "left": None if limit is None else max(0, limit - used)}
            for name, used, limit in (
                ("requests", spent.requests, self.requests),
                ("tokens", spent.tokens, self.tokens),
            )
        }


class Ledger:
    """The ledger's file. Any number of objects, threads, processes and machines may share it.

    Raises:
        StorageError: By each method: the file cannot be read, written or locked.
        DamagedLedger: By each method: the file is no ledger.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)
        self.start_path = self.path.with_suffix(".json")
        """JSON file with the count to start from, if there is one."""
        if self.path == self.start_path:
            raise ValueError(f"{path}: a ledger needs another suffix than .json, which names what was spent before")
        self._retrying = False
        """True if the last wait for the lock failed."""

    def read(self) -> Spent:
        """Return the count. This does not make the file."""
        if not self.path.exists():
            return self._read_start()
        with self._transaction() as (_, spent):
            return spent

    def claim(self, limits: SpendingLimits) -> str | None:
        """Count a request before it is sent; return the reason if it must not be."""
        with self._transaction() as (connection, spent):
            refusal = limits.refusal(spent)
            if refusal is None:
                connection.execute("UPDATE spent SET requests = requests + 1")
            return refusal

    def pay(self, tokens: int) -> None:
        """Count the tokens of a request."""
        with self._transaction() as (connection, _):
            connection.execute("UPDATE spent SET tokens = tokens + ?", (tokens,))

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sqlite3.Connection, Spent]]:
        """Lock the file; yield its connection and its count.

        All changes are written at the end, or none if anything fails.
        """
        wait = min(RETRY_SECONDS, LOCK_SECONDS) if self._retrying else LOCK_SECONDS
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=wait, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                self._retrying = False
                connection.execute(_SCHEMA)
                row = connection.execute("SELECT requests, tokens FROM spent").fetchone()
                if row is None:
                    start = self._read_start()
                    row = (start.requests, start.tokens)
                    connection.execute("INSERT INTO spent VALUES (1, ?, ?)", row)
                yield connection, Spent(requests=row[0], tokens=row[1])
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._storage_error(error) from error
        except OSError as error:
            raise StorageError(f"{self.path}: what is spent cannot be counted: {error}") from error

    def _read_start(self) -> Spent:
        """Read the count in ``<name>.json``; zero if that file is missing or empty."""
        try:
            data = self.start_path.read_bytes()
            return Spent.model_validate_json(data) if data else Spent()
        except FileNotFoundError:
            return Spent()
        except OSError as error:
            raise StorageError(f"{self.start_path}: what was spent cannot be read: {error}") from error
        except ValidationError as error:
            raise DamagedLedger(
                f"{self.start_path}: expected what was spent, not {data[:40]!r}; nothing is sent until you write "
                f"{Spent().model_dump_json()} with the numbers that are known, or delete the file to begin at nothing"
            ) from error

    def _storage_error(self, error: sqlite3.Error) -> StorageError:
        match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF:
            case sqlite3.SQLITE_BUSY:
                self._retrying = True
                return StorageError(
                    f"{self.path}: another process has held the lock for {LOCK_SECONDS:g} s or more; if it is on this "
                    f"machine, 'fuser -v {self.path}' names it: let it go on (kill -CONT) or end it"
                )
            case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_ERROR:  # the last: other columns
                return DamagedLedger(
                    f"{self.path}: this is no ledger of what was spent ({error}); nothing is sent until you write "
                    f"{Spent().model_dump_json()} with the numbers that are known into {self.start_path.name} beside it "
                    f"and then delete the file (without {self.start_path.name} the count begins at nothing)"
                )
            case _:
                return StorageError(f"{self.path}: what is spent cannot be counted: {error}")


class Budget:
    """Requests and tokens of one judge, or of all that share its ledger.

    Requests are exact, because each is counted before it is sent. Tokens are known only afterwards:
    no request is sent once they are used up, but requests under way may still add to them.
    """

    def __init__(self, limits: SpendingLimits, ledger: Ledger | None = None) -> None:
        """
        Args:
            ledger: Ledger that is shared with judges of the same limits; ``None`` if this judge is
                alone.
        """
        self._limits = limits
        self._ledger = ledger
        # A thread of its own, so that a wait for the file's lock takes no thread from others. It
        # ends with this object.
        self._thread = ThreadPoolExecutor(1, "ledger")
        self.damage: DamagedLedger | None = None
        """Error of a damaged ledger, as of the last request; ``None`` if it is sound."""
        self.requests = 0
        """Number of requests that this judge has sent."""
        self.tokens = 0
        """Number of tokens that this judge has used."""

    async def claim(self) -> str | None:
        """Count a request before it is sent; return the reason if it must not be.

        Raises:
            StorageError: It cannot be counted in the ledger, so it must not be sent either.
        """
        refusal = await self._refusal()
        if refusal is None:
            self.requests += 1
        return refusal

    async def pay(self, tokens: int) -> None:
        """Count the tokens of a request, also when the caller is cancelled meanwhile.

        Raises:
            StorageError: The tokens cannot be counted in the ledger.
        """
        self.tokens += tokens
        if self._ledger is not None and tokens:
            paying = asyncio.get_running_loop().run_in_executor(self._thread, self._ledger.pay, tokens)
            try:
                await asyncio.shield(paying)
            except asyncio.CancelledError:
                await asyncio.wait([paying])  # milliseconds; at most the wait for the lock
                raise

    async def _refusal(self) -> str | None:
        if self._ledger is None:
            return self._limits.refusal(Spent(requests=self.requests, tokens=self.tokens))
        try:
            refusal = await asyncio.get_running_loop().run_in_executor(self._thread, self._ledger.claim, self._limits)
        except DamagedLedger as error:
            self.damage = error
            raise
        self.damage = None
        return refusal
