"""Servers on loopback for the tests: a site with everything that pages ask for, and canaries that
nobody may reach."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

BLOCK = b"0123456789abcdef" * 4096
"""64 KiB."""


class Site:
    """A site under test. ``origin`` once it is up; ``pages`` are HTML bodies by path."""

    def __init__(self) -> None:
        self.origin = ""
        self.pages: dict[str, str] = {"/": "<title>home</title><h1>home</h1>"}
        self.seen: list[tuple[str, dict[str, str]]] = []
        """Path and headers of every request."""
        self.more = asyncio.Event()
        """Lets the event stream go on after its first event."""
        self.gone = asyncio.Event()
        """Set when the reader of the event stream went away."""
        self.app = Starlette(
            routes=[
                WebSocketRoute("/echo", self._echo),
                Route("/sum", self._sum, methods=["POST"]),
                Route("/big", self._big),
                Route("/chunks", self._chunks),
                Route("/events", self._events),
                Route("/to", lambda request: RedirectResponse(request.query_params["url"], 302)),
                Route("/headers", lambda request: JSONResponse(dict(request.headers))),
                Route("/status/{code:int}", lambda r: PlainTextResponse("no", r.path_params["code"])),
                Route("/file", self._file),
                Route("/sw.js", lambda _: Response("self.x = 1", media_type="text/javascript")),
                Route("/{path:path}", self._page),
            ]
        )

    async def _page(self, request: Request) -> Response:
        self.seen.append((request.url.path, dict(request.headers)))
        body = self.pages.get(request.url.path)
        return Response(body or "", 200 if body is not None else 404, media_type="text/html")

    async def _echo(self, socket: WebSocket) -> None:
        await socket.accept()
        async for message in socket.iter_text():
            await socket.send_text(f"echo {message}")

    async def _sum(self, request: Request) -> Response:
        digest, length = hashlib.sha256(), 0
        async for piece in request.stream():
            digest.update(piece)
            length += len(piece)
        return JSONResponse({"bytes": length, "sha256": digest.hexdigest()})

    async def _big(self, request: Request) -> Response:
        blocks = int(request.query_params["blocks"])

        async def body() -> AsyncIterator[bytes]:
            for _ in range(blocks):
                yield BLOCK

        return StreamingResponse(body(), headers={"Content-Length": str(blocks * len(BLOCK))})

    async def _chunks(self, request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            for number in range(50):
                yield f"{number},".encode() * 100
                await asyncio.sleep(0)

        return StreamingResponse(body(), media_type="text/plain")

    async def _events(self, request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            try:
                yield b"data: first\n\n"
                await self.more.wait()
                yield b"data: second\n\n"
                await asyncio.Event().wait()
            finally:
                self.gone.set()

        return StreamingResponse(body(), media_type="text/event-stream")

    async def _file(self, request: Request) -> Response:
        return Response(b"bytes", headers={"Content-Disposition": 'attachment; filename="report.bin"'})


@asynccontextmanager
async def serve(site: Site) -> AsyncIterator[Site]:
    """The site on a free port of loopback, in the test's own loop."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        site.app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    site.origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield site
    finally:
        server.should_exit = server.force_exit = True
        await running
        listener.close()


class Canary:
    """Counts who reaches it, over TCP and UDP on one port of every local address; answers an HTTP
    page that any origin may read."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        self.port = 0

    @property
    def origin(self) -> str:
        """Of its IPv4 loopback."""
        return f"http://127.0.0.1:{self.port}"


class _TcpCanary(asyncio.Protocol):
    def __init__(self, canary: Canary) -> None:
        self._canary = canary

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._canary.hits.append(f"tcp {transport.get_extra_info('sockname')[0]}")

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.Transport)
        self._canary.hits.append("request")
        self._transport.write(b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 6\r\n\r\ncanary")


class _UdpCanary(asyncio.DatagramProtocol):
    def __init__(self, canary: Canary) -> None:
        self._canary = canary

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        self._canary.hits.append("udp")


@asynccontextmanager
async def canary() -> AsyncIterator[Canary]:
    """A canary on all addresses of this machine, IPv4 and IPv6."""
    bird = Canary()
    loop = asyncio.get_running_loop()
    tcp = await loop.create_server(lambda: _TcpCanary(bird), "0.0.0.0", 0)
    bird.port = tcp.sockets[0].getsockname()[1]
    families = {address.family for found in psutil.net_if_addrs().values() for address in found}
    if socket.AF_INET6 in families:
        tcp6 = await loop.create_server(lambda: _TcpCanary(bird), "::", bird.port)
    else:
        tcp6 = None
    udp, _ = await loop.create_datagram_endpoint(lambda: _UdpCanary(bird), ("0.0.0.0", bird.port))
    try:
        yield bird
    finally:
        tcp.close()
        if tcp6 is not None:
            tcp6.close()
        udp.close()
