"""Serves the DevTools addresses of lent pages: WebSockets, and the HTTP that clients ask first.

Every address holds a secret of its own, also the HTTP ones, so who knows one session's address
learns of no other. Requests with an ``Origin``, which every web page sends, are refused.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Self

import orjson
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from envs.background import start_background
from envs.browser.devtools.client import DevToolsClient
from envs.browser.devtools.lent import LentPage
from envs.browser.tab import Tab
from envs.cdp.wire import MAX_MESSAGE
from envs.types import BrowserError

logger = logging.getLogger(__name__)

SOCKET_PATH = "/devtools/browser/"
MAX_CLIENTS = 8
"""Clients of one address at a time: an agent, and who watches it."""
MAX_UNSENT = 64 * 2**20
"""Bytes that may wait for a client that does not read; it is then closed."""
CLOSE_SECONDS = 2.0
"""Real seconds for a WebSocket's goodbye."""
GOING_AWAY, POLICY, BROWSER_GONE, TRY_LATER = 1001, 1008, 1011, 1013
"""Close codes of WebSockets."""
MAX_REASON = 120
"""Bytes of a close reason; a WebSocket takes 123."""


class DevToolsAddress:
    """Addresses of one lent page. Made by `DevToolsServer.offer`."""

    def __init__(self, lent: LentPage, host: str) -> None:
        """``host`` is host and port of the server as clients see it."""
        self.lent = lent
        self.secret = secrets.token_urlsafe(24)
        self.cdp_url = f"ws://{host}{SOCKET_PATH}{self.secret}"
        """WebSocket address of the browser."""
        self.http_url = f"http://{host}/{self.secret}"
        """Address whose ``/json/version`` and ``/json/list`` clients may ask instead."""
        self.used_at = time.monotonic()
        """Time of ``time.monotonic`` at which a client last said something."""
        self.clients: dict[ServerConnection, DevToolsClient] = {}

    def tab_opened(self, _tab: Tab) -> None:
        """Tell the clients of a new tab."""
        for client in self.clients.values():
            client.tab_opened()


