"""What all judges of a run (or all writers of a task set) have spent, in one SQLite file.

Workers on several machines count in it, die and are started again; a run that is resumed finds what is left. Every change is one
transaction. A request is counted before it is sent, so a process that dies has counted it: more requests than the budget are never
sent. The file has SQLite's rollback journal, so that it also holds on a network file system with POSIX locks.

Where there is no file yet, the count starts from ``<name>.json`` beside it, ``{"requests": 7, "tokens": 900}``: older versions kept
their count there, and a person writes it when the file is damaged.
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
"""How long to wait for the lock. It is held for milliseconds, so longer means that its owner is stopped or its machine is gone."""

RETRY_SECONDS = 0.1
"""How long to wait after a wait in vain, until the lock is had again: requests that queue up then fail soon."""

_SCHEMA = """CREATE TABLE IF NOT EXISTS spent (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    requests INTEGER NOT NULL CHECK (requests >= 0),
    tokens INTEGER NOT NULL CHECK (tokens >= 0)
) STRICT"""

MAX_COUNT = 2**63 - 1
"""The greatest integer of SQLite."""


class DamagedLedger(StorageError):
    """A ledger does not say what was spent. Unlike a held lock or a full disk, this does not pass by itself."""


class Spent(Record):
    """What was spent."""

    requests: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Sent, retries included; also those that a process had counted when it died before it sent them."""
    tokens: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Of prompts and completions, as far as endpoints have answered."""


class Limits(NamedTuple):
    """What may be spent altogether; ``None``: no limit."""

    requests: int | None
    tokens: int | None

    def refusal(self, spent: Spent) -> str | None:
        """Why nothing more may be sent; ``None`` if something may."""
        if self.requests is not None and spent.requests >= self.requests:
            return f"the budget of {self.requests} requests is used up (budget_requests)"
        if self.tokens is not None and spent.tokens >= self.tokens:
            return f"the budget of {self.tokens} tokens is used up (budget_tokens)"
        return None

    def account(self, spent: Spent) -> dict[str, dict[str, int | None]]:
        """Spent and left (``None`` without a limit), of requests and tokens; for metrics."""
        return {
            name: {"spent": used, "left": None if limit is None else max(0, limit - used)}
            for name, used, limit in (
                ("requests", spent.requests, self.requests),
                ("tokens", spent.tokens, self.tokens),
            )
        }


class Ledger:
    """The file. Any number of objects, threads, processes and machines may share it.

    Raises:
        StorageError: by each method; the file cannot be read, written or locked.
        DamagedLedger: by each method; the file is no ledger.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)
        self.start_path = self.path.with_suffix(".json")
        """What was spent before there was a file."""
        if self.path == self.start_path:
            raise ValueError(f"{path}: a ledger needs another suffix than .json, which names what was spent before")
        self._retrying = False
        """The last wait for the lock was in vain."""

    def read(self) -> Spent:
        """What was spent until now. Does not make the file."""
        if not self.path.exists():
            return self._start()
        with self._transaction() as (_, spent):
            return spent

    def claim(self, limits: Limits) -> str | None:
        """Count one request that is about to be sent, or say why it must not be sent."""
        with self._transaction() as (connection, spent):
            refusal = limits.refusal(spent)
            if refusal is None:
                connection.execute("UPDATE spent SET requests = requests + 1")
            return refusal

    def pay(self, tokens: int) -> None:
        """Count what a request has cost."""
        with self._transaction() as (connection, _):
            connection.execute("UPDATE spent SET tokens = tokens + ?", (tokens,))

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sqlite3.Connection, Spent]]:
        """The locked file and what was spent. All changes are written at the end, or none if anything fails."""
        patience = min(RETRY_SECONDS, LOCK_SECONDS) if self._retrying else LOCK_SECONDS
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=patience, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                self._retrying = False
                connection.execute(_SCHEMA)
                row = connection.execute("SELECT requests, tokens FROM spent").fetchone()
                if row is None:
                    start = self._start()
                    row = (start.requests, start.tokens)
                    connection.execute("INSERT INTO spent VALUES (1, ?, ?)", row)
                yield connection, Spent(requests=row[0], tokens=row[1])
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._fault(error) from error
        except OSError as error:
            raise StorageError(f"{self.path}: what is spent cannot be counted: {error}") from error

    def _start(self) -> Spent:
        """What ``<name>.json`` says; nothing without that file, or if nobody has written to it."""
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

    def _fault(self, error: sqlite3.Error) -> StorageError:
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

    Requests are exact: each is counted before it is sent. Tokens are known only afterwards: nothing is sent once they are used up, and
    requests that are under way at that moment may still add to them.
    """

    def __init__(self, limits: Limits, ledger: Ledger | None = None) -> None:
        """
        Args:
            ledger: Shared with others, who have the same limits; ``None``: this judge is alone.
        """
        self._limits = limits
        self._ledger = ledger
        # A thread of its own: waiting for the file's lock keeps nobody else from a thread. It ends with this object.
        self._thread = ThreadPoolExecutor(1, "ledger")
        self.damage: DamagedLedger | None = None
        """Why nothing can be counted until somebody mends the ledger, as of the last request."""
        self.requests = 0
        """Sent so far by this judge."""
        self.tokens = 0
        """Paid so far by this judge."""

    async def claim(self) -> str | None:
        """Count a request that is sent next, or say why it must not be sent.

        Raises:
            StorageError: it cannot be counted in the ledger, so it must not be sent either.
        """
        refusal = await self._refusal()
        if refusal is None:
            self.requests += 1
        return refusal

    async def pay(self, tokens: int) -> None:
        """Count what a request has cost, also when the caller is cancelled meanwhile.

        Raises:
            StorageError: the tokens cannot be counted in the ledger.
        """
        self.tokens += tokens
        if self._ledger is not None and tokens:
            paying = asyncio.get_running_loop().run_in_executor(self._thread, self._ledger.pay, tokens)
            try:
                await asyncio.shield(paying)
            except asyncio.CancelledError:
                await asyncio.wait([paying])  # milliseconds; as long as the wait for the lock at most
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
