"""The same MCP server with mcp 2.x, which has another interface, in an environment of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envs import StepRenderer

from .own_environment import run_in
from .reference import digest, reference
from .test_mcp import tool_of, without_turns

pytestmark = pytest.mark.frameworks

IN_MEMORY = """
import asyncio, json, sys
from mcp import Client
from envs import EnvHost, StepRenderer
from envs.adapters.mcp import META, make_server, pool_options
from envs.server.sessions import SessionTable

async def play(task, seed, calls):
    async with EnvHost(max_sessions=2, **pool_options(StepRenderer())) as host, SessionTable(host) as table:
        async with Client(make_server(table, task, seed=seed), mode=sys.argv[2]) as client:
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
            names = [tool.name for tool in (await client.list_tools()).tools]
        left = len(table)
    return {"texts": [answer.content[-1].text for answer in answers], "last": answers[-1].meta[META],
            "errors": [answer.is_error for answer in answers], "names": names, "left": left}

print(json.dumps(asyncio.run(play(*json.loads(sys.argv[1])))))
"""

ON_STDIO = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from envs.adapters.mcp import META

async def play(task, seed, calls):
    arguments = ["-m", "envs.adapters.mcp", task, "--seed", str(seed)]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(__import__("os").environ))
    async with Client(stdio_client(server)) as client:
        answers = [await client.call_tool(name, arguments) for name, arguments in calls]
    return {"texts": [answer.content[-1].text for answer in answers], "last": answers[-1].meta[META]}

print(json.dumps(asyncio.run(play(*json.loads(sys.argv[1])))))
"""


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("task", ["miniwob/enter-text", "miniwob/click-button-sequence"])
def test_an_episode_with_mcp_2_is_the_reference(task: str, mode: str) -> None:
    expected = reference(task)
    calls = [("browser_snapshot", {}), *map(tool_of, expected.texts)]
    played: dict[str, Any] = run_in("mcp", IN_MEMORY, json.dumps([task, expected.seed, calls]), mode)
    assert played["texts"] == [StepRenderer().text(step) for step in expected.steps]
    assert played["last"]["reward"] == expected.reward and played["left"] == 0
    record = without_turns(played["last"]["trajectory"])
    assert digest(record) == digest(without_turns(expected.trajectory.model_dump(mode="json")))
    assert "browser_click" in played["names"] and played["errors"][-1] is False


def test_the_command_on_stdio_with_mcp_2() -> None:
    expected = reference("miniwob/enter-text")
    calls = [*map(tool_of, expected.texts)]
    played = run_in("mcp", ON_STDIO, json.dumps([expected.task, expected.seed, calls]))
    assert played["last"]["reward"] == expected.reward
