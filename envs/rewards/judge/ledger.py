"""What the judges of a run have spent together: two numbers in one small file on the run's storage, changed under a lock.

Workers on several machines count in it, die and are started again; a run that is resumed finds what is left. A request is counted before it is
sent, so whatever dies afterwards has been counted: there are never more requests than the budget. The lock (``flock``) ends with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, ValidationError

from envs.types import Record, StorageError

WIDTH = 96
"""Bytes of the file, always: it is overwritten in place, and numbers that grow leave no rest of others behind. Two 20-digit numbers fit."""

PATIENCE = 30.0
"""Seconds to wait for the lock. It is held for about a millisecond, so longer means that its holder was stopped or its machine is gone."""


class Spent(Record):
    """What was spent."""

    requests: int = Field(default=0, ge=0)
    """Sent, retries included; or about to be sent by something that died or was given up just then."""
    tokens: int = Field(default=0, ge=0)
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
    """The file. Any number of objects, threads, processes and machines may have the same one.

    Raises:
        StorageError: by each method; the file cannot be read, written or locked, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ours = threading.Lock()
        """Threads of one process wait here, and do not poll for the file's lock."""

    def read(self) -> Spent:
        """What was spent until now."""
        if not self.path.exists():
            return Spent()
        with self._open() as file:
            return self._read(file)

    def claim(self, limits: Limits) -> str | None:
        """Count one request that is about to be sent; why it must not be, if the budget is used up."""
        with self._open() as file:
            spent = self._read(file)
            refusal = limits.refusal(spent)
            if refusal is None:
                self._write(file, spent.model_copy(update={"requests": spent.requests + 1}))
            return refusal

    def pay(self, tokens: int) -> None:
        """Count what a request has cost."""
        with self._open() as file:
            spent = self._read(file)
            self._write(file, spent.model_copy(update={"tokens": spent.tokens + tokens}))

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """The open file, locked."""
        until = time.monotonic() + PATIENCE
        if not self._ours.acquire(timeout=PATIENCE):
            raise self._stuck()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._lock(file, until)
                yield file
                fcntl.flock(file, fcntl.LOCK_UN)  # by hand: a process that was forked meanwhile has the file open too
            finally:
                os.close(file)
        except OSError as error:
            raise StorageError(f"{self.path}: what the judge spends cannot be counted: {error}") from error
        finally:
            self._ours.release()

    def _lock(self, file: int, until: float) -> None:
        pause = 0.001
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise self._stuck() from None
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _stuck(self) -> StorageError:
        return StorageError(f"{self.path}: another process has held the lock for {PATIENCE:g} s; is it stopped?")

    def _read(self, file: int) -> Spent:
        data = os.pread(file, WIDTH + 1, 0)
        if not data:  # just made, or its maker died before it counted anything
            return Spent()
        try:
            return Spent.model_validate_json(data)
        except ValidationError as error:
            raise StorageError(
                f"{self.path}: expected what a judge has spent, not {data[:40]!r}; write {Spent().model_dump_json()} with the numbers that "
                f"are known, or delete the file to begin at nothing"
            ) from error

    @staticmethod
    def _write(file: int, spent: Spent) -> None:
        os.pwrite(file, spent.model_dump_json().ljust(WIDTH - 1).encode() + b"\n", 0)
        os.fdatasync(file)
