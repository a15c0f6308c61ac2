"""State machine of a browser connection. Pure: no socket, the clock is given.

::

    NEW -> CONNECTING -> ATTACHING -> READY <-> BUSY
                 ^            |         |   \\     |
                 |            |         |   DEGRADED    (heartbeat missed)
             RECONNECTING <---+---------+------+
    any -> CLOSED
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from envs.types import BrowserError

JOURNAL_LENGTH = 256
"""Transitions that the journal keeps; a reconnect has four."""


class ConnectionState(StrEnum):
    """State of a connection; metrics use these values."""

    NEW = "new"
    CONNECTING = "connecting"
    """A socket is being opened."""
    ATTACHING = "attaching"
    """The socket is open; targets are being attached to."""
    READY = "ready"
    """Nothing is asked of the browser."""
    BUSY = "busy"
    """Calls wait for their answers."""
    DEGRADED = "degraded"
    """The browser did not answer a heartbeat in time. Calls may still be answered."""
    RECONNECTING = "reconnecting"
    """The socket is gone; the next attempt is waited for. Calls fail at once."""
    CLOSED = "closed"
    """Closed on purpose, or given up."""


S = ConnectionState
TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    S.NEW: frozenset({S.CONNECTING, S.CLOSED}),
    S.CONNECTING: frozenset({S.ATTACHING, S.RECONNECTING, S.CLOSED}),
    S.ATTACHING: frozenset({S.READY, S.RECONNECTING, S.CLOSED}),
    S.READY: frozenset({S.BUSY, S.DEGRADED, S.RECONNECTING, S.CLOSED}),
    S.BUSY: frozenset({S.READY, S.DEGRADED, S.RECONNECTING, S.CLOSED}),
    S.DEGRADED: frozenset({S.READY, S.BUSY, S.RECONNECTING, S.CLOSED}),
    S.RECONNECTING: frozenset({S.CONNECTING, S.CLOSED}),
    S.CLOSED: frozenset(),
}
"""States that may follow each state."""


@dataclass(frozen=True)
class Transition:
    """One entry of the journal."""

    at: float
    """Seconds of the monotonic clock."""
    before: ConnectionState
    after: ConnectionState
    why: str


class ConnectionMachine:
    """The state of one connection, with a journal and the time spent in each state."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self.state = ConnectionState.NEW
        self.journal: deque[Transition] = deque(maxlen=JOURNAL_LENGTH)
        """The last transitions, oldest first; READY <-> BUSY, which each call makes, are not in
        it."""
        self._seconds = dict.fromkeys(ConnectionState, 0.0)

    def to(self, after: ConnectionState, why: str = "") -> None:
        """Go to a state; staying in one is no transition.

        Raises:
            BrowserError: The table does not allow it.
        """
        before = self.state
        if after is before:
            return
        if after not in TRANSITIONS[before]:
            allowed = ", ".join(sorted(TRANSITIONS[before])) or "nothing"
            raise BrowserError(
                f"a connection cannot go from {before} to {after}; {before} may be followed by {allowed}"
            )
        now = self._clock()
        self._seconds[before] += now - self._since
        self._since, self.state = now, after
        if {before, after} != {ConnectionState.READY, ConnectionState.BUSY}:
            self.journal.append(Transition(now, before, after, why))

    @property
    def usable(self) -> bool:
        """True if calls may be made."""
        return self.state in (ConnectionState.READY, ConnectionState.BUSY, ConnectionState.DEGRADED)

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each state so far, the present one included."""
        spent = {**self._seconds, self.state: self._seconds[self.state] + self._clock() - self._since}
        return {str(state): value for state, value in spent.items() if value}
