"""Servers of one instance on a Unix socket: WSGI, ASGI, or a relay to a program of any kind."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from io import BytesIO
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import unquote, urlsplit
from wsgiref.handlers import SimpleHandler
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.util import setup_testing_defaults

RETRY_SECONDS = 0.02
"""Seconds between tries to reach a program that is starting."""
RELAYED_PORT = 8080
"""Port of a program that has a network namespace of its own."""


def load(reference: str) -> Any:
    """Import ``module:name``."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


class _Warming(SimpleHandler):
    def log_exception(self, exc_info: Any) -> None:
        """Have it raised, in place of an answer with status 500."""
        raise exc_info[1]


def warm_wsgi(application: Callable[..., Iterable[bytes]], path: str) -> int:
    """Ask a WSGI application once in this process and return the status."""
    parts = urlsplit(path)
    environ = {"PATH_INFO": unquote(parts.path), "QUERY_STRING": parts.query, "REMOTE_ADDR": "127.0.0.1"}
    setup_testing_defaults(environ)
    _Warming(BytesIO(), answer := BytesIO(), sys.stderr, environ).run(application)
    return int(answer.getvalue().split(maxsplit=2)[1])


def warm_asgi(application: Callable[..., Any], path: str) -> int:
    """Ask an ASGI application once in this process and return the status."""
    parts = urlsplit(path)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "root_path": "",
        "query_string": parts.query.encode(),
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }
    statuses = list[int]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    asyncio.run(application(scope, receive, send))
    return statuses[-1]


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        self.client_address = ("127.0.0.1", 0)  # a Unix socket has none
        super().setup()

    def get_environ(self) -> dict[str, Any]:
        """Return the request's variables; our gateway says if it came over HTTPS."""
        environ = super().get_environ()
        if environ.get("HTTP_X_FORWARDED_PROTO") == "https":
            environ["HTTPS"] = "on"
        return environ

    def log_message(self, format: str, *values: object) -> None:
        """Write no line for a request; the application's own log is kept."""


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    address_family = socket.AF_UNIX
    daemon_threads = True


def serve_wsgi(application: Any, listener: socket.socket) -> None:
    """Serve a WSGI application with a thread for each request."""
    server = _ThreadingServer(("", 0), _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = "127.0.0.1", 80
    server.setup_environ()
    server.set_app(application)
    server.serve_forever()


def serve_asgi(application: Any, listener: socket.socket) -> None:
    """Serve an ASGI application with uvicorn, which is among the site's packages."""
    import uvicorn

    config = uvicorn.Config(application, log_level="warning", access_log=False, forwarded_allow_ips="*")
    uvicorn.Server(config).run(sockets=[listener])


def serve_process(command: list[str], state: str, listener: socket.socket, *, own_network: bool) -> None:
    """Start a program and lead connections to its port; end with it."""
    port = RELAYED_PORT if own_network else _free_port()
    filled = [word.replace("{port}", str(port)).replace("{state}", state) for word in command]
    if filled[0] == "python":
        filled[0] = sys.executable
    program = subprocess.Popen(filled)
    asyncio.run(_relay(program, port, listener))


async def _relay(program: subprocess.Popen[bytes], port: int, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
        await asyncio.gather(pass_on(reader, up_writer), pass_on(up_reader, writer))

    server = await asyncio.start_unix_server(lead, sock=listener)
    status = await loop.run_in_executor(None, program.wait)
    server.close()
    print(f"the program ended with status {status}", file=sys.stderr, flush=True)
    os._exit(status or 1)


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy what one side sends to the other, and close that then."""
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass  # the other side sees the end too
    finally:
        writer.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as asked:
        port: int = asked.getsockname()[1]
        return port
