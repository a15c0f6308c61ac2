"""NeMo-Gym resources server: its agents play our tasks with the tools ``snapshot``, ``browser``.

::

    server = WebResourcesServer(config=WebResourcesServerConfig(...), server_client=client)
    app = server.setup_webserver()  # or: python -m envs.adapters.nemo_gym, started by NeMo-Gym

    rows = dataset_rows(["miniwob/click-test"], seeds=[7])  # lines of a JSONL file of NeMo-Gym

A session is seeded with ``task`` and ``seed``, by an agent's ``/run`` (the session cookie names it)
or by an environment server (``resources_session_id``). ``/verify`` ends the episode: a last message
of the model is its answer. An abstention, and a session that was lost, has ``mask_sample`` true
with a ``failure_kind`` and reason, and then ``reward`` 0.0 means nothing. NeMo-Gym 0.5 to 0.7.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import PrivateAttr

from envs.adapters.shared_host import on_host, shared_host
from envs.prompts import ObservationMode, StepRenderer
from envs.server.sessions import MAX_CLOSED, SessionCode, SessionError, SessionTable
from envs.step_result import StepResult
from envs.sync import SyncEnvHost
from envs.types import BrowserError, RollwrightError

try:
    from fastapi import FastAPI, Request
    from fastapi.responses import PlainTextResponse
    from nemo_gym import failure_kinds
    from nemo_gym.base_resources_server import (
        BaseSeedSessionResponse,
        BaseVerifyRequest,
        ResourcesCloseSessionRequest,
        ResourcesCloseSessionResponse,
        ResourcesSeedSessionRequest,
        ResourcesSeedSessionResponse,
        SimpleResourcesServer,
    )
    from nemo_gym.server_utils import SESSION_ID_KEY

    from envs.adapters.nemo_gym_types import WebResourcesServerConfig, WebSeedRequest, WebVerifyResponse
except ImportError as error:
    raise ImportError(
        "envs.adapters.nemo_gym needs nemo-gym 0.5 or later: scripts/setup_frameworks nemo_gym"
    ) from error


class WebResourcesServer(SimpleResourcesServer):
    """Keeps an environment for each session, on browsers that all sessions share."""

    ray_enabled: ClassVar[bool | None] = False
    config: WebResourcesServerConfig
    _host: SyncEnvHost | None = PrivateAttr(default=None)
    _table: SessionTable | None = PrivateAttr(default=None)
    _locks: dict[str, asyncio.Lock] = PrivateAttr(default_factory=dict)
    _closed: OrderedDict[str, None] = PrivateAttr(default_factory=OrderedDict)
    _assigned: set[str] = PrivateAttr(default_factory=set)

    def setup_webserver(self) -> FastAPI:
        """Return the application with the routes of the base class and of the tools."""
        app: FastAPI = super().setup_webserver()
        app.post("/snapshot")(self.snapshot)
        app.post("/browser")(self.browser)
        app.add_exception_handler(RollwrightError, _refusal)
        return app

    async def seed_session(
        self, request: Request, body: ResourcesSeedSessionRequest | WebSeedRequest
    ) -> ResourcesSeedSessionResponse | BaseSeedSessionResponse:
        """Begin an episode; a repeated seed finds it, and one after a close is refused."""
        if not isinstance(body, ResourcesSeedSessionRequest):
            await self._call(self._open, request.session[SESSION_ID_KEY], body)
            return BaseSeedSessionResponse()
        session_id = request.session[SESSION_ID_KEY] = body.resources_session_id
        self._assigned.add(session_id)
        await self._call(self._open, session_id, WebSeedRequest.model_validate(body.task_data))
        return ResourcesSeedSessionResponse(resources_session_id=session_id)

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        """Close a session; it is no error if there is none."""
        await self._call(self._close, body.resources_session_id)
        self._assigned.discard(body.resources_session_id)
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)

    async def snapshot(self, request: Request) -> PlainTextResponse:
        """Show the page and the task."""
        step = await self._call(self._shown, request.session[SESSION_ID_KEY])
        return PlainTextResponse(self._renderer.text(step))

    async def browser(self, request: Request, body: dict[str, Any]) -> PlainTextResponse:
        """Do one action, as the schema of `StepRenderer.tools` has it, and show the page."""
        step = await self._call(self._step, request.session[SESSION_ID_KEY], body)
        return PlainTextResponse(self._renderer.text(step))

    async def verify(self, request: Request, body: BaseVerifyRequest) -> WebVerifyResponse:
        """End the episode and return its reward."""
        given, session_id = body.model_dump(), request.session[SESSION_ID_KEY]
        try:
            step, recorded = await self._call(self._finish, session_id, body.response.output_text)
        except SessionError as error:
            expired = error.code is SessionCode.EXPIRED
            kind = failure_kinds.SESSION_EXPIRED if expired else failure_kinds.SESSION_LOST
            return WebVerifyResponse(
                **given, reward=0.0, mask_sample=True, failure_kind=kind, failure_reason=str(error)
            )
        masked = step.abstained is not None
        broken = failure_kinds.PROVIDER_UNAVAILABLE if recorded["error"] else failure_kinds.VERIFIER_ERROR
        return WebVerifyResponse(
            **given,
            reward=0.0 if step.reward is None else step.reward,
            mask_sample=masked,
            failure_kind=broken if masked else None,
            failure_reason=step.abstained,
            steps=len(recorded["steps"]),
            stop=None if step.stop is None else step.stop.value,
            trajectory=recorded,
        )

    @property
    def _renderer(self) -> StepRenderer:
        return StepRenderer(mode=self.config.mode, prompt="tools")

    async def _call(self, work: Any, *arguments: Any) -> Any:
        """Await work in the event loop of the browsers, where the sessions live."""
        if self._table is None:
            options = {**self._renderer.pool_options, "max_sessions": self.config.max_sessions}
            self._host = shared_host(**options)
            self._table = SessionTable(self._host.host, lease_seconds=self.config.lease_seconds)
            await on_host(self._host, self._table.__aenter__)
        assert self._host is not None
        return await on_host(self._host, work, self._table, *arguments)

    async def _open(self, table: SessionTable, session_id: str, seed: WebSeedRequest) -> None:
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            if session_id in self._closed:
                raise SessionError(SessionCode.CLOSED, f"session {session_id!r} was closed before it was seeded")
            if session_id not in table.sessions:
                await table.open(seed.task, session_id=session_id, seed=seed.seed)
            if table.sessions[session_id].last is None:
                await table.reset(session_id)

    async def _close(self, table: SessionTable, session_id: str) -> None:
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            if session_id in table.sessions:
                await table.close(session_id)
            self._closed[session_id] = None
            while len(self._closed) > MAX_CLOSED:
                self._closed.popitem(last=False)
        self._locks.pop(session_id, None)

    async def _shown(self, table: SessionTable, session_id: str) -> StepResult:
        last = table.find(session_id).last
        if last is None:
            raise SessionError(SessionCode.NO_EPISODE, f"session {session_id!r} has no episode: seed it first")
        return last

    async def _step(self, table: SessionTable, session_id: str, action: dict[str, Any]) -> StepResult:
        return await table.step(session_id, action)

    async def _finish(self, table: SessionTable, session_id: str, text: str) -> tuple[StepResult, dict[str, Any]]:
        step = await self._shown(table, session_id)
        if not step.done:
            end = {"type": "answer", "text": text} if text else {"type": "terminate", "status": "failure"}
            step = await table.step(session_id, end)
        trajectory = table.find(session_id).env.trajectory
        assert trajectory is not None
        if session_id not in self._assigned:  # an agent's /run closes no session
            await self._close(table, session_id)
        return step, trajectory.model_dump(mode="json")


def dataset_rows(
    tasks: Sequence[str], seeds: Sequence[int | None] = (None,), mode: ObservationMode = "text"
) -> Iterator[dict[str, Any]]:
    """Yield rows of a NeMo-Gym data set: an example for each task and seed."""
    renderer = StepRenderer(mode=mode, prompt="tools")
    snapshot = {"name": "snapshot", "description": "Shows the page and the task.", "parameters": {"type": "object"}}
    functions = [snapshot, *(tool["function"] for tool in renderer.tools())]
    request = {
        "input": [*renderer.system_messages(), {"role": "user", "content": "Call snapshot for the page and the task."}],
        "tools": [{"type": "function", "strict": False, **function} for function in functions],
        "parallel_tool_calls": False,
    }
    for task in tasks:
        for seed in seeds:
            yield {"responses_create_params": request, "task": task, "seed": seed}


async def _refusal(request: Request, error: Exception) -> PlainTextResponse:
    """Answer a refused call with its reason, which an agent shows to its model."""
    status = 503 if isinstance(error, BrowserError) else 409 if isinstance(error, SessionError) else 422
    return PlainTextResponse(str(error), status_code=status)


if __name__ == "__main__":
    WebResourcesServer.run_webserver()
