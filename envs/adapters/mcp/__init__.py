"""MCP server: any assistant plays an episode of a task, with the tools of Playwright's server.

``python -m envs.adapters.mcp miniwob/click-test --seed 7`` serves one episode on standard input and
output, so an assistant's configuration names it as a command::

    {"mcpServers": {"task": {
        "command": "python", "args": ["-m", "envs.adapters.mcp", "miniwob/click-test"]}}}

``--http 8931`` serves ``http://127.0.0.1:8931/mcp`` instead, with an episode of its own for each
MCP session. Each answer is the page, or an error of which the text reaches the model; the last one
tells the reward. ``_meta["rollwright/episode"]`` has it as data: ``done``, ``stop``, ``steps``,
``reward``, which is null if the episode abstained (``abstained`` says why), and ``trajectory``.
Runs with mcp 1.x and 2.x; a 2.x client needs a session (protocols before 2026-07-28) over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envs.adapters.mcp.base import PageTool
from envs.adapters.mcp.episode import META, McpEpisode, text_content
from envs.adapters.mcp.tools import TOOLS
from envs.prompts import StepRenderer
from envs.server.sessions import SessionTable
from envs.types import ConfigError, RollwrightError, WebTask
from envs.types.near import near

try:
    from mcp.server import Server
    from mcp.types import CallToolResult, ListToolsResult
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("envs.adapters.mcp needs the package mcp: install rollwright[mcp]") from error

__all__ = ["META", "TOOLS", "make_server", "pool_options"]

INSTRUCTIONS = (
    "A web browser with one task to carry out. Call browser_snapshot first: it shows the page, whose elements are "
    "numbered, and the task. Give a number as `target`. End with browser_close, or with answer where the task asks "
    "a question."
)


def pool_options(renderer: StepRenderer) -> dict[str, Any]:
    """Return the fields of `envs.PoolOptions` that a server's host needs."""
    return {**renderer.pool_options, "screenshots": True}


def make_server(
    table: SessionTable,
    task: str | WebTask,
    *,
    renderer: StepRenderer | None = None,
    record: Path | None = None,
    **options: Any,
) -> Any:
    """Return a low-level MCP server; each of its sessions plays an episode of ``task``.

    Args:
        table: Open sessions, on a host with `pool_options`.
        renderer: Writer of pages, in the mode ``text`` or ``set_of_marks``.
        record: Folder for the trajectory and screenshots of each episode that ends.
        options: The same as of `envs.EnvHost.open`, such as ``seed``.
    """
    renderer = renderer or StepRenderer()

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, McpEpisode]]:
        episodes: dict[str, McpEpisode] = {}
        try:
            yield episodes
        finally:
            for episode in episodes.values():
                await episode.close()

    async def listed(*_: Any) -> Any:
        return ListToolsResult.model_validate({"tools": [_described(name, tool) for name, tool in TOOLS.items()]})

    async def called(context: Any, name: str, arguments: dict[str, Any]) -> Any:
        session = context.request.headers.get("mcp-session-id") if context.request is not None else "stdio"
        if session is None:
            return CallToolResult.model_validate(
                text_content("an episode needs an MCP session: connect with initialize", error=True)
            )
        episodes = context.lifespan_context
        if session not in episodes:
            episodes[session] = McpEpisode(table, task, renderer, options, record)
        try:
            answer = await episodes[session].call(_read(name, arguments))
        except RollwrightError as error:
            answer = text_content(str(error), error=True)
        return CallToolResult.model_validate(answer)

    if not hasattr(Server, "list_tools"):  # 2.x

        async def called_2(context: Any, params: Any) -> Any:
            return await called(context, params.name, params.arguments or {})

        return Server(
            "rollwright", instructions=INSTRUCTIONS, lifespan=lifespan, on_list_tools=listed, on_call_tool=called_2
        )
    server = Server("rollwright", instructions=INSTRUCTIONS, lifespan=lifespan)
    server.list_tools()(listed)

    @server.call_tool(validate_input=False)  # type: ignore[untyped-decorator]
    async def called_1(name: str, arguments: dict[str, Any]) -> Any:
        return await called(server.request_context, name, arguments)

    return server


def _read(name: str, arguments: dict[str, Any]) -> PageTool:
    """Return the tool that a call names.

    Raises:
        ConfigError: There is no such tool, or an argument is wrong.
    """
    if name not in TOOLS:
        raise ConfigError(f"there is no tool {name!r}; {near(name, TOOLS)}there are {', '.join(TOOLS)}")
    try:
        return TOOLS[name].model_validate(arguments)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        known = ", ".join(TOOLS[name].model_fields) or "none"
        raise ConfigError(f"{name}: {'; '.join(problems)}; its arguments are: {known}") from error


def _described(name: str, tool: type[PageTool]) -> dict[str, Any]:
    return {"name": name, "description": tool.__doc__, "inputSchema": tool.model_json_schema()}
