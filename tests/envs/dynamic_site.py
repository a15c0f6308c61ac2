"""A site on loopback that does everything a page can do to whoever waits for it: delays, streams,
sockets, loops, floods.

The pages are in ``fixtures/``. A page begins to act when its button ``#go`` is pressed (its middle
is at `GO`) and its `#state` says ``done`` when it is complete; `FIXTURES` says for each what is
expected. For faults there are also ``alerts.html`` (a thousand), ``popups.html`` (a hundred),
``canaries.html``, ``slow-script.html``, ``/huge?mb=200`` and ``/status/<code>``. The server runs in
a thread of its own and serves the same at two origins, ``127.0.0.1:<port>`` and ``localhost:<other
port>``.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

FOLDER = Path(__file__).parent / "fixtures"
GO = (110.0, 30.0)
"""Middle of the button ``#go``, in CSS pixels."""
STATE = "document.getElementById('state')?.textContent"
"""JavaScript that says how far a fixture page is: ``done`` when it is complete."""

START_SECONDS = 10.0
"""Real seconds until the server must answer."""


@dataclass(frozen=True)
class Fixture:
    """A page, and what is to come of a press of its button."""

    name: str
    complete: bool = True
    """It comes to ``done`` within the budgets; otherwise only its end within the budget is asked
    for."""

    @property
    def path(self) -> str:
        """Path of the page."""
        return f"/{self.name}.html"


FIXTURES = (
    *(Fixture(name) for name in ("rest", "link", "form", "redirects", "timers", "interval", "frames", "idle")),
    *(Fixture(name) for name in ("transition", "keyframes", "animate", "fetches", "assets", "observers")),
    *(Fixture(name) for name in ("popup", "iframe", "cross-iframe", "worker", "shared-worker", "websocket")),
    *(Fixture(name) for name in ("long-poll", "stalled", "trickle", "long-poll-fetches", "events")),
    *(Fixture(name) for name in ("busy", "feed", "messages", "endless-frames")),
    *(Fixture(name, complete=False) for name in ("loop", "redirect-loop", "hops")),
)
"""Every page that a settled step is proven on."""

CANARIES = (
    *("cookie", "localStorage", "sessionStorage", "indexedDB", "cacheStorage"),
    *("serviceWorker", "httpCache", "history", "windowName"),
)
"""Stores in which ``canaries.html`` leaves a trace at a press of its button; at its load it says in
``#found`` which it found."""

