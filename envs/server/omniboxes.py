"""The Omniboxes protocol over the server's sessions, for WebGym's client.

::

    python -m envs.server --port 7000 --omniboxes --reach https://*.example.com

An instance is a session on a page of its own, without a task or a reward. Its lifetime ends it,
also if its client is gone. A command that fails answers 200 with ``{"status": "error"}``, since the
client sends all else three times.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from envs.env import WebEnv
from envs.host import EnvHost
from envs.observation.marks import draw_scaled
from envs.server.app import EnvServer, read_body
from envs.server.omniboxes_commands import READERS, VIEWPORT, CommandError, actions_of
from envs.server.refusals import Refusal, json_answer
from envs.server.sessions import Session, SessionCode, SessionError
from envs.sites import LiveOptions, Site
from envs.sites.app_server import AppServer
from envs.step_result import AnyAction, StepResult
from envs.types import BrowserError, Dialog, RollwrightError, Split, StopReason, TaskError, WebTask, read_action
from envs.types.tasks import SeedRange

MAX_MINUTES = 24 * 60
"""Minutes of an instance's lifetime: a day."""

MINUTES = 60
"""Minutes of a lifetime that the client does not choose, as in Omniboxes."""

MAX_DIALOGS = 10
"""Dialogs that are dismissed after a command, as Playwright does for Omniboxes: no command answers
one."""

START_PAGE = '<!DOCTYPE html><title>New tab</title><body style="background:#eee">New tab</body>'
"""Page that an instance begins on; an all-white screenshot counts as broken for WebGym."""


