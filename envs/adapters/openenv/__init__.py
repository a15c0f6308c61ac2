"""OpenEnv: a server of web tasks, and its client.

``python -m envs.adapters.openenv --port 8000 --max-sessions 16`` serves, on this machine alone
unless ``--host`` names another address. Then::

    from envs.adapters.openenv import OpenEnvAction, OpenEnvClient

    with OpenEnvClient(base_url="http://127.0.0.1:8000").sync() as env:
        result = env.reset(task="miniwob/click-test", seed=7)
        while not result.done:
            result = env.step(OpenEnvAction(action="click [1]"))
        print(result.reward, result.observation.stop)

Any client of OpenEnv plays too (``GenericEnvClient``, actions ``{"action": "click [1]"}``). Plain
HTTP does as well: ``POST /reset`` with an ``episode_id``, then ``POST /step`` with the same one;
the end of the episode, or ``POST /close``, gives its browser back.

An episode that abstained ends with ``done`` and the reward ``null``; ``observation.abstained`` says
why. Do not train on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI

try:
    from openenv.core.client_types import StepResult as ClientResult
    from openenv.core.env_client import EnvClient
    from openenv.core.env_server.http_server import create_app
except ImportError as error:
    raise ImportError("the OpenEnv adapter needs openenv: pip install 'rollwright[openenv]'") from error

from envs.adapters.openenv.environment import OpenEnvEnvironment
from envs.adapters.openenv.front import OpenEnvFront
from envs.adapters.openenv.shared import SharedSessions
from envs.adapters.openenv.types import OpenEnvAction, OpenEnvObservation, OpenEnvState
from envs.host import EnvHost
from envs.prompts import StepRenderer
from envs.server import SessionTable
from envs.server.sessions import LEASE_SECONDS
from envs.types import WebTask

__all__ = ["OpenEnvAction", "OpenEnvClient", "OpenEnvObservation", "OpenEnvState", "make_app"]


def make_app(
    *,
    task: str = "miniwob/click-test",
    tasks: Iterable[WebTask] = (),
    renderer: StepRenderer | None = None,
    max_sessions: int = 16,
    lease_seconds: float = LEASE_SECONDS,
    live: bool = False,
) -> FastAPI:
    """Make the server's ASGI application, for uvicorn.

    Args:
        task: Task of a reset that names none.
        tasks: Tasks that are known beside those of `envs.list_tasks`.
        renderer: Writes what a step shows; text and screenshot if not given.
        max_sessions: Maximum number of WebSocket clients and HTTP episodes together.
        lease_seconds: Seconds after its last call at which a session's browser is given back.
        live: True takes addresses and ``live/…`` as tasks: the server's browsers open them.
    """
    renderer = renderer or StepRenderer(screenshot=True)
    shared = SharedSessions(renderer, {one.task_id: one for one in tasks}, task, live)
    app: FastAPI = create_app(
        partial(OpenEnvEnvironment, shared),
        OpenEnvAction,
        OpenEnvObservation,
        env_name="rollwright",
        max_concurrent_envs=max_sessions,
        state_cls=OpenEnvState,
    )
    OpenEnvFront(shared, max_sessions).replace_routes(app)
    started = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with (
            EnvHost(max_sessions=max_sessions, **renderer.pool_options) as host,
            SessionTable(host, lease_seconds=lease_seconds) as shared.table,
            started(app) as state,
        ):
            shared.loop = asyncio.get_running_loop()
            await asyncio.to_thread(lambda: shared.listed)  # reading the tasks would hold up the first client
            yield state

    app.router.lifespan_context = lifespan
    app.state.shared = shared
    return app


def __getattr__(name: str) -> Any:
    if name == "app":  # of openenv.yaml: uvicorn envs.adapters.openenv:app
        return make_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class OpenEnvClient(EnvClient):
    """Client of the server, with typed actions and observations (`.sync()` without ``await``)."""

    def _step_payload(self, action: OpenEnvAction) -> dict[str, Any]:
        return dict(action.model_dump())

    def _parse_result(self, payload: dict[str, Any]) -> ClientResult:
        observation = OpenEnvObservation(
            **payload["observation"], reward=payload.get("reward"), done=payload.get("done", False)
        )
        return ClientResult(observation, observation.reward, observation.done, payload.get("metadata"))

    def _parse_state(self, payload: dict[str, Any]) -> OpenEnvState:
        return OpenEnvState(**payload)
