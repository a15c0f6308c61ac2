"""A Chromium of its own and its DevTools sessions over one WebSocket: the least that tests of parts
need to drive pages.

The product's client reconnects, times out and counts; this one sends, receives and fails as that
one does when the socket is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from envs.browser.process.chromium import LAUNCH_ARGS, find_chromium
from envs.cdp import CdpError, ConnectionLost

START_SECONDS = 30.0
"""Real seconds until a Chromium must say its address, on a loaded machine."""

ARGS = (
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--mute-audio",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,Translate",
    "--remote-debugging-port=0",
)


class Session:
    """One session of the protocol (see `envs.cdp.Cdp`)."""

    def __init__(self, browser: Devtools, session_id: str | None, target_id: str = "") -> None:
        self.session_id = session_id
        self.target_id = target_id
        self._browser = browser
        self._handlers: dict[str, list[Callable[[dict[str, Any]], Any]]] = defaultdict(list)

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a method; a refusal is a `CdpError`."""
        return await self._browser.call(method, params or {}, self.session_id)

    def on(self, event: Any, f: Callable[..., Any]) -> None:
        """Call ``f`` on each event."""
        self._handlers[event].append(f)

    def heard(self, event: str, params: dict[str, Any]) -> None:
        """An event came from the browser."""
        for handler in list(self._handlers[event]):
            handler(params)

    async def evaluate(self, expression: str) -> Any:
        """Value of an expression; promises are not awaited."""
        answer = await self.send("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")


class Devtools(Session):
    """The browser's own session, and where the other sessions come from."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__(self, None)
        self.sessions: dict[str, Session] = {}
        self._socket = socket
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, params: dict[str, Any], session_id: str | None) -> dict[str, Any]:
        """Send one message and wait for its answer."""
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session_id is not None:
            message["sessionId"] = session_id
        try:
            await self._socket.send(json.dumps(message))
            got = await answer
        finally:
            self._calls.pop(number, None)
        if "error" in got:
            raise CdpError(method, got["error"]["message"], got["error"]["code"])
        return dict(got["result"])

    async def page(self, context_id: str | None = None, *, width: int = 800, height: int = 600) -> Session:
        """A tab in a browser context of its own, or in the named one."""
        if context_id is None:
            made = await self.send("Target.createBrowserContext", {"disposeOnDetach": False})
            context_id = str(made["browserContextId"])
        params = {"url": "about:blank", "browserContextId": context_id, "width": width, "height": height}
        target = await self.send("Target.createTarget", params)
        session = await self.attach(str(target["targetId"]))
        await session.send("Page.enable")
        return session

    async def attach(self, target_id: str) -> Session:
        """A flattened session of a target."""
        answer = await self.send("Target.attachToTarget", {"targetId": target_id, "flatten": True})
        return self.session(str(answer["sessionId"]), target_id)

    def session(self, session_id: str, target_id: str = "") -> Session:
        """The session of an id; made when it is first named."""
        return self.sessions.setdefault(session_id, Session(self, session_id, target_id))

    async def close(self) -> None:
        """Close the socket; what still waits is told."""
        await self._socket.close()
        await self._reader

    async def _read(self) -> None:
        async for message in _until_closed(self._socket):
            got = json.loads(message)
            if "id" in got:
                answer = self._calls.get(got["id"])
                if answer is not None and not answer.done():
                    answer.set_result(got)
            elif "sessionId" in got:
                self.session(got["sessionId"]).heard(got["method"], got["params"])
            else:
                self.heard(got["method"], got["params"])
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(ConnectionLost("the browser is gone"))


@contextlib.asynccontextmanager
async def chromium(*extra: str) -> AsyncIterator[Devtools]:
    """A running Chromium; it and its profile are gone afterwards."""
    profile = Path(tempfile.mkdtemp(prefix="rollwright-test-"))
    args = [*LAUNCH_ARGS, *ARGS, f"--user-data-dir={profile}", *extra]
    process = await asyncio.create_subprocess_exec(str(find_chromium()), *args, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(START_SECONDS):
            address = await _address(process)
        drain = asyncio.create_task(_drain(process))
        socket = await connect(address, max_size=None, compression=None, ping_interval=None)
        devtools = Devtools(socket)
        yield devtools
        await devtools.close()
        process.kill()
        await drain
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        shutil.rmtree(profile, ignore_errors=True)


async def _until_closed(socket: ClientConnection) -> AsyncIterator[str | bytes]:
    try:
        async for message in socket:
            yield message
    except ConnectionClosed:
        return  # a browser that is killed says no goodbye


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async for line in process.stderr:
        if b"listening on ws://" in line:
            return line.decode().split("listening on ", 1)[1].strip()
    raise RuntimeError(f"Chromium ended with {process.returncode} before it listened")


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    async for _line in process.stderr:
        pass
