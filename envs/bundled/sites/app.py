"""Shared parts of the bundled sites: pages as functions of an episode's database.

A cookie names the episode of a request. An episode begins at ``/-/begin/<token>?to=/path``, which
sets the cookie and redirects to the path. So the addresses of all pages are the site's own
(``/product/12``) and the same in every episode. A request without a known cookie gets 403. Paths
below ``/api/`` are JSON about the state, for grading: they also need the server's key, which no
page and no policy has.
"""

from __future__ import annotations

import hmac
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from envs.bundled.sites.states import AppState, AppStates
from envs.sites.static_server import CachedFiles

HERE = Path(__file__).parent
COOKIE = "episode"
KEY_HEADER = "x-state-key"
MAX_BODY = 64_000
"""Largest body of a form, in bytes. The longest of ours has a text of 2,000 characters."""
SAFE = {
    "Content-Security-Policy": "default-src 'self'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
}
"""Headers of every page: nothing comes from elsewhere, or from a cache after a change."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page: its address, its form, and the database, committed after it."""

    db: sqlite3.Connection
    path: Mapping[str, Any]
    """Parts of the address: ``{"number": 12}``."""
    query: Mapping[str, str]
    form: Mapping[str, list[str]]
    page: Callable[..., Response]
    """Renders a template: ``page("product.html", status=200, **values)``."""

    def all(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """Return all rows of a query."""
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, *values: object) -> sqlite3.Row:
        """Return the first row of a query; without one, the page does not exist (404)."""
        row: sqlite3.Row | None = self.db.execute(sql, values).fetchone()
        if row is None:
            raise HTTPException(404)
        return row

    def form_value(self, name: str) -> str:
        """Return a field of the form, without white space at its ends."""
        return self.form.get(name, [""])[0].strip()


Handler = Callable[[Visit], Response]


@dataclass(frozen=True)
class Application:
    """One bundled site, without an episode."""

    name: str
    title: str
    build: Callable[[int, sqlite3.Connection], None]
    """Fills an empty database with a seed's world."""
    pages: Mapping[str, Handler]
    """Handlers by ``"GET /path/{number:int}"``."""
    frame: Callable[[sqlite3.Connection], dict[str, Any]] = field(default=lambda db: {})
    """Values for the head of every page."""


def go(address: str) -> Response:
    """Redirect to another page, after a form was taken."""
    return RedirectResponse(address, status_code=303)


def make_app(application: Application, states: AppStates, key: str) -> Starlette:
    """Make the ASGI application of a site; ``key`` opens ``/api/``."""
    shown = _Pages(application)
    routes = [_make_route(place, handler, shown) for place, handler in application.pages.items()]
    return Starlette(
        routes=[
            Route("/-/begin/{token}", _make_begin(states)),
            Mount("/-/static", CachedFiles(directory=HERE / "static")),
            *routes,
        ],
        middleware=[Middleware(_EpisodeGate, states=states, key=key)],
        exception_handlers={404: shown.missing},
    )


class _Pages:
    """The templates of a site."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader([HERE / "templates" / application.name, HERE / "templates"]),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters["money"] = lambda cents: f"${cents / 100:,.2f}"

    def page(self, db: sqlite3.Connection, template: str, *, status: int = 200, **values: Any) -> Response:
        """Render a page in the site's frame."""
        frame = {"site": self._application.title, "query": "", "error": "", **self._application.frame(db)}
        html = self._templates.get_template(template).render({**frame, **values})
        return HTMLResponse(html, status_code=status, headers=SAFE)

    async def missing(self, request: Request, error: Exception) -> Response:
        """Render a page that says that a page does not exist."""
        state: AppState | None = request.scope.get("episode")
        if state is None or request.url.path.startswith(("/-/", "/api/")):
            return PlainTextResponse("not found", status_code=404)
        with state.lock:
            return self.page(state.connection, "missing.html", status=404)


def _make_route(place: str, handler: Handler, shown: _Pages) -> Route:
    method, path = place.split(" ")

    async def endpoint(request: Request) -> Response:
        body = await _read_body(request)
        state: AppState = request.scope["episode"]
        with state.lock:
            db = state.connection
            db.row_factory = sqlite3.Row

            def page(template: str, **values: Any) -> Response:
                return shown.page(db, template, **values)

            form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
            visit = Visit(db, request.path_params, dict(request.query_params), form, page)
            try:
                answer = handler(visit)
            except BaseException:
                db.rollback()
                raise
            db.commit()
        return answer

    return Route(path, endpoint, methods=[method], name=place)


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise HTTPException(413)
    return bytes(body)


def _make_begin(states: AppStates) -> Callable[[Request], Any]:
    async def begin(request: Request) -> Response:
        token, to = request.path_params["token"], request.query_params.get("to", "/")
        if states.get(token) is None or not to.startswith("/") or to.startswith("//"):
            return PlainTextResponse("no such episode", status_code=403)
        answer = RedirectResponse(to, status_code=303, headers=SAFE)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="lax")
        return answer

    return begin


class _EpisodeGate:
    """Finds the episode of a request by its cookie, and refuses requests without one."""

    def __init__(self, app: ASGIApp, states: AppStates, key: str) -> None:
        self._app, self._states, self._key = app, states, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/-/"):
            request = Request(scope)
            state = self._states.get(request.cookies.get(COOKIE, ""))
            key = request.headers.get(KEY_HEADER, "")
            if state is None or (
                scope["path"].startswith("/api/") and not hmac.compare_digest(key.encode(), self._key.encode())
            ):
                await PlainTextResponse("no episode", status_code=403)(scope, receive, send)
                return
            scope["episode"] = state
        await self._app(scope, receive, send)
