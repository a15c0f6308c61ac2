"""An assistant plays tasks over MCP: with the real client, in memory, on stdio and over HTTP."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_connected_server_and_client_session
from PIL import Image

from envs import EnvHost, StepRenderer, WebTask
from envs.actions.parsing import parse
from envs.adapters.mcp import META, TOOLS, make_server, pool_options
from envs.server.sessions import SessionTable
from envs.types.actions import ACTIONS

from .reference import CANARY, SCRIPTS, digest, reference

ROOT = Path(__file__).parents[3]
RENDERER = StepRenderer()

Open = Callable[..., AbstractAsyncContextManager[ClientSession]]


@pytest.fixture(scope="module")
async def table() -> AsyncIterator[SessionTable]:
    async with EnvHost(max_sessions=3, **pool_options(RENDERER)) as host, SessionTable(host) as opened:
        yield opened


@pytest.fixture
def connect(table: SessionTable) -> Open:
    def opener(task: str | WebTask, **options: Any) -> AbstractAsyncContextManager[ClientSession]:
        return create_connected_server_and_client_session(make_server(table, task, **options))

    return opener


def text(answer: Any) -> str:
    return str(answer.content[-1].text)


def state(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.meta[META]
    return found


def tool_of(action_text: str) -> tuple[str, dict[str, Any]]:
    """The tool call that does what a text of a script says."""
    action = parse(action_text, ACTIONS).action.model_dump()
    match action["type"]:
        case "click":
            return "browser_click", {"target": f"[{action['element']}]", "element": "what is to be clicked"}
        case "type":
            return "browser_type", {"target": str(action["element"]), "text": action["text"]}
        case "terminate":
            return "browser_close", {}
        case "submit":
            return "submit", {"html": action["html"]}
    raise AssertionError(action)


def without_turns(trajectory: dict[str, Any]) -> dict[str, Any]:
    """A record without the words of the model: tools have none."""
    steps = [{**step, "response": "", "form": ""} for step in trajectory["steps"]]
    return {**trajectory, "steps": steps}


@pytest.mark.parametrize("task", SCRIPTS)
async def test_an_episode_over_mcp_is_the_reference(task: str, connect: Open, tmp_path: Path) -> None:
    expected = reference(task)
    async with connect(task, seed=expected.seed, record=tmp_path) as client:
        answers = [await client.call_tool("browser_snapshot", {})]
        for action in expected.texts:
            answers.append(await client.call_tool(*tool_of(action)))
    assert [text(answer) for answer in answers] == [RENDERER.text(step) for step in expected.steps]
    assert [answer.isError for answer in answers] == [
        not step.done and step.observation.error is not None for step in expected.steps
    ]
    last = state(answers[-1])
    assert (last["done"], last["reward"], last["steps"]) == (True, expected.reward, len(expected.texts))
    assert f"reward {expected.reward}" in text(answers[-1]) and state(answers[0])["reward"] == 0.0
    played = without_turns(last["trajectory"])
    assert digest(played) == digest(without_turns(expected.trajectory.model_dump(mode="json")))
    (kept,) = tmp_path.glob("*.json")
    assert json.loads(kept.read_bytes()) == last["trajectory"]
    pictures = {path.stem for path in (tmp_path / "screenshots").iterdir()}
    assert pictures == {
        name for step, name in zip(expected.steps, expected.screenshots, strict=True) if step.screenshot
    }


async def test_two_sessions_share_nothing_and_give_their_browsers_back(connect: Open, table: SessionTable) -> None:
    async with connect(CANARY) as first, connect(CANARY) as second:
        await first.call_tool("browser_snapshot", {})
        (session,) = table.sessions.values()
        assert session.last is not None
        await first.call_tool("browser_click", {"target": 1})
        again = await first.call_tool("browser_navigate", {"url": session.last.observation.url})
        assert "cookie,local,session,name" in text(again).replace("k=", "")
        assert "found: nothing" in text(await second.call_tool("browser_snapshot", {}))
        assert len(table) == 2
    assert len(table) == 0


PLAYWRIGHTS = """
annotate click close console_messages cookie_clear cookie_delete cookie_get cookie_list cookie_set
drag drop emulate_media evaluate file_upload fill_form find generate_locator get_config
handle_dialog hide_highlight highlight hover localstorage_clear localstorage_delete localstorage_get
localstorage_list localstorage_set mouse_click_xy mouse_down mouse_drag_xy mouse_move_xy mouse_up
mouse_wheel navigate navigate_back network_request network_requests network_state_set pdf_save
press_key resize resume route route_list run_code_unsafe select_option sessionstorage_clear
sessionstorage_delete sessionstorage_get sessionstorage_list sessionstorage_set set_storage_state
snapshot start_recording start_tracing start_video stop_recording stop_tracing stop_video
storage_state tabs take_screenshot type unroute verify_element_visible verify_list_visible
verify_text_visible verify_value video_chapter video_hide_actions video_show_actions wait_for
"""
"""Tools of @playwright/mcp 0.0.83, by the README of its package; they begin with ``browser_``."""


def test_the_tools_have_the_names_of_playwrights() -> None:
    named = {f"browser_{name}" for name in PLAYWRIGHTS.split()}
    assert {name for name in TOOLS if name.startswith("browser_")} <= named
    assert len([name for name in TOOLS if name in named]) == 21


async def test_what_is_wrong_reaches_the_model_and_is_no_step(connect: Open) -> None:
    async with connect("miniwob/enter-text", seed=7) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS)
        for name, arguments, words in [
            ("browser_evaluate", {"function": "() => 1"}, "there is no tool 'browser_evaluate'"),
            ("browser_click", {"ref": "1"}, "ref: Extra inputs are not permitted"),
            ("browser_click", {}, "target: Field required"),
            ("browser_find", {}, "either text or regex"),
            ("browser_find", {"regex": "(?=x)"}, "regex"),
            ("browser_find", {"text": "no such words"}, "no line of the page has 'no such words'"),
        ]:
            answer = await client.call_tool(name, arguments)
            assert answer.isError and words in text(answer), name
        missing = await client.call_tool("browser_click", {"target": "99"})
        assert missing.isError and "99" in text(missing) and state(missing)["steps"] == 1


async def test_looking_costs_no_step(connect: Open) -> None:
    expected = reference("miniwob/enter-text")
    async with connect("miniwob/enter-text", seed=7) as client:
        picture = (await client.call_tool("browser_take_screenshot", {})).content[0]
        data = base64.b64decode(picture.data)
        assert (picture.mimeType, sha256(data).hexdigest()) == ("image/jpeg", expected.screenshots[0])
        png = (await client.call_tool("browser_take_screenshot", {"type": "png"})).content[0]
        assert Image.open(BytesIO(base64.b64decode(png.data))).format == "PNG"
        field = text(await client.call_tool("browser_find", {"regex": r"\[1\] \w+"}))
        assert field.startswith("[1] ") and "Task:" not in field
        assert not (await client.call_tool("browser_wait_for", {"text": "Submit"})).isError
        listed = await client.call_tool("browser_tabs", {"action": "list"})
        assert state(listed)["steps"] == 0
        gone = await client.call_tool("browser_wait_for", {"textGone": "Submit"})
        assert gone.isError and "still shows 'Submit'" in text(gone) and state(gone)["steps"] == 1


async def test_points_are_pixels_of_the_screenshot(connect: Open) -> None:
    expected = reference("miniwob/enter-text")
    before = expected.steps[0].observation
    left, top, width, height = before.elements[1].box
    async with connect("miniwob/enter-text", seed=7, horizon=5) as client:
        form = {"fields": [{"target": "1", "name": "it", "type": "textbox", "value": "Nathalie"}]}
        filled = await client.call_tool("browser_fill_form", form)
        assert 'value "Nathalie"' in text(filled)
        await client.call_tool("browser_mouse_move_xy", {"x": left + 1, "y": top + 1})
        ended = await client.call_tool("browser_mouse_click_xy", {"x": left + width / 2, "y": top + height / 2})
        assert state(ended)["reward"] == expected.reward
        closed = await client.call_tool("browser_close", {})
        assert not closed.isError and text(closed) == text(ended)
        late = await client.call_tool("browser_click", {"target": "2"})
        assert late.isError and "the episode is over" in text(late) and state(late)["steps"] == 3


async def test_an_abstention_has_no_reward(connect: Open, table: SessionTable, tmp_path: Path) -> None:
    async with connect("miniwob/enter-text", seed=7, record=tmp_path) as client:
        await client.call_tool("browser_snapshot", {})
        for pid in table.host.pool.browser_pids():
            subprocess.run(["kill", "-9", str(pid)], check=True)
        ended = await client.call_tool("browser_click", {"target": "2"})
    found = state(ended)
    assert ended.isError and found["done"] and found["reward"] is None and found["abstained"]
    assert "without a reward" in text(ended) and found["trajectory"]["error"] == found["abstained"]


async def test_the_command_on_stdio(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    (named,) = re.findall(r'"mcpServers": ({.*?}})', page, re.DOTALL)
    server = json.loads(named)["task"]
    arguments = [*server["args"], "--record", str(tmp_path)]
    assert server["command"] == "python" and "miniwob/enter-text" in arguments
    parameters = StdioServerParameters(command=sys.executable, args=arguments, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    expected = reference("miniwob/enter-text")
    async with stdio_client(parameters) as streams, ClientSession(*streams) as client:
        hello = await client.initialize()
        assert hello.instructions is not None and "browser_snapshot" in hello.instructions
        for action in expected.texts:
            answer = await client.call_tool(*tool_of(action))
    assert state(answer)["reward"] == expected.reward and len(list(tmp_path.glob("*.json"))) == 1


def test_a_wrong_task_is_told_at_once() -> None:
    command = [sys.executable, "-m", "envs.adapters.mcp", "miniwob/enter-text", "--seed", "-4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "seed -4 is not one of miniwob/enter-text" in done.stderr
    assert done.stdout == ""


@asynccontextmanager
async def over_http(port: int) -> AsyncIterator[ClientSession]:
    async with (
        streamable_http_client(f"http://127.0.0.1:{port}/mcp") as (read, write, _),
        ClientSession(read, write) as client,
    ):
        await client.initialize()
        yield client


async def test_each_session_over_http_has_an_episode_of_its_own(tmp_path: Path) -> None:
    import anyio

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = ["-m", "envs.adapters.mcp", "miniwob/enter-text", "--seed", "7", "--http", str(port)]
    server = subprocess.Popen([sys.executable, *command, "--max-sessions", "2"], cwd=ROOT)
    try:
        with anyio.fail_after(60):
            while True:
                try:
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await anyio.sleep(0.1)
        async with over_http(port) as first, over_http(port) as second, over_http(port) as third:
            written = await first.call_tool("browser_type", {"target": "1", "text": "Nathalie"})
            assert 'value "Nathalie"' in text(written)
            assert 'Nathalie"' not in text(await second.call_tool("browser_snapshot", {})).splitlines()[1]
            full = await third.call_tool("browser_snapshot", {})
            assert full.isError and "all 2 sessions are in use" in text(full)
        async with over_http(port) as fourth:  # the first one's place is free again
            assert "Task:" in text(await fourth.call_tool("browser_snapshot", {}))
    finally:
        server.terminate()
        server.wait()
