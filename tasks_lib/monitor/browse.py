"""Routes of the browser of runs: pages and JSON. All of them only read.

Each page has an address that stays: ``/runs``, ``/runs/RUN``, ``/runs/RUN/episodes/EPISODE``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from envs.types import RollwrightError, StorageError
from tasks_lib.monitor.animation import animation
from tasks_lib.monitor.episode_index import MAX_ROWS, EpisodeIndex, EpisodeQuery, row_values, search
from tasks_lib.monitor.runs import MAX_COMPARED, RunShelf, run_page
from tasks_lib.monitor.static_files import PAGE, static_file
from tasks_lib.report.episodes import episode_values
from tasks_lib.report.page import EPISODE_SCRIPTS, TEMPLATES, render_episode
from tasks_lib.report.tokens import TokenTexts
from training.ledger.store import RunStore

REPORT_FILES = (*EPISODE_SCRIPTS, "style.css")
"""Files of the report that the page of an episode is made of too."""


@dataclass(slots=True)
class RunBrowser:
    """Answers requests for the runs under a root. Files are read in threads."""

    shelf: RunShelf
    _indexes: dict[str, EpisodeIndex] = field(default_factory=dict)
    _tokens: dict[str, TokenTexts] = field(default_factory=dict)

    def routes(self) -> list[Route]:
        """Return the routes, for a Starlette application."""
        pages = ("/runs", "/runs/{run}", "/runs/{run}/episodes/{episode}")
        run = "/api/runs/{run}"
        return [
            *(Route(path, _page) for path in pages),
            Route("/report/{name}", _report_file),
            Route("/api/runs", self._answer(lambda request: self.shelf.rows())),
            Route("/api/compare", self._answer(self._comparison)),
            Route(run, self._answer(self._run)),
            Route(f"{run}/episodes", self._answer(self._episodes)),
            Route(f"{run}/episodes/{{episode}}", self._answer(self._episode)),
            Route(f"{run}/blobs/{{blob}}", self._blob),
            Route(f"{run}/episodes/{{episode}}/export.html", self._html),
            Route(f"{run}/episodes/{{episode}}/export.gif", self._gif),
        ]

    def _answer(self, values: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await _in_thread(lambda: JSONResponse(values(request)))

        return endpoint

    def _run(self, request: Request) -> dict[str, Any]:
        name = request.path_params["run"]
        return run_page(self.shelf.store(name), self.shelf.measurements(name))

    def _comparison(self, request: Request) -> dict[str, Any]:
        names = request.query_params.getlist("run")
        if len(names) > MAX_COMPARED:
            raise BadRequest(f"{len(names)} runs: at most {MAX_COMPARED} are compared")
        return self.shelf.comparison(names)

    def _index(self, name: str) -> EpisodeIndex:
        """Return the index of a run with all groups that are committed now."""
        index = self._indexes.setdefault(name, EpisodeIndex(self.shelf.store(name)))
        index.refresh()
        return index

    def _episodes(self, request: Request) -> dict[str, Any]:
        """Return the rows from ``offset`` on; with ``text`` those whose texts hold the words."""
        given = request.query_params
        index = self._index(request.path_params["run"])
        rows = index.select(read_query(request))
        offset, limit = _whole(given, "offset", 0), min(_whole(given, "limit", 100), MAX_ROWS)
        words = given.get("text", "").strip()
        shown: dict[str, Any] = {"total": len(rows), "facets": index.facets(), "counts": index.counts()}
        if not words:
            return shown | {"rows": row_values(rows[offset : offset + limit])}
        matches, searched = search(index.store, rows, words, offset, limit)
        return shown | {"rows": row_values(matches), "searched": searched}

    def _stored(self, request: Request) -> tuple[RunStore, dict[str, Any]]:
        """Return a run's folder, and the values of one of its episodes."""
        name, episode = request.path_params["run"], request.path_params["episode"]
        index = self._index(name)
        if episode not in index.rows:
            raise KeyError(episode)
        tokens = self._tokens.setdefault(name, TokenTexts.of(index.store))
        values, problems = episode_values(index.store, episode, tokens)
        row = index.rows[episode]
        siblings = [(other.episode, other.sample, other.outcome) for other in index.group(row.group)]
        return index.store, values | {"problems": problems, "siblings": siblings}

    def _episode(self, request: Request) -> dict[str, Any]:
        store, values = self._stored(request)
        address = f"/api/runs/{store.root.name}/blobs"
        shots = {step["shot"] for step in values["steps"]} | {(values["final"] or {}).get("shot") or ""}
        return values | {"images": {shot: f"{address}/{shot}" for shot in shots if shot}}

    async def _blob(self, request: Request) -> Response:
        def read() -> Response:
            name = request.path_params["blob"]
            store = self.shelf.store(request.path_params["run"])
            if len(name) != 64 or not set(name) <= set("0123456789abcdef"):
                raise KeyError(name)
            content = store.blob(name)
            kind = "image/png" if content[:4] == b"\x89PNG" else "image/jpeg"
            return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=86400, immutable"})

        return await _in_thread(read)

    async def _html(self, request: Request) -> Response:
        def export() -> Response:
            store, values = self._stored(request)
            return _download(render_episode(store, values).encode(), "text/html", f"{values['id']}.html")

        return await _in_thread(export)

    async def _gif(self, request: Request) -> Response:
        def export() -> Response:
            store, values = self._stored(request)
            return _download(animation(store, values), "image/gif", f"{values['id']}.gif")

        return await _in_thread(export)


