"""What the judges of a run (or the writers of a task set) have spent together: two numbers in one small file on its storage, changed under a lock.

Workers on several machines count in it, die and are started again; a run that is resumed finds what is left. A request is counted before it is
sent, so whatever dies afterwards has been counted: there are never more requests than the budget. The lock (``flock``) ends with its process.

The file is made by who counts first and is never shortened, so an empty one is one that nothing was counted in. Anything else that is not two
numbers is `DamagedLedger`: nothing is sent until somebody says what was spent.
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

from envs.rewards.judge import holder
from envs.types import Record, StorageError
from envs.types.paths import AnyPath

WIDTH = 96
"""Bytes of the file, always: it is overwritten in place, and numbers that grow leave no rest of others behind. Two 20-digit numbers fit."""

PATIENCE = 30.0
"""Seconds to wait for the lock. It is held for about a millisecond, so longer means that its holder was stopped or its machine is gone."""

AGAIN = 0.1
"""Seconds to wait once that was in vain, until the lock is had again: a hundred times as long as it is held, and who queues has an answer soon."""


class DamagedLedger(StorageError):
    """A ledger does not say what was spent. Unlike a lock that is held or a disk that is full, it does not pass by itself."""


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
        StorageError: by each method; the file cannot be read, written or locked.
        DamagedLedger: by each method; it holds something else.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)
        self._ours = threading.Lock()
        """Threads of one process wait here, and do not poll for the file's lock."""
        self._in_vain_since: float | None = None
        """When the wait began that was in vain; ``None`` once the lock was had again."""

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
        began = time.monotonic()
        patience = PATIENCE if self._in_vain_since is None else min(PATIENCE, AGAIN)
        if not self._ours.acquire(timeout=patience):
            raise self._stuck(began)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._lock(file, began, patience)
                yield file
                fcntl.flock(file, fcntl.LOCK_UN)  # by hand: a process that was forked meanwhile has the file open too
            finally:
                os.close(file)
        except OSError as error:
            raise StorageError(f"{self.path}: what is spent cannot be counted: {error}") from error
        finally:
            self._ours.release()

    def _lock(self, file: int, began: float, patience: float) -> None:
        pause = 0.001
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > began + patience:
                    raise self._stuck(began) from None
            else:
                self._in_vain_since = None
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _stuck(self, began: float) -> StorageError:
        if self._in_vain_since is None:
            self._in_vain_since = began
        who, fix = holder.describe_owner(self.path)
        waited = time.monotonic() - self._in_vain_since
        return StorageError(f"{self.path}: {who} has held the lock for {waited:.3g} s; {fix}")

    def _read(self, file: int) -> Spent:
        data = os.pread(file, WIDTH + 1, 0)
        if not data:  # just made, or its maker died before it counted anything
            return Spent()
        try:
            return Spent.model_validate_json(data)
        except ValidationError as error:
            raise DamagedLedger(
                f"{self.path}: expected what was spent, not {data[:40]!r}; nothing is sent until you write {Spent().model_dump_json()} with "
                f"the numbers that are known, or delete the file to begin at nothing"
            ) from error

    @staticmethod
    def _write(file: int, spent: Spent) -> None:
        os.pwrite(file, spent.model_dump_json().ljust(WIDTH - 1).encode() + b"\n", 0)
        os.fdatasync(file)
