"""The routes of an OpenEnv server: OpenEnv's own, with episodes over HTTP and one capacity."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import JSONResponse
from openenv.core.env_server.serialization import serialize_observation
from openenv.core.env_server.types import ResetResponse, StepResponse, WSErrorCode, WSErrorResponse
from pydantic import ValidationError

from envs.adapters.openenv.environment import OpenEnvEnvironment
from envs.adapters.openenv.shared import SharedSessions
from envs.adapters.openenv.types import EpisodeClose, EpisodeReset, EpisodeStep, OpenEnvAction, OpenEnvState
from envs.server import SessionError
from envs.server.sessions import SessionCode
from envs.types import BrowserError, CapacityError, RollwrightError

SESSION_SECONDS = 0.5
"""Longest wait for a free session before a client is refused; the client before it may still be
closing its browser."""

MAX_EPISODES = 1000
"""HTTP episodes that are remembered after their end, so that a repeated request is answered."""


class OpenEnvFront:
    """The routes of a server: OpenEnv's, with episodes over HTTP and one capacity for all."""

    def __init__(self, shared: SharedSessions, max_sessions: int) -> None:
        self._shared, self._max_sessions = shared, max_sessions
        self._sockets = 0
        self._episodes: dict[str, OpenEnvEnvironment] = {}

    def used(self) -> int:
        """Number of sessions that WebSocket clients and HTTP episodes hold."""
        return self._sockets + sum(env.holds_browser for env in self._episodes.values())

    async def wait_for_session(self) -> None:
        """Raise `CapacityError` unless a session is free or becomes free in `SESSION_SECONDS`."""
        end = time.monotonic() + SESSION_SECONDS
        while self.used() >= self._max_sessions:
            if time.monotonic() >= end:
                raise CapacityError(f"all {self._max_sessions} sessions are in use: close one, or ask another server")
            await asyncio.sleep(0.02)

    def replace_routes(self, app: FastAPI) -> None:
        """Put our routes in the place of those that keep no episode or overrun the capacity."""
        routes: list[Any] = app.router.routes
        theirs = {route.path: route for route in routes if route.path in ("/reset", "/step", "/state", "/ws")}
        routes[:] = [route for route in routes if route not in theirs.values()]
        if "/reset" in theirs:  # not with OPENENV_MODE=production
            app.post("/reset", tags=["Environment Control"])(self.reset)
            app.post("/step", tags=["Environment Control"])(self.step)
            app.post("/close", tags=["Environment Control"])(self.close)
            app.get("/state", tags=["State Management"])(self.state)
        connect = theirs["/ws"].endpoint

        @app.websocket("/ws")
        async def socket(websocket: WebSocket) -> None:
            try:
                await self.wait_for_session()
            except CapacityError as error:
                await websocket.accept()
                data = {"message": str(error), "code": WSErrorCode.CAPACITY_REACHED, **self._counts()}
                await websocket.send_text(WSErrorResponse(data=data).model_dump_json())
                await websocket.close()
                return
            self._sockets += 1
            try:
                await connect(websocket)
            finally:
                self._sockets -= 1

        app.exception_handler(RollwrightError)(self.refuse)
        app.exception_handler(TimeoutError)(self.refuse)

    async def reset(self, request: Annotated[EpisodeReset, Body(default_factory=EpisodeReset)]) -> ResetResponse:
        """Begin an episode."""
        episode_id = request.episode_id or uuid.uuid4().hex
        env = self._episodes.get(episode_id) or OpenEnvEnvironment(self._shared)
        if not env.holds_browser:
            await self.wait_for_session()
        self._episodes[episode_id] = env
        try:
            shown = await env.reset_async(**{**request.model_dump(exclude_unset=True), "episode_id": episode_id})
        finally:
            self._forget()
        return ResetResponse(**serialize_observation(shown))

    async def step(self, request: EpisodeStep) -> StepResponse:
        """Carry out an action in an episode."""
        env = self._find(request.episode_id)
        try:
            action = OpenEnvAction.model_validate(request.action)
        except ValidationError as error:
            raise HTTPException(422, error.errors()) from None
        shown = await env.step_async(action, request.timeout_s, request_id=request.request_id)
        if shown.done:
            await env.give_back()
        return StepResponse(**serialize_observation(shown))

    async def close(self, request: EpisodeClose) -> dict[str, bool]:
        """End an episode and give its browser back."""
        env = self._find(request.episode_id)
        held = env.holds_browser
        await env.give_back()
        return {"closed": held}

    async def state(self, episode_id: str | None = None) -> OpenEnvState:
        """Place of an episode."""
        return OpenEnvState() if episode_id is None else self._find(episode_id).state

    def _find(self, episode_id: str) -> OpenEnvEnvironment:
        if episode_id not in self._episodes:
            raise SessionError(
                SessionCode.UNKNOWN, f"no episode {episode_id!r}: POST /reset with this episode_id first"
            )
        return self._episodes[episode_id]

    def _forget(self) -> None:
        """Drop the oldest ended episodes over `MAX_EPISODES`."""
        ended = [name for name, env in self._episodes.items() if not env.holds_browser]
        for name in ended[: max(0, len(ended) - MAX_EPISODES)]:
            del self._episodes[name]

    def _counts(self) -> dict[str, int]:
        return {"active_sessions": self.used(), "max_sessions": self._max_sessions}

    async def refuse(self, _: Request, error: Exception) -> JSONResponse:
        """Answer an error of ours with OpenEnv's code."""
        status, code = 422, WSErrorCode.VALIDATION_ERROR
        counts: dict[str, int] = {}
        if isinstance(error, CapacityError):
            status, code, counts = 503, WSErrorCode.CAPACITY_REACHED, self._counts()
        elif isinstance(error, SessionError):
            status, code = (404 if error.code is SessionCode.UNKNOWN else 409), WSErrorCode.SESSION_ERROR
        elif isinstance(error, (BrowserError, TimeoutError)):
            status, code = (504 if isinstance(error, TimeoutError) else 502), WSErrorCode.EXECUTION_ERROR
        return JSONResponse({"detail": {"message": str(error), "code": code, **counts}}, status)