DONE_PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>done</title>
<link rel="icon" href="data:,"></head><body><p id="state">loading</p>
<script>setTimeout(() => { document.getElementById("state").textContent = "done"; }, 50);</script></body></html>"""
HOP_PAGE = """<!DOCTYPE html><html lang="en"><head><title>hop %d</title><link rel="icon" href="data:,"></head>
<body><p id="state">hop %d</p><script>setTimeout(() => location.replace("/hop/%d"), 10);</script></body></html>"""
SLOW = {
    "pixel.svg": ("image/svg+xml", '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'),
    "style.css": ("text/css", "#state { color: green; }"),
    "script.js": (
        "text/javascript",
        'setTimeout(() => { document.getElementById("state").textContent = "done"; }, 30);',
    ),
    "pause.js": ("text/javascript", ""),
}


async def _delay(request: Request) -> None:
    await asyncio.sleep(float(request.query_params.get("ms", 0)) / 1000)


async def _json(request: Request) -> Response:
    await _delay(request)
    return JSONResponse({"now": "then"})


async def _cached(_request: Request) -> Response:
    return JSONResponse({"canary": 1}, headers={"Cache-Control": "max-age=3600"})


async def _page(request: Request) -> Response:
    await _delay(request)
    return HTMLResponse(DONE_PAGE)


async def _slow(request: Request) -> Response:
    await _delay(request)
    media_type, text = SLOW[request.path_params["name"]]
    return Response(text, media_type=media_type)


async def _form(request: Request) -> Response:
    await request.body()
    await asyncio.sleep(0.05)
    return RedirectResponse("/page?ms=30", status_code=303)


async def _redirect(request: Request) -> Response:
    left = request.path_params["left"]
    await asyncio.sleep(0.02)
    return RedirectResponse(f"/redirect/{left - 1}" if left else "/page")


async def _moved(request: Request) -> Response:
    """To an address of this site."""
    return RedirectResponse(request.query_params["to"])


async def _redirect_loop(request: Request) -> Response:
    return RedirectResponse(f"/redirect-loop/{request.path_params['n'] + 1}")


async def _hop(request: Request) -> Response:
    n = request.path_params["n"]
    return HTMLResponse(HOP_PAGE % (n, n, n + 1))


async def _status(request: Request) -> Response:
    code = request.path_params["code"]
    return HTMLResponse(f"<!DOCTYPE html><title>{code}</title><p id=state>{code}</p>", status_code=code)


async def _file(request: Request) -> Response:
    name = request.query_params.get("as")
    kept = {"Content-Disposition": f"attachment; filename={name}"} if name else None
    return Response("%PDF-1.4 file", media_type=request.query_params["type"], headers=kept)


async def _nothing(request: Request) -> Response:
    return Response(status_code=204)


async def _never(request: Request) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


async def _stalled(request: Request) -> Response:
    async def body() -> AsyncIterator[bytes]:
        yield b"begun"
        await asyncio.Event().wait()

    return StreamingResponse(body(), media_type="text/plain")


async def _trickle(request: Request) -> Response:
    async def body() -> AsyncIterator[bytes]:
        while True:
            yield b"."
            await asyncio.sleep(0.02)

    return StreamingResponse(body(), media_type="text/plain")


async def _events(request: Request) -> Response:
    async def body() -> AsyncIterator[bytes]:
        while True:
            await _delay(request)
            yield b"data: tick\n\n"

    return StreamingResponse(body(), media_type="text/event-stream")


async def _huge(request: Request) -> Response:
    megabytes = int(request.query_params.get("mb", 200))

    async def body() -> AsyncIterator[bytes]:
        yield b"<!DOCTYPE html><title>huge</title><p id=state>huge</p>"
        line = b"<p>" + b"x" * 1017 + b"</p>"
        for _ in range(megabytes):
            yield line * 1024

    return StreamingResponse(body(), media_type="text/html")


async def _echo(websocket: WebSocket) -> None:
    await websocket.accept()
    try:
        while True:
            text = await websocket.receive_text()
            await asyncio.sleep(float(websocket.query_params.get("ms", 0)) / 1000)
            await websocket.send_text(text)
    except WebSocketDisconnect:
        pass


async def _feed(websocket: WebSocket) -> None:
    await websocket.accept()
    try:
        while True:
            await websocket.send_text("tick")
            await asyncio.sleep(0.005)
    except WebSocketDisconnect:
        pass


class DynamicSite:
    """``with DynamicSite() as site``: `origin` and `other_origin` are served until the end of the
    block."""

    def __init__(self) -> None:
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [listener.getsockname()[1] for listener in self._listeners]
        self.origin = f"http://127.0.0.1:{ports[0]}"
        self.other_origin = f"http://localhost:{ports[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(self._app(), log_level="critical", access_log=False, lifespan="off", ws="websockets-sansio")
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": self._listeners}, name="dynamic-site", daemon=True
        )

    def __enter__(self) -> DynamicSite:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            assert self._thread.is_alive() and time.monotonic() < deadline, "the dynamic site did not start"
            self._thread.join(0.01)
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def _app(self) -> Starlette:
        async def config(_request: Request) -> Response:
            return Response(f'const OTHER_ORIGIN = "{self.other_origin}";', media_type="text/javascript")

        return Starlette(
            routes=[
                Route("/config.js", config),
                Route("/json", _json),
                Route("/cached", _cached),
                Route("/page", _page),
                Route("/slow/{name}", _slow),
                Route("/form", _form, methods=["POST"]),
                Route("/redirect/{left:int}", _redirect),
                Route("/redirect-loop/{n:int}", _redirect_loop),
                Route("/moved", _moved),
                Route("/hop/{n:int}", _hop),
                Route("/status/{code:int}", _status),
                Route("/file", _file),
                Route("/nothing", _nothing, methods=["GET", "POST"]),
                Route("/never", _never),
                Route("/stalled", _stalled),
                Route("/trickle", _trickle),
                Route("/events", _events),
                Route("/huge", _huge),
                WebSocketRoute("/ws", _echo),
                WebSocketRoute("/feed", _feed),
                Mount("/", StaticFiles(directory=FOLDER)),
            ]
        )