class StartPage(Site):
    """The page that instances begin on; they may reach the operator's hosts."""

    foreign = True
    background = True
    viewport = VIEWPORT

    def __init__(self) -> None:
        self.name = TASK.site
        page = Route("/", lambda request: HTMLResponse(START_PAGE))
        self._server = AppServer(Starlette(routes=[page]), "the start page")

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:<port>``."""
        return self._server.origin

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def close(self) -> None:
        """Stop serving."""
        await self._server.close()


TASK = WebTask(
    task_id="omniboxes/instance",
    site=f"{__name__}:StartPage",
    kind="instance",
    path="/",
    instruction="Browse.",
    difficulty=1,
    horizon=1,
    seeds={Split.TRAIN: SeedRange(start=0, stop=1)},
)
"""Task that the session of an instance is opened with; nothing of it is graded."""


class Browsing(WebEnv):
    """Pages without a task: walls, repeated steps and errors of servers end nothing."""

    def __init__(self, host: EnvHost, live: LiveOptions) -> None:
        super().__init__(
            TASK,
            seed=0,
            reward=None,
            weights=None,
            parser=None,
            repeats=0,
            stop_on_invalid=False,
            judge=None,
            live=live,
            site=None,
            pool=host.pool,
            sites=host.sites,
        )
        self._shared = host.sites
        self._last: StepResult | None = None

    async def __aenter__(self) -> Browsing:
        site = await self._shared.started(TASK.site)
        site.hosts = (*self._live.addresses.values(), *self._live.reach)
        return await super().__aenter__()

    async def reset(self, seed: int | None = None) -> StepResult:
        """Begin with the start page."""
        page = await self._session.reset(self.task, 0)
        self._last = StepResult(0.0, False, page.observation, page.screenshot)
        return self._last

    async def step(self, action: AnyAction) -> StepResult:
        """Carry out an action; a browser that fails ends the browsing."""
        assert isinstance(action, dict) and self._last is not None
        if self._last.done:
            raise TaskError(f"the instance failed: {self._last.abstained}")
        try:
            page = await self._session.step(read_action(action))
            for _ in range(MAX_DIALOGS):
                if not page.observation.dialog:
                    break
                page = await self._session.step(Dialog(accept=False))
        except BrowserError as error:
            self._last = StepResult(None, True, self._last.observation, b"", StopReason.BROWSER_ERROR, str(error))
        else:
            self._last = StepResult(0.0, False, page.observation, page.screenshot)
        return self._last


@dataclass(slots=True)
class Command:
    """The last command of an instance."""

    asked: bytes
    reply: asyncio.Task[dict[str, Any]]
    delivered: bool = False
    """Its client was there when the reply was sent."""


def routes(server: EnvServer) -> Sequence[BaseRoute]:
    """Return the routes of the protocol."""
    front = _Front(server)
    return [
        Route("/get", front.get, methods=["POST"]),
        Route("/reset", front.reset, methods=["POST"]),
        Route("/screenshot", front.screenshot, methods=["GET"]),
        Route("/execute", front.execute, methods=["POST"]),
        Route("/metadata", front.metadata, methods=["GET"]),
        Route("/probe", front.probe, methods=["GET"]),
        Route("/info", front.info, methods=["GET"]),
    ]


class _Front:
    """Translates between the protocol and the sessions."""

    def __init__(self, server: EnvServer) -> None:
        self._server, self._table = server, server.table
        self._live = server.rules.live()

    async def get(self, request: Request) -> Response:
        """Open an instance for a number of minutes."""
        minutes = _minutes(request.query_params.get("lifetime_mins", str(MINUTES)))
        owner = request.scope["owner"]
        self._server.check_owner(owner)
        instance_id = f"{uuid.uuid4()}:{request.url.port or 80}"
        await self._server.finish(self._server.start(self._opened(instance_id, owner, minutes * 60.0)))
        return json_answer({"instance_id": instance_id, "node": _node(request)})

    async def _opened(self, instance_id: str, owner: str, seconds: float) -> None:
        table = self._table
        lease = {"lease_seconds": seconds, "lifetime_seconds": seconds}
        await table.open(TASK, session_id=instance_id, owner=owner, env=Browsing(table.host, self._live), **lease)
        try:
            await table.reset(instance_id)
        except RollwrightError:
            await table.close(instance_id)
            raise

    async def reset(self, request: Request) -> Response:
        """Close an instance, which gives its place back."""
        session = self._instance(request.query_params.get("instance_id"), request)
        await self._server.finish(self._server.start(self._table.close(session.session_id)))
        return json_answer({"status": "success"})

    async def screenshot(self, request: Request) -> Response:
        """Return the page's picture, with marks or without."""
        session = self._instance(request.query_params.get("instance_id"), request)
        mode = request.query_params.get("interaction_mode", "set_of_marks")
        if mode not in ("set_of_marks", "coordinates"):
            raise Refusal(422, "invalid", f"interaction_mode {mode[:50]!r}: expected set_of_marks or coordinates")
        async with session.lock:
            last = _page(session)
        picture, seen = last.screenshot, last.observation
        if mode == "set_of_marks":
            picture = await asyncio.to_thread(draw_scaled, picture, seen.elements, seen.viewport)
        return Response(picture, media_type="image/jpeg")

    async def execute(self, request: Request) -> Response:
        """Carry out one command, once, also if it is sent again because its answer was lost."""
        asked = await read_body(request, self._server.max_body)
        name, arguments, instance_id = _command(asked)
        session = self._instance(instance_id, request)
        command = session.state
        if not isinstance(command, Command) or command.delivered or command.asked != asked:
            work = self._server.start(self._reply(session, name, arguments))
            command = session.state = Command(asked, work)
        reply = await self._server.finish(command.reply)
        command.delivered = not await request.is_disconnected()
        return json_answer(reply)

    async def _reply(self, session: Session, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            if name in READERS:
                async with session.lock:
                    return READERS[name](_page(session).observation, arguments)
            for action in actions_of(name, arguments):
                result = await self._table.step(session.session_id, action)
                problem = result.abstained or result.observation.error
                if problem:
                    return {"status": "error", "message": problem}
        except (CommandError, RollwrightError) as error:
            return {"status": "error", "message": str(error)}
        return {"status": "success"}

    async def metadata(self, request: Request) -> Response:
        """Return the viewport's size."""
        self._instance(request.query_params.get("instance_id"), request)
        return json_answer({"width": VIEWPORT[0], "height": VIEWPORT[1]})

    async def probe(self, request: Request) -> Response:
        """Say that an instance is there and has a page."""
        session = self._instance(request.query_params.get("instance_id"), request)
        alive = session.last is not None and not session.last.done
        return Response(orjson.dumps(alive), media_type="application/json")

    async def info(self, request: Request) -> Response:
        """Describe this server as the one node; the instances are those of the key's owner."""
        table, owner = self._table, request.scope["owner"]
        own = [one.session_id for one in table.sessions.values() if one.owner == owner and one.env.task is TASK]
        node = {
            "url": _node(request),
            "hash": _node(request),
            "healthy": not table.draining,
            "capacity": table.capacity,
            "available": 0 if table.draining else table.capacity - len(table),
            "instances": own,
        }
        return json_answer({"nodes": [node]})

    def _instance(self, instance_id: str | None, request: Request) -> Session:
        if not instance_id:
            raise Refusal(422, "invalid", "instance_id is missing")
        session = self._table.find(instance_id, owner=request.scope["owner"])
        if session.env.task is not TASK:
            raise Refusal(404, SessionCode.UNKNOWN.value, f"session {instance_id!r} is no instance")
        return session


def _node(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _minutes(text: str) -> int:
    try:
        minutes = int(text[:10])
    except ValueError:
        minutes = 0
    if not 0 < minutes <= MAX_MINUTES:
        raise Refusal(422, "invalid", f"lifetime_mins {text[:50]!r}: expected 1 to {MAX_MINUTES}")
    return minutes


def _page(session: Session) -> StepResult:
    """Return what an instance shows."""
    last = session.last
    if last is None:
        raise SessionError(SessionCode.NO_EPISODE, f"instance {session.session_id!r} is not open yet")
    if last.done:
        raise BrowserError(f"the instance failed: {last.abstained}; reset it and get another one")
    return last


def _command(asked: bytes) -> tuple[str, dict[str, Any], str]:
    """Return the command's name and arguments, and the instance's id."""
    try:
        given = orjson.loads(asked)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "json", f"the body is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise Refusal(400, "json", "the body is no JSON object")
    instance_id = given.pop("instance_id", None)
    given.pop("node", None)
    if not isinstance(instance_id, str):
        raise Refusal(422, "invalid", "instance_id is missing")
    if len(given) != 1:
        raise Refusal(422, "invalid", f"{len(given)} commands; expected one a request")
    name, arguments = next(iter(given.items()))
    if not isinstance(arguments, dict):
        raise Refusal(422, "invalid", f"{name[:50]!r}: expected an object of arguments")
    return name, arguments, instance_id
