"""The routes of the environment server, over a `SessionTable`.

::

    async with EnvHost(max_sessions=8) as host, SessionTable(host) as table:
        app = EnvServer(table).app()    # ASGI; `python -m envs.server` serves it

What a route asks of a session runs to its end, also if the client goes away or its request's time
is over: the client asks again with the same epoch and number, and gets the answer.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from envs.background import log_failure
from envs.observation.marks import draw_scaled
from envs.prompts import StepRenderer
from envs.registry import list_tasks
from envs.server.gate import Gate
from envs.server.metrics import metrics_text
from envs.server.refusals import HANDLERS, Refusal, invalid, json_answer
from envs.server.requests import ClientRules, OpenRequest, ResetRequest, StepRequest
from envs.server.sessions import Session, SessionCode, SessionError, SessionTable
from envs.step_result import StepResult
from envs.types import Record, TaskError

T = TypeVar("T")
R = TypeVar("R", bound=Record)

MAX_BODY = 1_000_000
"""Bytes of a request's body: a submitted page has at most 200,000 characters, a task less."""

BODY_SECONDS = 30.0
"""Seconds in which a request's body must have come."""

REQUEST_SECONDS = 120.0
"""Seconds until a request is answered: two deadlines of the browser, for a step and its grading."""

Front = Callable[["EnvServer"], Sequence[BaseRoute]]
"""Makes further routes, such as `envs.server.omniboxes.routes`."""