class BadRequest(RollwrightError):
    """A request with a value that means nothing."""


def read_query(request: Request) -> EpisodeQuery:
    """Return the filters of a request.

    Raises:
        BadRequest: a value is no number, or no known order.
    """
    given = request.query_params
    return EpisodeQuery(
        kind=given.get("kind", ""),
        task=given.get("task", ""),
        outcome=given.get("outcome", ""),
        stop=given.get("stop", ""),
        phase=given.get("phase", ""),
        abstained=given.get("abstained", ""),
        min_score=_number(given, "min_score"),
        max_score=_number(given, "max_score"),
        min_steps=_whole(given, "min_steps", 0),
        min_staleness=_whole(given, "min_staleness", 0),
        sort=given.get("sort") or "newest",
    )


def _number(given: Any, name: str) -> float | None:
    try:
        return float(given[name]) if given.get(name) else None
    except ValueError:
        raise BadRequest(f"{name}={given[name][:40]!r} is no number") from None


def _whole(given: Any, name: str, default: int) -> int:
    value = given.get(name)
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise BadRequest(f"{name}={value[:40]!r} is no whole number from 0 on")
    return int(value)


async def _in_thread(answer: Callable[[], Response]) -> Response:
    """Return an answer that reads files, or the one clear error instead of it."""
    try:
        return await asyncio.to_thread(answer)
    except KeyError as error:
        return JSONResponse({"error": f"there is no {str(error.args[0])[:200]!r} here"}, status_code=404)
    except BadRequest as error:
        return JSONResponse({"error": str(error)}, status_code=400)
    except StorageError as error:
        return JSONResponse({"error": str(error)}, status_code=500)


async def _page(request: Request) -> Response:
    return HTMLResponse((PAGE / "runs.html").read_bytes(), headers={"Cache-Control": "no-cache"})


async def _report_file(request: Request) -> Response:
    return static_file(TEMPLATES, request.path_params["name"], REPORT_FILES)


def _download(content: bytes, kind: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Security-Policy": "sandbox"}
    return Response(content, media_type=kind, headers=headers)


def browser_of(root: Path) -> RunBrowser:
    """Return the browser of the runs under a root."""
    return RunBrowser(RunShelf(root))
