"""DevTools addresses of the server's sessions, so that anybody's agent can play them.

``POST /sessions/ID/devtools`` lends the page of the session's episode at a ``cdp_url``, for
Playwright's ``connect_over_cdp``. What the agent sends there renews the session's lease; an orphan
is closed with it. ``DELETE /sessions/ID/devtools`` gives the page back and returns it; then the
session goes on with steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from envs.background import start_background
from envs.server.app import EnvServer, written
from envs.server.refusals import Refusal, json_answer
from envs.server.sessions import Session
from envs.supply import MAX_LEASE_SECONDS, DevToolsLease, DevToolsSupply
from envs.types import TaskError

RENEW_SECONDS = 0.5
"""Seconds between looks whether a client said something."""


class DevToolsFront:
    """Lends the pages of sessions; `routes` is one of `EnvServer.fronts`."""

    def __init__(self, supply: DevToolsSupply) -> None:
        self._supply = supply
        self._leases: dict[str, DevToolsLease] = {}
        self._renewing: set[asyncio.Task[None]] = set()

    def routes(self, server: EnvServer) -> Sequence[BaseRoute]:
        """Return the routes."""

        async def lend(request: Request) -> Response:
            session = server.session(request)
            lease = await server.finish(server.start(self._lend(session)))
            return json_answer({**lease.describe(), "session_id": session.session_id}, 201)

        async def give_back(request: Request) -> Response:
            session = server.session(request)
            return json_answer(await server.finish(server.start(self._give_back(session))))

        return [
            Route("/sessions/{id}/devtools", lend, methods=["POST"]),
            Route("/sessions/{id}/devtools", give_back, methods=["DELETE"]),
        ]

    async def _lend(self, session: Session) -> DevToolsLease:
        async with session.lock:
            lease = self._leases.get(session.session_id)
            if lease is None:
                seconds = min(session.lease_seconds, MAX_LEASE_SECONDS)
                try:
                    lease = await self._supply.offer(session.env, lease_seconds=seconds)
                except TaskError as error:
                    raise Refusal(409, "no_episode", str(error)) from error
                self._leases[session.session_id], session.lent = lease, True
                start_background(self._renew(session, lease), self._renewing, f"lease of {session.session_id}")
            return lease

    async def _renew(self, session: Session, lease: DevToolsLease) -> None:
        """Renew the session's lease while its page is used."""
        while not lease.ended.done():
            session.expires = min(
                max(session.expires, time.monotonic() + session.lease_seconds - lease.idle), session.ends
            )
            await asyncio.wait({lease.ended}, timeout=RENEW_SECONDS)
        if self._leases.get(session.session_id) is lease:
            del self._leases[session.session_id]
            session.lent = False

    async def _give_back(self, session: Session) -> dict[str, Any]:
        async with session.lock:
            lease = self._leases.get(session.session_id)
            if lease is None:
                raise Refusal(409, "not_lent", f"the page of session {session.session_id!r} is not lent")
            try:
                session.last = await self._supply.close(lease.lease_id)
            finally:
                self._leases.pop(session.session_id, None)
                session.lent = False
            return written(session, session.last)
