"""Chooses the server of each turn. Pure: takes the time as an argument, uses no network.

An episode stays on one server, whose prefix cache holds its earlier turns. A new episode goes to
the server with the fewest episodes. A failed server rests for a time that doubles with each further
failure, and its episodes move to the others. So do those of a server that is left out, because it
has not got the current version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

FIRST_REST = 1.0
"""Seconds that a server rests after its first failure."""
MAX_REST = 30.0
"""Longest rest in seconds."""


class Router:
    """Maps episodes to the servers 0 to ``servers`` - 1 and records which servers rest."""

    def __init__(self, servers: int) -> None:
        self._rests_until = [0.0] * servers
        self._failures = [0] * servers
        self._turns = [0] * servers
        self._home: dict[str, int] = {}
        self.left_out: frozenset[int] = frozenset()
        """Servers that get no turns until they are taken back."""

    def leave_out(self, servers: Iterable[int]) -> None:
        """Give these servers no turns from now on, and take all others back."""
        self.left_out = frozenset(servers)

    def choose(self, episode: str, now: float) -> int | None:
        """Return the server for a turn of ``episode``; ``None`` if all rest or are left out.

        Args:
            now: Seconds on any clock that goes forward.
        """
        home = self._home.get(episode)
        usable = [
            server for server, until in enumerate(self._rests_until) if until <= now and server not in self.left_out
        ]
        if not usable:
            return None
        if home not in usable:
            episodes = Counter(self._home.values())
            home = min(usable, key=lambda server: (episodes[server], self._turns[server], server))
            self._home[episode] = home
        return home

    def begin(self, server: int) -> None:
        """Record that a turn is sent to a server."""
        self._turns[server] += 1

    def end(self, server: int, now: float, *, failed: bool) -> None:
        """Record that a turn was answered or the server failed."""
        self._turns[server] -= 1
        self._failures[server] = self._failures[server] + 1 if failed else 0
        if failed:
            self._rests_until[server] = now + min(FIRST_REST * 2 ** (self._failures[server] - 1), MAX_REST)

    def leave(self, episode: str) -> None:
        """Forget an episode that requests no more turns."""
        self._home.pop(episode, None)
