"""Chooses the server of each turn. Pure: takes the time as an argument, uses no network.

An episode stays on one server, whose prefix cache holds its earlier turns. A new episode goes to
the server with the fewest episodes. A failed server rests for a time that doubles with each further
failure, and its episodes move to the others.
"""

from __future__ import annotations

from collections import Counter

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

    def choose(self, episode: str, now: float) -> int | None:
        """Return the server for a turn of ``episode``; ``None`` if all servers rest.

        Args:
            now: Seconds on any clock that goes forward.
        """
        home = self._home.get(episode)
        usable = [server for server, until in enumerate(self._rests_until) if until <= now]
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