class DevToolsServer:
    """Serves the addresses of lent pages; used in ``async with``."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, public_host: str | None = None) -> None:
        """
        Args:
            host: Address to listen at. Whoever reaches it and knows a secret uses a browser.
            port: Port; 0 for a free one.
            public_host: Name of this machine in addresses; ``host`` if not given.
        """
        self._host, self._port = host, port
        self._public_host = public_host or host
        self._addresses: dict[str, DevToolsAddress] = {}
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._serve,
            self._host,
            self._port,
            process_request=self._answer_http,
            origins=[None],
            compression=None,
            max_size=MAX_MESSAGE,
            close_timeout=CLOSE_SECONDS,
            server_header=None,
            logger=logger,
        ).__aenter__()
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        assert self._server is not None, "used in `async with`"
        return int(next(iter(self._server.sockets)).getsockname()[1])

    @asynccontextmanager
    async def offer(self, lent: LentPage) -> AsyncIterator[DevToolsAddress]:
        """Give a lent page an address until the block ends, which closes its clients."""
        address = DevToolsAddress(lent, f"{self._public_host}:{self.port}")
        self._addresses[address.secret] = address
        lent.context.on_tab = address.tab_opened
        try:
            yield address
        finally:
            del self._addresses[address.secret]
            lent.context.on_tab = lambda _tab: None
            await _close_all(address, GOING_AWAY, "the session's lease is over")

    # -------------------------------------------------------------------------------------- HTTP

    def _find(self, secret: str) -> DevToolsAddress | None:
        """Return the address with a secret; the comparison takes as long for every guess."""
        given = secret.encode()
        same = [one for one in self._addresses.values() if secrets.compare_digest(one.secret.encode(), given)]
        return same[0] if same else None

    async def _answer_http(self, socket: ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if path.startswith(SOCKET_PATH):
            if self._find(path.removeprefix(SOCKET_PATH)) is None:
                return _json(socket, HTTPStatus.NOT_FOUND, {"error": "no such session, or its lease is over"})
            return None  # go on with the WebSocket
        secret, _, asked = path.strip("/").partition("/")
        address = self._find(secret)
        if address is None:
            return _json(socket, HTTPStatus.NOT_FOUND, {"error": "no such session, or its lease is over"})
        if request.headers.get("Origin") is not None:
            return _json(socket, HTTPStatus.FORBIDDEN, {"error": "web pages may not ask"})
        try:
            if asked == "json/version":
                return _json(socket, HTTPStatus.OK, await _version(address))
            if asked in ("json", "json/list"):
                return _json(socket, HTTPStatus.OK, await _targets(address))
        except BrowserError as error:
            return _json(socket, HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)})
        return _json(socket, HTTPStatus.NOT_FOUND, {"error": f"no {path}; ask /json/version or /json/list"})

    # ------------------------------------------------------------------------------------ sockets

    async def _serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        address = self._find(socket.request.path.partition("?")[0].removeprefix(SOCKET_PATH))
        if address is None:
            await socket.close(GOING_AWAY, "the session's lease is over")
            return
        if len(address.clients) >= MAX_CLIENTS:
            await socket.close(TRY_LATER, f"a session has at most {MAX_CLIENTS} clients")
            return
        outbox = _Outbox(socket)
        client = DevToolsClient(address.lent, outbox.put)
        address.clients[socket] = client
        try:
            await self._speak(socket, address, client, outbox)
        except BrowserError as error:
            await socket.close(BROWSER_GONE, str(error)[:MAX_REASON])
        finally:
            address.clients.pop(socket, None)
            await client.close()

    async def _speak(
        self, socket: ServerConnection, address: DevToolsAddress, client: DevToolsClient, outbox: _Outbox
    ) -> None:
        """Hand messages on until either side is gone."""
        await client.open()
        tasks: set[asyncio.Task[None]] = set()
        async with AsyncExitStack() as ends:
            ends.callback(lambda: [task.cancel() for task in tasks])
            start_background(outbox.run(), tasks, "sending to a client")
            start_background(_close_with_browser(socket, client), tasks, "watching a client's browser")
            client.on_close = lambda: outbox.put(None)
            with suppress(ConnectionClosed):  # however the client went away, the session is its own until then
                async for message in socket:
                    address.used_at = time.monotonic()
                    client.receive(message)


class _Outbox:
    """Messages to one client, in order."""

    def __init__(self, socket: ServerConnection) -> None:
        self._socket = socket
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unsent = 0

    def put(self, message: bytes | None) -> None:
        """Send a message; ``None`` closes the connection after those before it."""
        self._unsent += len(message or b"")
        self._queue.put_nowait(message)

    async def run(self) -> None:
        """Send until the connection is closed."""
        with suppress(ConnectionClosed):
            while (message := await self._queue.get()) is not None:
                if self._unsent > MAX_UNSENT:
                    await self._socket.close(POLICY, f"the client left {MAX_UNSENT >> 20} MB unread")
                    return
                self._unsent -= len(message)
                await self._socket.send(message, text=True)
            await self._socket.close()


async def _close_with_browser(socket: ServerConnection, client: DevToolsClient) -> None:
    why = await asyncio.shield(client.lost)
    await socket.close(BROWSER_GONE, f"the browser went away: {why}"[:MAX_REASON])


async def _close_all(address: DevToolsAddress, code: int, reason: str) -> None:
    """Close an address's clients, and wait until their sessions are gone."""
    await asyncio.gather(*(socket.close(code, reason) for socket in list(address.clients)))
    while address.clients:
        await asyncio.sleep(0.01)


async def _version(address: DevToolsAddress) -> dict[str, str]:
    version = await address.lent.connection.browser.send("Browser.getVersion")
    return {
        "Browser": version["product"],
        "Protocol-Version": version["protocolVersion"],
        "User-Agent": version["userAgent"],
        "V8-Version": version["jsVersion"],
        "webSocketDebuggerUrl": address.cdp_url,
    }


async def _targets(address: DevToolsAddress) -> list[dict[str, Any]]:
    """The pages of the session. They have no socket of their own: attach at the browser's."""
    infos = (await address.lent.connection.browser.send("Target.getTargets"))["targetInfos"]
    context = address.lent.context.context_id
    return [
        {"id": info["targetId"], "type": info["type"], "title": info["title"], "url": info["url"], "description": ""}
        for info in infos
        if info.get("browserContextId") == context
    ]


def _json(socket: ServerConnection, status: HTTPStatus, body: object) -> Response:
    response = socket.respond(status, orjson.dumps(body).decode())
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "application/json; charset=UTF-8"
    return response
