"""Serves a task over MCP: ``python -m envs.adapters.mcp miniwob/click-test --seed 7``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from envs.adapters.mcp import make_server, pool_options
from envs.garbage import collect_seldom
from envs.host import EnvHost
from envs.prompts import StepRenderer
from envs.registry import choose_task, seed_of
from envs.server.sessions import SessionTable
from envs.types import RollwrightError

LEASE_SECONDS = 3600.0
"""Seconds after its last call at which a session is closed: a person may have to approve a call."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    one = argparse.ArgumentParser(prog="python -m envs.adapters.mcp", description="Serve a task over MCP.")
    one.add_argument("task", help="id of a task, as miniwob/click-test or live/HOST")
    one.add_argument("--seed", type=int, help="seed of the page; the task's first training seed if not given")
    one.add_argument("--instruction", help="what to do; live pages need one")
    one.add_argument("--horizon", type=int, help="most steps of an episode; the task's own if not given")
    one.add_argument("--mode", choices=["text", "set_of_marks"], default="text", help="how pages are shown")
    one.add_argument("--screenshots", action="store_true", help="show the screenshot with each answer")
    one.add_argument("--http", type=int, metavar="PORT", help="serve on this port of 127.0.0.1, not on stdio")
    one.add_argument("--max-sessions", type=int, default=8, help="most MCP sessions at a time, over HTTP")
    one.add_argument("--record", type=Path, metavar="FOLDER", help="write the trajectories and screenshots there")
    return one


async def serve(given: argparse.Namespace) -> None:
    """Serve until the client or the process ends.

    Raises:
        TaskError, ConfigError, BrowserError: The errors of `envs.open_env`.
    """
    options = {name: getattr(given, name) for name in ("seed", "instruction", "horizon")}
    seed_of(choose_task(given.task, **options), given.seed)  # a wrong one is refused before anything starts
    renderer = StepRenderer(mode=given.mode, screenshot=given.screenshots)
    sessions = 1 if given.http is None else given.max_sessions
    async with (
        EnvHost(max_sessions=sessions, **pool_options(renderer)) as host,
        SessionTable(host, lease_seconds=LEASE_SECONDS) as table,
    ):
        server = make_server(table, given.task, renderer=renderer, record=given.record, **options)
        if given.http is None:
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())
        else:
            await _serve_http(server, given.http)


async def _serve_http(server: Any, port: int) -> None:
    local = [f"{name}:*" for name in ("127.0.0.1", "localhost")]
    manager = StreamableHTTPSessionManager(
        server,
        json_response=True,  # nothing is streamed, and an event stream takes a sixth longer
        session_idle_timeout=LEASE_SECONDS,
        security_settings=TransportSecuritySettings(
            allowed_hosts=local, allowed_origins=[f"http://{name}" for name in local]
        ),
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].rstrip("/") == "/mcp":
            await manager.handle_request(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"the MCP server is at /mcp"})

    web = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, lifespan="off", log_level="warning"))
    async with manager.run():
        await web.serve()


def main() -> int:
    """Run the command line; return its exit status."""
    given = parser().parse_args()
    collect_seldom()
    try:
        asyncio.run(serve(given))
    except RollwrightError as error:
        print(f"envs.adapters.mcp: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
