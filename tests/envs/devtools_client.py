"""A bare DevTools client over a WebSocket, for what Playwright does not let one send."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect


class Refusal(Exception):
    """The other side answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class BareClient:
    """Calls and events of one connection. Made by `bare_client`."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []
        """All events so far."""
        self.errors: list[dict[str, Any]] = []
        """Errors without the id of a call."""
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> Any:
        """Call a method; raises `Refusal`."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params or {}}
        await self.socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        async with asyncio.timeout(20):
            reply = await answer
        if "error" in reply:
            raise Refusal(reply["error"]["code"], reply["error"]["message"])
        return reply["result"]

    async def refusal(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> str:
        """Call a method that has to be refused; returns the message."""
        try:
            result = await self.call(method, params, session)
        except Refusal as refusal:
            return str(refusal)
        raise AssertionError(f"{method} was carried out: {result}")

    async def attach(self) -> tuple[str, str]:
        """Attach to the first page; returns its target and session."""
        target = (await self.call("Target.getTargets"))["targetInfos"][0]["targetId"]
        attached = await self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        return target, attached["sessionId"]

    async def evaluate(self, session: str, expression: str) -> Any:
        """Value of a JavaScript expression."""
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        return (await self.call("Runtime.evaluate", params, session))["result"].get("value")

    async def read(self) -> None:
        """Read until the connection is closed."""
        async for raw in self.socket:
            message = json.loads(raw)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif "error" in message:
                self.errors.append(message["error"])
            else:
                self.events.append(message)


@asynccontextmanager
async def bare_client(url: str) -> AsyncIterator[BareClient]:
    """A client that is connected to ``ws://…``."""
    async with connect(url, max_size=None) as socket:
        client = BareClient(socket)
        reading = asyncio.create_task(client.read())
        try:
            yield client
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
