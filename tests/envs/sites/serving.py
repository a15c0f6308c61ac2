"""Requests to a bundled site's application, without a socket."""

from __future__ import annotations

import sqlite3
from typing import Any

import httpx

from envs.bundled.sites import APPLICATIONS
from envs.bundled.sites.app import COOKIE, make_app
from envs.bundled.sites.states import AppStates

KEY = "the key of grading"
ORIGIN = "http://127.0.0.1:1"


class Served:
    """One site with its states; every `visitor` has an episode of its own."""

    def __init__(self, name: str) -> None:
        self.states = AppStates(APPLICATIONS[name].build)
        self.app = make_app(APPLICATIONS[name], self.states, KEY)

    def visitor(self, token: str = "", **headers: str) -> httpx.AsyncClient:
        """A client with these headers, in the episode of the token."""
        cookies = {COOKIE: token} if token else {}
        transport = httpx.ASGITransport(app=self.app)
        return httpx.AsyncClient(
            transport=transport, base_url=ORIGIN, headers=headers, cookies=cookies, follow_redirects=True
        )

    def rows(self, token: str, query: str) -> list[tuple[Any, ...]]:
        """Rows of an episode's database."""
        state = self.states.get(token)
        assert state is not None
        return [tuple(row) for row in state.connection.execute(query)]


def dump(connection: sqlite3.Connection) -> list[str]:
    """All of a database."""
    return list(connection.iterdump())
