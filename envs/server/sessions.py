"""Sessions of clients: an environment each, with a lease that expires and steps done once.

A session belongs to one client at a time. Each reset begins an *epoch*, counted from 1; the steps
of an epoch are numbered from 1. A client that did not get an answer sends the same epoch and number
again and gets the first answer: the action is done once. So it is with resets and their epochs.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import psutil

from envs.background import start_background
from envs.env import WebEnv
from envs.host import EnvHost
from envs.registry import seed_of
from envs.step_result import AnyAction, StepResult
from envs.types import CapacityError, RollwrightError, WebTask

LEASE_SECONDS = 600.0
"""Seconds after its last call at which a session is closed."""

MIN_FREE_MB = 500.0
"""Available memory of the machine below which no further session is opened: a page takes 30 to
100 MB."""

MAX_CLOSED = 10_000
"""Closed sessions whose ids are remembered, so that a late call gets the reason."""


class SessionCode(StrEnum):
    """Reasons for which a call on a session is refused."""

    UNKNOWN = "unknown_session"
    CLOSED = "closed_session"
    EXPIRED = "expired_session"
    TAKEN = "session_exists"
    STALE_EPOCH = "stale_epoch"
    WRONG_STEP = "wrong_step"
    OTHER_ACTION = "other_action"
    NO_EPISODE = "no_episode"
    LENT = "lent"
    DRAINING = "draining"


class SessionError(RollwrightError):
    """A call on a session was refused; ``code`` says why."""

    def __init__(self, code: SessionCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class Session:
    """A client's environment, its place in the episode, and its lease."""

    session_id: str
    env: WebEnv
    lease_seconds: float
    expires: float
    """Time of ``time.monotonic`` at which it is closed without a call."""
    ends: float = math.inf
    """Time of ``time.monotonic`` at which it is closed in any case."""
    owner: str = ""
    """Name of the client that opened it."""
    state: Any = None
    """Value that the front which opened it keeps with it."""
    lent: bool = False
    """Another client plays its page; resets and steps are refused until it is given back."""
    epoch: int = 0
    """Number of resets."""
    steps: int = 0
    """Number of steps of the epoch that were done."""
    last: StepResult | None = None
    """Result of the last reset or step; ``None`` before the first reset."""
    action: AnyAction | None = None
    """Action of the last step."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a call on the environment: calls of one session are done in turn."""

    def renew(self) -> None:
        """Begin the lease anew; the session's end stays."""
        self.expires = min(time.monotonic() + self.lease_seconds, self.ends)


@dataclass(slots=True)
class SessionCounters:
    """Counters of a table since it was made."""

    opened: int = 0
    closed: int = 0
    """Sessions that their clients closed."""
    expired: int = 0
    """Sessions whose leases ended."""
    refused: int = 0
    """Sessions that were refused for want of places or memory."""
    episodes: int = 0
    steps: int = 0
    repeated: int = 0
    """Steps that were asked for again and answered with the first answer."""
    abstained: int = 0
    """Episodes that ended without a reward."""