@dataclass
class EnvServer:
    """The server's parts; `app` makes the ASGI application. Used in the table's event loop."""

    table: SessionTable
    rules: ClientRules = field(default_factory=ClientRules)
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys by owner; none lets everybody on this machine in."""
    master_key: str = field(default="", repr=False)
    """Key of a master, which names the owners of its requests; with it requests without a
    key are refused."""
    max_per_owner: int | None = None
    """Sessions of one owner; the table's capacity if not given."""
    max_body: int = MAX_BODY
    request_seconds: float = REQUEST_SECONDS
    fronts: Sequence[Front] = ()
    """Further routes: other protocols over the same sessions. One that lends something else than a
    task's environment opens its sessions with ``SessionTable.open(…, env=…)``."""
    answers: Counter[int] = field(default_factory=Counter)
    """Number of answers by HTTP status."""

    def __post_init__(self) -> None:
        self._work: set[asyncio.Task[Any]] = set()
        self._opening: dict[str, tuple[tuple[str, OpenRequest], asyncio.Task[Session]]] = {}
        self.rules.live()  # wrong addresses are refused at the start

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/sessions", self._open, methods=["POST"]),
            Route("/sessions/{id}", self._state, methods=["GET"]),
            Route("/sessions/{id}", self._close, methods=["DELETE"]),
            Route("/sessions/{id}/reset", self._reset, methods=["POST"]),
            Route("/sessions/{id}/step", self._step, methods=["POST"]),
            Route("/sessions/{id}/screenshot", self._screenshot, methods=["GET"]),
            Route("/sessions/{id}/trajectory", self._trajectory, methods=["GET"]),
            Route("/tasks", self._tasks, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        return Starlette(
            routes=[*routes, *(route for front in self.fronts for route in front(self))],
            middleware=[Middleware(Gate, keys=self.keys, answers=self.answers, master_key=self.master_key)],
            exception_handlers=HANDLERS,
        )

    async def read(self, request: Request, model: type[R]) -> R:
        """Read a request's body, a JSON object; an empty one has no fields.

        Raises:
            Refusal: It is no JSON object, or has wrong fields.
        """
        data = await read_body(request, self.max_body)
        try:
            value = orjson.loads(data) if data else {}
        except orjson.JSONDecodeError as error:
            raise Refusal(400, "json", f"the body is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise Refusal(400, "json", f"the body is {type(value).__name__}; expected a JSON object")
        try:
            return model.model_validate(value)
        except ValidationError as error:
            raise invalid(error) from error

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that goes on without its request."""
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def finish(self, task: asyncio.Task[T]) -> T:
        """Wait for work for as long as a request may take.

        Raises:
            Refusal: It takes longer; it goes on.
        """
        try:
            done, _ = await asyncio.wait({task}, timeout=self.request_seconds)
        except asyncio.CancelledError:
            task.add_done_callback(log_failure)
            raise
        if not done:
            task.add_done_callback(log_failure)
            raise Refusal(504, "not_yet", f"no answer within {self.request_seconds:g} s: ask the same again")
        return task.result()

    def session(self, request: Request) -> Session:
        """Return the session of a request's address, and renew its lease."""
        return self.table.find(request.path_params["id"], owner=request.scope["owner"])

    def check_owner(self, owner: str) -> None:
        """Raise unless the owner may open one more session."""
        if self.max_per_owner is None:
            return
        own = sum(session.owner == owner for session in self.table.sessions.values())
        own += sum(who == owner for (who, _), _ in self._opening.values())
        if own >= self.max_per_owner:
            raise Refusal(429, "too_many_sessions", f"{own} sessions are open with this key, and it may have no more")

    async def _open(self, request: Request) -> Response:
        asked = await self.read(request, OpenRequest)
        session_id, owner = asked.session_id or uuid.uuid4().hex, request.scope["owner"]
        open_already = self.table.sessions.get(session_id)
        if open_already is not None and open_already.owner == owner and open_already.state == asked:
            open_already.renew()
            return json_answer(_opened(open_already))
        first, task = self._opening.get(session_id, (None, None))
        if task is None:
            self.check_owner(owner)
            task = self.start(self._opened(session_id, owner, asked))
            self._opening[session_id] = (owner, asked), task
            task.add_done_callback(lambda _: self._opening.pop(session_id))
        elif first != (owner, asked):
            raise SessionError(SessionCode.TAKEN, f"session {session_id!r} is being opened already")
        return json_answer(_opened(await self.finish(task)), 201)

    async def _opened(self, session_id: str, owner: str, asked: OpenRequest) -> Session:
        task, options = await asyncio.to_thread(self.rules.prepare, asked)
        return await self.table.open(
            task, session_id=session_id, lease_seconds=asked.lease_seconds, owner=owner, state=asked, **options
        )

    async def _reset(self, request: Request) -> Response:
        session, asked = self.session(request), await self.read(request, ResetRequest)
        return await self._answer(
            request, session, self.table.reset(session.session_id, seed=asked.seed, epoch=asked.epoch)
        )

    async def _step(self, request: Request) -> Response:
        session, asked = self.session(request), await self.read(request, StepRequest)
        work = self.table.step(session.session_id, asked.action, epoch=asked.epoch, number=asked.step)
        try:
            return await self._answer(request, session, work)
        except TaskError as error:
            raise Refusal(409, "episode_over", str(error)) from error

    async def _answer(self, request: Request, session: Session, work: Coroutine[Any, Any, StepResult]) -> Response:
        """Return a result; with ``?screenshot=true`` also its picture."""

        async def worked() -> tuple[StepResult, dict[str, Any]]:
            result = await work
            return result, written(session, result)  # at once: the next call changes the session

        result, answer = await self.finish(self.start(worked()))
        if request.query_params.get("screenshot") == "true":
            picture = await _picture(session, result)
            answer["screenshot"] = base64.b64encode(picture).decode("ascii")
        return json_answer(answer)

    async def _state(self, request: Request) -> Response:
        session = self.session(request)
        last = None if session.last is None else written(session, session.last)
        return json_answer({**_opened(session), "epoch": session.epoch, "step": session.steps, "last": last})

    async def _screenshot(self, request: Request) -> Response:
        session = self.session(request)
        if session.last is None:
            raise SessionError(SessionCode.NO_EPISODE, f"session {session.session_id!r} has no episode: reset it first")
        picture = await _picture(session, session.last)
        if not picture:
            return Response(status_code=204)  # the page shows nothing at its end
        return Response(picture, media_type="image/jpeg")

    async def _trajectory(self, request: Request) -> Response:
        session = self.session(request)
        trajectory = session.env.trajectory
        if trajectory is None:
            raise SessionError(SessionCode.NO_EPISODE, "the episode is not over: its record comes with its end")
        return Response(trajectory.model_dump_json(), media_type="application/json")

    async def _close(self, request: Request) -> Response:
        session_id = request.path_params["id"]
        if session_id in self.table.sessions:
            self.session(request)
        closed = await self.finish(self.start(self.table.close(session_id)))
        return json_answer({"session_id": session_id, "closed": closed})

    async def _tasks(self, request: Request) -> Response:
        family = request.query_params.get("family", "")
        return json_answer({"tasks": await asyncio.to_thread(list_tasks, family)})

    async def _health(self, request: Request) -> Response:
        table = self.table
        state = {"status": "draining" if table.draining else "ok", "sessions": len(table), "capacity": table.capacity}
        return json_answer(state, 503 if table.draining else 200)

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(metrics_text(self.table, self.answers))


async def read_body(request: Request, max_body: int) -> bytes:
    """Return a request's body.

    Raises:
        Refusal: It is too large, or does not come.
    """
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > max_body:
                    raise Refusal(413, "too_large", f"the body has more than {max_body} bytes")
    except (ClientDisconnect, TimeoutError) as error:
        raise Refusal(408, "no_body", "the body did not come") from error
    return bytes(data)


def _opened(session: Session) -> dict[str, Any]:
    task = session.env.task.model_dump(mode="json")
    lease = {"lease_seconds": session.lease_seconds}
    return {"session_id": session.session_id, "task": task, "seed": session.env.seed, **lease}


def written(session: Session, result: StepResult) -> dict[str, Any]:
    """Return a result as JSON values, with the text that an agent reads."""
    return {
        "session_id": session.session_id,
        "epoch": session.epoch,
        "step": session.steps,
        "reward": result.reward,
        "done": result.done,
        "stop": result.stop,
        "abstained": result.abstained,
        "observation": result.observation.model_dump(mode="json"),
        "text": StepRenderer(mode=_mode(session)).text(result),
    }


def _mode(session: Session) -> Any:
    return session.state.mode if isinstance(session.state, OpenRequest) else "text"


async def _picture(session: Session, result: StepResult) -> bytes:
    """Return the screenshot as the session's mode shows it."""
    if _mode(session) != "set_of_marks" or not result.screenshot:
        return result.screenshot
    observation = result.observation
    return await asyncio.to_thread(draw_scaled, result.screenshot, observation.elements, observation.viewport)
