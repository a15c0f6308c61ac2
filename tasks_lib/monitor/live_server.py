"""Server of the live monitor: states of the workers and figures of the run, as server-sent events.

::

    source (files, or Dask's events) ──> poll, 10 times a second ──> newest state of each worker
                                                                      │  (a number for each change)
    viewer ──> /events: waits for a change, takes all that is newer than what it has ──> the page

A message's bytes are made once and shared by all viewers. A viewer that reads slowly is asked
again when it can take more, and then gets the newest states only; it costs nothing meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tasks_lib.monitor.prometheus import render_metrics
from tasks_lib.monitor.run_figures import History
from tasks_lib.monitor.static_files import PAGE
from tasks_lib.worker.live import WorkerState

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
FIGURES_SECONDS = 1.0
PING_SECONDS = 15.0


class LiveSource(Protocol):
    """Workers' states, wherever they come from."""

    problem: str | None
    """Sentence about what is wrong with the source."""

    def changes(self) -> list[tuple[str, bytes]]:
        """Return name and JSON of each worker that is new, changed or gone since the last call."""

    def states(self) -> list[WorkerState]:
        """Return the newest states of the workers that are there."""

    def episode(self, worker: str, slot: int) -> dict[str, Any] | None:
        """Return the running episode of a slot, or ``None`` if it plays nothing."""

    def screenshot(self, worker: str, slot: int) -> bytes | None:
        """Return the newest picture (JPEG) of a slot's page, or ``None``."""


class Figures(Protocol):
    """Figures of a run, made anew at each call."""

    def measure(self, states: Sequence[WorkerState]) -> dict[str, Any]:
        """Return the figures as JSON values, by the states of the run's workers."""


@dataclass(slots=True)
class LiveMonitor:
    """Polls a source, and sends changes to all viewers."""

    source: LiveSource
    figures: Figures
    history: History = field(default_factory=History)
    viewers: int = 0
    """Number of viewers now."""
    _ended: bool = False
    _workers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Number of the last change of each worker, and its state."""
    _run: tuple[int, bytes] = (0, b"{}")
    _figures_now: dict[str, Any] = field(default_factory=dict)
    """Figures that were measured last."""
    _number: int = 0
    """Number of the last change."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _messages: dict[int, bytes] = field(default_factory=dict)
    """Messages about all changes after a number, made since the last change."""

    def routes(self) -> list[Route]:
        """Return the routes, for a Starlette application."""
        return [
            Route("/", _page),
            Route("/events", self._events),
            Route("/curve", self._curve),
            Route("/episode", self._episode),
            Route("/screenshot", self._screenshot),
            Route("/metrics", self._prometheus),
        ]

    @asynccontextmanager
    async def polling(self, _: Starlette) -> AsyncIterator[None]:
        """Poll inside: the application's lifespan."""
        task = asyncio.create_task(self._poll(), name="monitor")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def end(self) -> None:
        """End the streams of all viewers, for which a server would wait when it stops."""
        self._ended = True
        self._changed.set()

    async def _poll(self) -> None:
        due = 0.0
        while True:
            now = time.monotonic()
            try:
                changes = await asyncio.to_thread(self.source.changes)
                run = await asyncio.to_thread(self._measure) if now >= due else None
            except Exception as error:  # whatever a run's folder holds, the next look may find it in order
                logger.warning("the monitor could not look at the run: %s", error, exc_info=True)
                self._figures_now = {"state": "unknown", "problem": f"The run cannot be read: {error}"}
                changes, run = [], orjson.dumps(self._figures_now)
            if run is not None:
                due = now + FIGURES_SECONDS
            self._take(changes, run)
            await asyncio.sleep(POLL_SECONDS)

    def _measure(self) -> bytes:
        figures = self.figures.measure(self.source.states())
        if self.source.problem is not None:
            figures["problem"] = self.source.problem
        self.history.add(figures, time.time())
        self._figures_now = figures
        return orjson.dumps(figures, option=orjson.OPT_NON_STR_KEYS)

    def _take(self, changes: list[tuple[str, bytes]], run: bytes | None) -> None:
        """Number the changes, and wake the viewers if there are any."""
        run = None if run == self._run[1] else run
        if not changes and run is None:
            return
        self._number += 1
        for worker, state in changes:
            self._workers[worker] = (self._number, state)
        if run is not None:
            self._run = (self._number, run)
        self._messages.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def message(self, after: int) -> bytes:
        """Return the events about all changes after a number; shared by the viewers that have the
        same ones."""
        if (known := self._messages.get(after)) is not None:
            return known
        events = []
        changed = [state for number, state in self._workers.values() if number > after]
        if changed:
            events.append(b"event: workers\ndata: [" + b",".join(changed) + b"]\n\n")
        if self._run[0] > after:
            events.append(b"event: run\ndata: " + self._run[1] + b"\n\n")
        self._messages[after] = message = b"".join(events)
        return message

    async def _events(self, request: Request) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers=headers)

    async def _stream(self) -> AsyncIterator[bytes]:
        """Yield the messages for one viewer; asked for the next one when it can take more."""
        self.viewers += 1
        try:
            seen = 0
            yield b"retry: 2000\n\n"
            while not self._ended:
                changed = self._changed
                if self._number > seen:
                    message, seen = self.message(seen), self._number
                    yield message
                    continue
                try:
                    await asyncio.wait_for(changed.wait(), PING_SECONDS)
                except TimeoutError:
                    yield b": ping\n\n"
        finally:
            self.viewers -= 1

    async def _curve(self, request: Request) -> Response:
        return JSONResponse(self.history.curve(request.query_params.get("name", "")))

    async def _prometheus(self, request: Request) -> Response:
        content = render_metrics(self._figures_now, self.source.states(), self.viewers)
        return Response(content, media_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})

    async def _episode(self, request: Request) -> Response:
        shown = await asyncio.to_thread(self.source.episode, *_place(request))
        return JSONResponse(shown) if shown is not None else _missing("This place plays no episode now.")

    async def _screenshot(self, request: Request) -> Response:
        picture = await asyncio.to_thread(self.source.screenshot, *_place(request))
        if picture is None:
            return _missing("There is no screenshot of it.")
        return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "no-store"})


def _place(request: Request) -> tuple[str, int]:
    """Return the worker and the number of the slot that a request names; -1 for no number."""
    slot = request.query_params.get("slot", "")
    number = int(slot) if slot.isascii() and slot.isdigit() and len(slot) < 6 else -1
    return request.query_params.get("worker", ""), number


def _missing(sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status_code=404)


async def _page(request: Request) -> Response:
    return HTMLResponse((PAGE / "index.html").read_bytes(), headers={"Cache-Control": "no-cache"})
