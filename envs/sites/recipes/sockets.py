"""Relays a WebSocket between a browser and the server of its episode, until either side closes.

Both handshakes are made for themselves: extensions of one connection are not those of the other.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.frames import CloseCode
from websockets.typing import Subprotocol

from envs.sites.recipes.front import target_of

MAX_MESSAGE = 16 << 20
"""Largest message, in bytes; uvicorn's own limit."""
OPEN_SECONDS = 30.0
"""Real seconds for the handshake with an instance."""
_OF_HANDSHAKE = "sec-websocket-"


async def relay_socket(place: object, scope: Scope, receive: Receive, send: Send) -> None:
    """Accept a browser's WebSocket if the instance does, and relay messages both ways.

    Args:
        place: Unix socket of the instance. The WebSocket is refused without one.
        scope: Scope with the headers that the instance gets.
    """
    await receive()  # the browser's request
    try:
        if not isinstance(place, Path):
            raise ConnectionRefusedError("no episode, or one whose site speaks no WebSocket")
        upstream = await _connect(place, scope)
    except (OSError, WebSocketException):
        await send({"type": "websocket.close", "code": CloseCode.POLICY_VIOLATION})  # becomes status 403
        return
    answer = upstream.response
    cookies = answer.headers.get_all("set-cookie") if answer is not None else []
    accepted = [(b"set-cookie", value.encode("latin-1")) for value in cookies]
    await send({"type": "websocket.accept", "subprotocol": upstream.subprotocol, "headers": accepted})
    ways = (asyncio.ensure_future(_pass_up(receive, upstream)), asyncio.ensure_future(_pass_down(upstream, send)))
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await upstream.close()


async def _connect(place: Path, scope: Scope) -> ClientConnection:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    host = next((value for name, value in headers if name == "host"), "instance")
    kept = [(name, value) for name, value in headers if name != "host" and not name.startswith(_OF_HANDSHAKE)]
    return await unix_connect(
        str(place),
        f"ws://{host}{target_of(scope).decode('latin-1')}",
        additional_headers=kept,
        subprotocols=[Subprotocol(name) for name in scope["subprotocols"]] or None,
        user_agent_header=None,
        compression=None,
        max_size=MAX_MESSAGE,
        open_timeout=OPEN_SECONDS,
        proxy=None,
    )


async def _pass_up(receive: Receive, upstream: ClientConnection) -> None:
    """Pass messages of the browser on, until it closes."""
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text")
        await upstream.send(message["bytes"] if text is None else text)
    await upstream.close(_sendable(message.get("code")), message.get("reason") or "")


async def _pass_down(upstream: ClientConnection, send: Send) -> None:
    """Pass messages of the instance on, until it closes or ends."""
    try:
        while True:
            message = await upstream.recv()
            kind = "text" if isinstance(message, str) else "bytes"
            await send({"type": "websocket.send", kind: message})
    except ConnectionClosed:
        code, reason = _sendable(upstream.close_code), upstream.close_reason or ""
        await send({"type": "websocket.close", "code": code, "reason": reason})


def _sendable(code: int | None) -> int:
    """Return the code to close the other side with: 1005 and 1006 are never sent."""
    if code is None or code == CloseCode.NO_STATUS_RCVD:
        return CloseCode.NORMAL_CLOSURE
    return CloseCode.INTERNAL_ERROR if code == CloseCode.ABNORMAL_CLOSURE else code
