"""Chooses the server of each turn. Pure: no clock and no network of its own.

An episode stays with one server, whose prefix cache has its earlier turns. A new one goes to the server with the fewest episodes. A server
that failed rests for a while that doubles with each further failure; its episodes move to the others.
"""

from __future__ import annotations

from collections import Counter

FIRST_REST = 1.0
MAX_REST = 30.0
"""Seconds that a server is not asked after a failure: the first time, and at most."""


class Router:
    """Keeps which episode is at which of the servers 0 to ``servers`` - 1, and which of them rest."""

    def __init__(self, servers: int) -> None:
        self._rests_until = [0.0] * servers
        self._failures = [0] * servers
        self._turns = [0] * servers
        self._home: dict[str, int] = {}

    def choose(self, episode: str, now: float) -> int | None:
        """The server for a turn of ``episode``; ``None`` if all of them rest.

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
        """A turn is sent to a server."""
        self._turns[server] += 1

    def end(self, server: int, now: float, *, failed: bool) -> None:
        """It was answered, or the server failed."""
        self._turns[server] -= 1
        self._failures[server] = self._failures[server] + 1 if failed else 0
        if failed:
            self._rests_until[server] = now + min(FIRST_REST * 2 ** (self._failures[server] - 1), MAX_REST)

    def leave(self, episode: str) -> None:
        """An episode asks for no more turns."""
        self._home.pop(episode, None)