class SessionTable:
    """The sessions on an `EnvHost`, used in ``async with`` in its event loop."""

    def __init__(
        self,
        host: EnvHost,
        *,
        lease_seconds: float = LEASE_SECONDS,
        min_free_mb: float = MIN_FREE_MB,
        free_mb: Callable[[], float] = lambda: psutil.virtual_memory().available / 2**20,
    ) -> None:
        """
        Args:
            lease_seconds: Seconds after its last call at which a session is closed.
            min_free_mb: Available memory in MB below which no session is opened.
            free_mb: Returns the available memory in MB.
        """
        self.host = host
        self.counters = SessionCounters()
        self.draining = False
        """True once no further session is opened."""
        self._lease_seconds = lease_seconds
        self._min_free_mb, self._free_mb = min_free_mb, free_mb
        self._sessions: dict[str, Session] = {}
        self._opening: set[str] = set()
        self._ended: OrderedDict[str, SessionCode] = OrderedDict()
        self._leases: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        start_background(self._expire(), self._leases, "session leases")
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._leases:
            task.cancel()
        for session_id in list(self._sessions):
            self._start_closing(session_id, SessionCode.CLOSED)
        await asyncio.gather(*self._closing, return_exceptions=True)  # each logs its own error

    def __len__(self) -> int:
        return len(self._sessions) + len(self._opening)

    @property
    def capacity(self) -> int:
        """Maximum number of sessions."""
        return self.host.pool.options.max_sessions

    @property
    def free_memory_mb(self) -> float:
        """Available memory of the machine."""
        return self._free_mb()

    @property
    def sessions(self) -> dict[str, Session]:
        """The open sessions by id."""
        return dict(self._sessions)

    async def open(
        self,
        task: str | WebTask,
        *,
        session_id: str | None = None,
        lease_seconds: float | None = None,
        lifetime_seconds: float = math.inf,
        owner: str = "",
        state: Any = None,
        env: WebEnv | None = None,
        **options: Any,
    ) -> Session:
        """Open a session, whose first episode begins with `reset`.

        Args:
            task: The same as of `envs.open_env`.
            session_id: Id that the client chose; a random one if not given.
            lease_seconds: Lease of this session; the table's if not given.
            lifetime_seconds: Seconds after which it is closed, also if its client still calls.
            owner: Name of the client; `find` refuses others.
            state: Value that the caller keeps with the session.
            env: Environment to lend, not entered; the host opens one if not given.
            options: The same as of `envs.EnvHost.open`.

        Raises:
            CapacityError: There is no place, or the machine has too little memory.
            SessionError: The server is draining, or the id was used before.
            TaskError, ConfigError, BrowserError: The errors of `envs.open_env`.
        """
        session_id = session_id or uuid.uuid4().hex
        self._check_place(session_id)
        self._opening.add(session_id)
        try:
            opened = await (env or self.host.open(task, **options))
        finally:
            self._opening.discard(session_id)
        lease = lease_seconds if lease_seconds is not None else self._lease_seconds
        ends = time.monotonic() + lifetime_seconds
        session = Session(session_id, opened, lease, ends, ends, owner, state)
        session.renew()
        self._sessions[session_id] = session
        self.counters.opened += 1
        return session

    def _check_place(self, session_id: str) -> None:
        """Raise unless one more session with this id can be opened."""
        if self.draining:
            raise SessionError(SessionCode.DRAINING, "the server is draining: it opens no further sessions")
        if session_id in self._sessions or session_id in self._opening:
            raise SessionError(SessionCode.TAKEN, f"session {session_id!r} is open already")
        if session_id in self._ended:
            raise self._gone(session_id)
        if len(self) >= self.capacity:
            self.counters.refused += 1
            raise CapacityError(f"all {self.capacity} sessions are in use: close one, or ask another server")
        if (free := self._free_mb()) < self._min_free_mb:
            self.counters.refused += 1
            raise CapacityError(
                f"{free:.0f} MB of memory are free, and a session needs {self._min_free_mb:.0f} MB left"
            )

    def find(self, session_id: str, *, owner: str | None = None) -> Session:
        """Return an open session and renew its lease.

        Args:
            owner: Client that asks; another one's session does not exist for it.

        Raises:
            SessionError: There is no such session; it was closed, or its lease ended.
        """
        session = self._sessions.get(session_id)
        if session is None or owner not in (None, session.owner):
            raise self._gone(session_id)
        session.renew()
        return session

    def _gone(self, session_id: str) -> SessionError:
        code = self._ended.get(session_id, SessionCode.UNKNOWN)
        reason = {
            SessionCode.CLOSED: "it was closed",
            SessionCode.EXPIRED: "its lease ended without a call, or its time was over",
        }.get(code, "there is none with this id")
        return SessionError(code, f"no session {session_id!r}: {reason}; open another one")

    async def reset(self, session_id: str, *, seed: int | None = None, epoch: int | None = None) -> StepResult:
        """Begin an episode, and with it an epoch; once, also if it is asked for again.

        Args:
            epoch: Epoch that is to begin; the next one if not given. The present one again returns
                its first result while no step was done.

        Raises:
            SessionError: There is no such session, or the epoch is neither of the two.
            TaskError, BrowserError: The errors of `envs.WebEnv.reset`.
        """
        session = self.find(session_id)
        async with self._used(session):
            again = epoch == session.epoch > 0 and session.steps == 0
            if again and session.last is not None:
                self.counters.repeated += 1
                return session.last
            if not again and epoch not in (None, session.epoch + 1):
                raise self._stale(session, epoch)
            if seed is not None:
                seed_of(session.env.task, seed)  # a wrong one leaves the running episode as it is
            session.epoch += not again
            session.steps, session.last, session.action = 0, None, None
            session.last = await session.env.reset(seed)
        self.counters.episodes += 1
        self.counters.abstained += session.last.abstained is not None
        return session.last

    def _stale(self, session: Session, epoch: int | None) -> SessionError:
        return SessionError(
            SessionCode.STALE_EPOCH, f"epoch {epoch}: session {session.session_id!r} is in epoch {session.epoch}"
        )

    async def step(
        self, session_id: str, action: AnyAction, *, epoch: int | None = None, number: int | None = None
    ) -> StepResult:
        """Carry out an action once, also if it is asked for again.

        Args:
            epoch: Epoch that the client means; the present one if not given.
            number: Number of the step in its epoch, from 1; the next one if not given.

        Raises:
            SessionError: There is no such session or episode; the epoch is over; the number is
                neither the last step's nor the next one's, or the last step was another action.
            TaskError, ConfigError: The errors of `envs.WebEnv.step`.
        """
        session = self.find(session_id)
        async with self._used(session):
            if session.last is None:
                raise SessionError(SessionCode.NO_EPISODE, f"session {session_id!r} has no episode: reset it first")
            if epoch is not None and epoch != session.epoch:
                raise self._stale(session, epoch)
            if number is not None and number == session.steps and number > 0:
                if action != session.action:
                    raise SessionError(
                        SessionCode.OTHER_ACTION,
                        f"step {number} of epoch {session.epoch} was another action: {session.action!r}",
                    )
                self.counters.repeated += 1
                return session.last
            if number is not None and number != session.steps + 1:
                raise SessionError(
                    SessionCode.WRONG_STEP,
                    f"step {number}: session {session_id!r} did {session.steps}, so the next is {session.steps + 1}",
                )
            session.last = await session.env.step(action)
            session.steps, session.action = session.steps + 1, action
        self.counters.steps += 1
        self.counters.abstained += session.last.abstained is not None
        return session.last

    @asynccontextmanager
    async def _used(self, session: Session) -> AsyncIterator[None]:
        """Hold a session for one call; its lease does not end meanwhile."""
        async with session.lock:
            if self._sessions.get(session.session_id) is not session:
                raise self._gone(session.session_id)
            if session.lent:
                raise SessionError(SessionCode.LENT, f"session {session.session_id!r} is lent: give it back first")
            try:
                yield
            finally:
                session.renew()

    async def close(self, session_id: str) -> bool:
        """Close a session and give its browser back; return False if it was closed before.

        Raises:
            SessionError: There was never a session with this id.
        """
        if session_id not in self._sessions:
            if session_id in self._ended:
                return False
            raise self._gone(session_id)
        await self._start_closing(session_id, SessionCode.CLOSED)
        return True

    async def drain(self, seconds: float) -> int:
        """Open no further session, and wait until all are closed.

        Args:
            seconds: Maximum wait.

        Returns:
            Number of sessions that are still open.
        """
        self.draining = True
        end = time.monotonic() + seconds
        while len(self) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        return len(self)

    def _start_closing(self, session_id: str, code: SessionCode) -> asyncio.Task[None]:
        """Take a session out of the table, and close its environment in the background.

        A caller that is cancelled leaves no browser behind.
        """
        session = self._sessions.pop(session_id)
        self._ended[session_id] = code
        while len(self._ended) > MAX_CLOSED:
            self._ended.popitem(last=False)
        if code is SessionCode.EXPIRED:
            self.counters.expired += 1
        else:
            self.counters.closed += 1
        return start_background(session.env.close(), self._closing, f"closing session {session_id}")

    async def _expire(self) -> None:
        """Close sessions whose leases ended, for as long as the table is open."""
        while True:
            now = time.monotonic()
            over = [one for one in self._sessions.values() if one.expires <= now and not one.lock.locked()]
            for session in over:
                self._start_closing(session.session_id, SessionCode.EXPIRED)
            rest = [session.expires for session in self._sessions.values()]
            await asyncio.sleep(min(1.0, max(0.02, min(rest, default=now + 1.0) - now)))
