"""Requests to a bundled site's application, without a socket."""

from __future__ import annotations

import sqlite3
from typing import Any

import httpx

from envs.bundled.sites import APPLICATIONS, BundledAttempt, BundledSite
from envs.sites.recipes.front import COOKIE

ORIGIN = "http://127.0.0.1:1"


class Served:
    """One site with its states; every `visitor` has an episode of its own."""

    def __init__(self, name: str) -> None:
        self.site = BundledSite(APPLICATIONS[name])

    def open(self, seed: int) -> BundledAttempt:
        """An episode in the world of a seed."""
        return self.site.admitted(self.site.states.open(seed), ORIGIN, "/")

    def visitor(self, token: str = "") -> httpx.AsyncClient:
        """A client with the cookie of a token."""
        transport = httpx.ASGITransport(app=self.site._front)
        cookies = {COOKIE: token} if token else {}
        return httpx.AsyncClient(transport=transport, base_url=ORIGIN, cookies=cookies, follow_redirects=True)


def rows(episode: BundledAttempt, query: str) -> list[tuple[Any, ...]]:
    """Rows of an episode's database."""
    return [tuple(row) for row in episode.kept.connection.execute(query)]


def dump(connection: sqlite3.Connection) -> list[str]:
    """All of a database."""
    return list(connection.iterdump())
