"""A Chromium of a test's own, spoken to over one WebSocket: no driver between, so that a test
decides every flag."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from envs.browser.process.chromium import ChromiumProcess, find_chromium
from envs.cdp import CdpError

BASE_ARGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0")
START_SECONDS = 20.0


async def debugging_address(process: ChromiumProcess) -> str:
    """``ws://127.0.0.1:<port>/devtools/browser/<id>`` of a browser that was started with
    ``--remote-debugging-port=0``."""
    port_file = process._profile / "DevToolsActivePort"
    async with asyncio.timeout(START_SECONDS):
        while not port_file.exists() or len(lines := port_file.read_text().split()) != 2:
            await asyncio.sleep(0.01)
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"


class RawSession:
    """One session of a `RawChromium`; satisfies ``envs.cdp.Cdp``."""

    def __init__(self, browser: RawChromium, session_id: str | None) -> None:
        self._browser = browser
        self.session_id = session_id
        self.handlers: dict[str, list[Callable[[dict[str, Any]], Any]]] = {}

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self._browser.call(self.session_id, method, params or {})

    def on(self, event: str, f: Callable[[dict[str, Any]], Any]) -> None:
        self.handlers.setdefault(event, []).append(f)

    async def evaluate(self, expression: str) -> Any:
        """Value of an expression; a promise is awaited."""
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        answer = await self.send("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            raise CdpError("Runtime.evaluate", str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def until(self, event: str, work: Any, accept: Callable[[dict[str, Any]], bool] = lambda _: True) -> Any:
        """Do ``work`` and wait for an event that comes of it."""
        came: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def handler(params: dict[str, Any]) -> None:
            if not came.done() and accept(params):
                came.set_result(params)

        self.on(event, handler)
        await work
        async with asyncio.timeout(START_SECONDS):
            return await came

    async def goto(self, url: str) -> dict[str, Any]:
        """Navigate and wait for the load event; ``Page.navigate``'s answer. An error is in
        ``errorText``."""
        loaded = asyncio.get_running_loop().create_future()
        self.on("Page.loadEventFired", lambda _: loaded.done() or loaded.set_result(None))
        answer = await self.send("Page.navigate", {"url": url})
        if not answer.get("errorText"):
            async with asyncio.timeout(START_SECONDS):
                await loaded
        return answer


class RawChromium:
    """The process and its connection. ``browser`` is the browser-level session."""

    def __init__(self, socket: ClientConnection, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid
        self._socket = socket
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.sessions: dict[str | None, RawSession] = {}
        self.browser = self._session(None)
        self._reader = asyncio.ensure_future(self._read())

    def _session(self, session_id: str | None) -> RawSession:
        return self.sessions.setdefault(session_id, RawSession(self, session_id))

    async def call(self, session_id: str | None, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session_id is not None:
            message["sessionId"] = session_id
        self._pending[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps(message))
        async with asyncio.timeout(START_SECONDS):
            return await self._pending[number]

    async def _read(self) -> None:
        async for raw in self._socket:
            message = json.loads(raw)
            if "id" in message:
                future = self._pending.pop(message["id"])
                if future.done():
                    continue
                if "error" in message:
                    future.set_exception(CdpError("call", message["error"].get("message")))
                else:
                    future.set_result(message["result"])
                continue
            session = self.sessions.get(message.get("sessionId"))
            for handler in list(session.handlers.get(message["method"], ())) if session else ():
                handler(message["params"])

    async def new_context(self, **options: Any) -> str:
        """Id of a new browser context."""
        answer = await self.browser.send("Target.createBrowserContext", options)
        return str(answer["browserContextId"])

    async def new_page(self, context: str | None = None, *, enable: Sequence[str] = ("Page", "Runtime")) -> RawSession:
        """A tab, attached, with these domains enabled."""
        where = {"browserContextId": context} if context else {}
        made = await self.browser.send("Target.createTarget", {"url": "about:blank", **where})
        return await self.attach(made["targetId"], enable=enable)

    async def attach(self, target: str, *, enable: Sequence[str] = ("Page", "Runtime")) -> RawSession:
        """A session of a target."""
        answer = await self.browser.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        session = self._session(answer["sessionId"])
        for domain in enable:
            await session.send(f"{domain}.enable")
        return session

    async def close(self) -> None:
        await self._socket.close()
        await asyncio.gather(self._reader, return_exceptions=True)


@asynccontextmanager
async def raw_chromium(folder: Path, *args: str) -> AsyncIterator[RawChromium]:
    """A Chromium with a profile in ``folder`` and these flags, killed at the end."""
    profile = folder / "profile"
    process = await asyncio.create_subprocess_exec(
        str(find_chromium()),
        *BASE_ARGS,
        f"--user-data-dir={profile}",
        *args,
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port, path = await _debugging_address(profile / "DevToolsActivePort")
        socket = await connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None, proxy=None)
        chromium = RawChromium(socket, port, process.pid)
        try:
            yield chromium
        finally:
            await chromium.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _debugging_address(file: Path) -> tuple[int, str]:
    async with asyncio.timeout(START_SECONDS):
        while not file.exists() or len(lines := file.read_text().splitlines()) < 2:
            await asyncio.sleep(0.01)
    return int(lines[0]), lines[1]
