"""What is not ours of an adapter's step: the same framework, HTTP client and server with an
environment that does nothing, in the same run, after each step.

``python -m benchmarks.adapter_steps.floors http|mcp PORT`` runs such a server.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Idle = Callable[[], Awaitable[object]]
"""Makes a step that does nothing."""
TEXT = "[12] button Add to the basket\n" * 40
"""The answer of such a step: as long as the page of the shop that is played."""
ANSWER = {"reward": 0.0, "done": False, "observation": {"elements": [{"text": "Add"}] * 40}, "text": TEXT}


@asynccontextmanager
async def _http() -> AsyncIterator[Idle]:
    """A route of Starlette under uvicorn, asked by httpx: as of the environment server."""
    import httpx

    with _process("http") as port:
        await answering(port)
        async with httpx.AsyncClient(timeout=60) as client:

            async def idle() -> object:
                answer = await client.post(f"http://127.0.0.1:{port}/step", json={"action": "wait", "step": 1})
                return answer.json()

            yield idle


@asynccontextmanager
async def _mcp() -> AsyncIterator[Idle]:
    """A tool of MCP's own server class, called by its own client."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    ready, calls, answers = asyncio.Event(), asyncio.Queue[bool](), asyncio.Queue[object]()

    async def serve(port: int) -> None:
        """Call the tool when asked; its client's scopes are entered and left in one task."""
        async with (
            streamable_http_client(f"http://127.0.0.1:{port}/mcp") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            ready.set()
            while await calls.get():
                answers.put_nowait(await session.call_tool("click", {"target": "1"}))

    async def idle() -> object:
        calls.put_nowait(True)
        return await answers.get()

    with _process("mcp") as port:
        await answering(port)
        task = asyncio.create_task(serve(port))
        await asyncio.wait({task, waiting := asyncio.create_task(ready.wait())}, return_when="FIRST_COMPLETED")
        waiting.cancel()
        if task.done():
            await task  # raises why it did not begin
        yield idle
        calls.put_nowait(False)
        await task


@asynccontextmanager
async def _nemo_gym() -> AsyncIterator[Idle]:
    """A tool of a resources server that knows no pages, in a thread as ours."""
    from unittest.mock import MagicMock

    import httpx
    import uvicorn
    from fastapi import Request
    from fastapi.responses import PlainTextResponse
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
    from nemo_gym.server_utils import ServerClient

    class Nothing(SimpleResourcesServer):  # type: ignore[misc]
        async def verify(self, body: Any) -> Any:
            raise NotImplementedError

    async def browser(request: Request, body: dict[str, Any]) -> PlainTextResponse:
        return PlainTextResponse(TEXT)

    port = free_port()
    config = BaseResourcesServerConfig(host="127.0.0.1", port=port, entrypoint="", name="nothing", domain="other")
    app = Nothing(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()
    browser.__annotations__ |= {"request": Request, "body": dict[str, Any]}
    app.post("/browser", response_model=None)(browser)
    web = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=web.run)
    thread.start()
    await answering(port)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

        async def idle() -> object:
            return (await client.post("/browser", json={"action": "click", "element": 1})).raise_for_status()

        yield idle
    web.should_exit = True
    await asyncio.to_thread(thread.join)


@asynccontextmanager
async def _model_call() -> AsyncIterator[Idle]:
    """OpenAI's client and the stand-in of the model: the harness of verifiers 0.4 asks once a
    step."""
    import openai

    message = {"role": "assistant", "content": "{}"}
    answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    body = json.dumps({**answer, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()

    class Model(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", api_key="none")
    messages: list[Any] = [{"role": "user", "content": TEXT}] * 3

    async def idle() -> object:
        return await client.chat.completions.create(model="m", messages=messages)

    yield idle
    await client.close()
    await asyncio.to_thread(server.shutdown)
    server.server_close()


FLOORS: Mapping[str, Callable[[], AbstractAsyncContextManager[Idle]]] = {
    "environment server": _http,
    "MCP": _mcp,
    "NeMo-Gym": _nemo_gym,
    "verifiers 0.4": _model_call,
}
"""By adapter. Of BrowserGym's shape: Chromium and the picture (`InnerClock`)."""


def free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


async def answering(port: int) -> None:
    """Wait until something listens on a port of loopback."""
    async with asyncio.timeout(60):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.1)


class _process:
    """A server that does nothing, in a process of its own: ``with _process("http") as port``."""

    def __init__(self, kind: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "benchmarks.adapter_steps.floors", kind, str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> int:
        return self.port

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def _serve_http(port: int) -> None:
    import orjson
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def step(request: Request) -> Response:
        orjson.loads(await request.body())
        return Response(orjson.dumps(ANSWER), media_type="application/json")

    app = Starlette(routes=[Route("/step", step, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", server_header=False, ws="none")


def _serve_mcp(port: int) -> None:
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("nothing", host="127.0.0.1", port=port, log_level="ERROR", json_response=True)

    @server.tool()  # type: ignore[untyped-decorator]
    def click(target: str) -> str:
        """Do nothing."""
        return TEXT

    server.run("streamable-http")


if __name__ == "__main__":
    {"http": _serve_http, "mcp": _serve_mcp}[sys.argv[1]](int(sys.argv[2]))
