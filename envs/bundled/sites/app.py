"""Shared parts of the bundled sites: pages as functions of an episode's database.

Paths below ``/api/`` are JSON about the state, for grading alone: the requests of a browser do not
reach them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from envs.bundled.sites.states import AppState
from envs.sites.static_server import CachedFiles

HERE = Path(__file__).parent
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


def make_app(application: Application) -> Starlette:
    """Make the ASGI application of a site, which answers requests through `AppVisitor`."""
    shown = _Pages(application)
    routes = [_make_route(place, handler, shown) for place, handler in application.pages.items()]
    return Starlette(
        routes=[Mount("/-/static", CachedFiles(directory=HERE / "static")), *routes],
        exception_handlers={404: shown.missing},
    )


@dataclass(frozen=True, slots=True)
class AppVisitor:
    """The ASGI application of one visitor of an episode: its browser, or grading."""

    app: ASGIApp
    state: AppState
    grading: bool
    """True if it may ask for paths below ``/api/``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/api/") and not self.grading:
            await PlainTextResponse("for grading alone", status_code=403)(scope, receive, send)
            return
        await self.app({**scope, "episode": self.state}, receive, send)


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
        state: AppState = request.scope["episode"]
        if request.url.path.startswith(("/-/", "/api/")):
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
