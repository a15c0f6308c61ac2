"""Server state of a bundled site: one in-memory database for each episode.

A world's database is built once and kept as a template. An episode's database is a copy of it, made
with SQLite's own backup (under a millisecond). So a reset is exact, and nothing of one episode can
be seen in another.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from envs.types import SiteError

MAX_WORLDS = 64
"""Templates that are kept; building one takes a few milliseconds and 100 to 200 kB."""
MAX_EPISODES = 4096
"""Most open episodes. A worker has some dozens; more means that they are not closed."""

Build = Callable[[int, sqlite3.Connection], None]
"""Function (world's seed, empty database) that fills the database."""


@dataclass(frozen=True, slots=True)
class AppState:
    """The database of one episode. Only the thread that holds the lock uses the connection."""

    uri: str = field(repr=False)
    """SQLite URI with which this process can open the database a second time."""
    connection: sqlite3.Connection
    lock: threading.Lock = field(default_factory=threading.Lock)


class AppStates:
    """The episodes of one site. Used by the server's thread and by those that begin or end them."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._worlds: OrderedDict[int, sqlite3.Connection] = OrderedDict()
        self._open: dict[str, AppState] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, seed: int) -> AppState:
        """Open a new episode in the world of a seed.

        Raises:
            SiteError: too many are open.
        """
        uri = f"file:rollwright-{secrets.token_urlsafe(24)}?mode=memory&cache=shared"
        with self._guard:
            if len(self._open) >= MAX_EPISODES:
                raise SiteError(f"{MAX_EPISODES} episodes are open on one site; close those that are over")
            connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self._world(seed).backup(connection)
            state = self._open[uri] = AppState(uri, connection)
        return state

    def close(self, state: AppState) -> None:
        """Drop an episode's state. A second close does nothing."""
        if self._open.pop(state.uri, None) is not None:
            with state.lock:
                state.connection.close()

    def close_all(self) -> None:
        """Drop everything."""
        for state in list(self._open.values()):
            self.close(state)
        with self._guard:
            while self._worlds:
                self._worlds.popitem()[1].close()

    def _world(self, seed: int) -> sqlite3.Connection:
        """Return the template of a world; the caller holds the guard."""
        template = self._worlds.pop(seed, None)
        if template is None:
            template = sqlite3.connect(":memory:", check_same_thread=False)
            self._build(seed, template)
            template.commit()
        self._worlds[seed] = template
        if len(self._worlds) > MAX_WORLDS:
            self._worlds.popitem(last=False)[1].close()
        return template
