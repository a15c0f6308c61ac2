"""The adapters and servers: each begins episodes of one task, and carries out their moves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from benchmarks.adapter_steps import inner_clock
from benchmarks.adapter_steps.floors import answering, free_port
from benchmarks.adapter_steps.inner_clock import InnerClock
from benchmarks.adapter_steps.turns import (
    MOVES,
    TASK,
    Begin,
    Step,
    Turns,
    begin_episode,
    trl_rollouts,
    verifiers_v1,
    verl_loop,
)


@asynccontextmanager
async def _blocking(
    reset: Callable[[], object], act: Callable[[dict[str, Any]], float | None], close: Callable[[], object]
) -> AsyncIterator[Begin]:
    """An environment whose calls block: nothing else runs in this loop."""

    async def step(move: dict[str, Any]) -> float | None:
        return act(move)

    async def begin() -> Step:
        reset()
        return step

    yield begin
    close()


def _gymnasium(clock: InnerClock) -> AbstractAsyncContextManager[Begin]:
    import gymnasium as gym

    from envs.adapters.gymnasium import env_id

    env = gym.make(f"envs.adapters.gymnasium:{env_id(TASK)}", disable_env_checker=True)
    return _blocking(env.reset, lambda move: float(env.step(json.dumps(move))[1]), env.close)


def _browsergym(clock: InnerClock) -> AbstractAsyncContextManager[Begin]:
    """CDP's objects are read inside, and are the adapter's. So is the picture, which the target
    leaves out."""
    import gymnasium as gym

    from envs.adapters import browsergym, browsergym_page
    from envs.adapters.gymnasium import RollwrightEnv

    RollwrightEnv._observation = clock.of_pictures(RollwrightEnv._observation)  # type: ignore[method-assign]
    vars(browsergym)["capture"] = clock.exclude(clock.of_chromium(browsergym_page.capture))
    name = f"{browsergym.__name__}:rollwright-browsergym/{TASK.replace('/', '.')}"
    env = gym.make(name, disable_env_checker=True)
    calls = {"type": 'fill("{element}", "{text}")', "click": 'click("{element}")', "terminate": 'report_infeasible("")'}
    return _blocking(env.reset, lambda move: float(env.step(calls[move["action"]].format_map(move))[1]), env.close)


def _skyrl(clock: InnerClock) -> AbstractAsyncContextManager[Begin]:
    import skyrl_gym

    from envs.adapters.skyrl import register

    register()
    env = skyrl_gym.make("rollwright", extras={"task": TASK})
    return _blocking(lambda: env.init([]), lambda move: env.step(json.dumps(move))["reward"], env.close)


def _trl(clock: InnerClock) -> AbstractAsyncContextManager[Begin]:
    from envs.adapters.trl import TrlEnvironment

    env = TrlEnvironment(task=TASK)

    def act(move: dict[str, Any]) -> float | None:
        arguments = dict(move)
        getattr(env, arguments.pop("action"))(**arguments)
        return env.get_reward() if move["action"] == "terminate" else 0.0

    return _blocking(env.reset, act, lambda: None)


def _cube(clock: InnerClock) -> AbstractAsyncContextManager[Begin]:
    from cube.core import Action
    from cube.task import TaskMetadata

    from envs.adapters.cube import CubeTaskConfig

    task = CubeTaskConfig(metadata=TaskMetadata(id=TASK)).make()

    def act(move: dict[str, Any]) -> float | None:
        return float(task.step(Action(name="browser", arguments=move)).reward)

    return _blocking(task.reset, act, task.close)


@asynccontextmanager
async def _tinker(clock: InnerClock) -> AsyncIterator[Begin]:
    """Tokens are letters: what a model's tokenizer takes is not the adapter's."""
    import tinker

    from envs.adapters.tinker import TinkerEnv

    class Letters:
        tokenizer = SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))

        def build_generation_prompt(self, messages: list[Any]) -> tinker.ModelInput:
            text = "".join(f"<{message['role']}>{message['content']}</>" for message in messages)
            return tinker.ModelInput.from_ints([ord(letter) for letter in text])

        def get_stop_sequences(self) -> list[str]:
            return ["</>"]

    async def begin() -> Step:
        env = TinkerEnv(TASK, Letters())
        await env.initial_observation()

        async def step(move: dict[str, Any]) -> float | None:
            return float((await env.step([ord(letter) for letter in f"{json.dumps(move)}</>"])).reward)

        return step

    yield begin


@asynccontextmanager
async def _verl(clock: InnerClock) -> AsyncIterator[Begin]:
    """As verl's loop calls a tool: it makes and releases an instance for each call."""
    from envs.adapters.verl import BrowserTool

    tool = BrowserTool({"type": "native"})

    async def begin() -> Step:
        data = SimpleNamespace(request_id=uuid4().hex, extra_fields={})

        async def step(move: dict[str, Any]) -> float | None:
            instance, _ = await tool.create(create_kwargs={"task": TASK})
            _, reward, _ = await tool.execute(instance, move, agent_data=data)
            await tool.release(instance)
            return reward

        await step({})  # shows the first page
        return step

    yield begin


@asynccontextmanager
async def _verifiers(clock: InnerClock) -> AsyncIterator[Begin]:
    from envs.adapters.verifiers import RESULT, load_environment

    env = load_environment([TASK])
    (row,) = env.get_dataset(n=1)

    async def begin() -> Step:
        state = await env.setup_state({"info": json.loads(row["info"]), "trajectory_id": uuid4().hex})

        async def step(move: dict[str, Any]) -> float | None:
            await env.env_response([{"role": "assistant", "content": json.dumps(move)}], state)
            if RESULT not in state:
                return 0.0
            await env.close_page(state)
            return float(state[RESULT]["reward"])

        return step

    yield begin


@asynccontextmanager
async def _nemo_gym(clock: InnerClock) -> AsyncIterator[Begin]:
    """Over HTTP, with a thread of this process for its server."""
    from unittest.mock import MagicMock

    import httpx
    import uvicorn
    from nemo_gym.server_utils import ServerClient

    from envs.adapters.nemo_gym import WebResourcesServer, dataset_rows
    from envs.adapters.nemo_gym_types import WebResourcesServerConfig

    port = free_port()
    config = WebResourcesServerConfig(host="127.0.0.1", port=port, entrypoint="", name="web")
    app = WebResourcesServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()
    web = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=web.run)
    thread.start()
    await answering(port)
    (row,) = dataset_rows([TASK])
    response = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": []}
    response |= {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

        async def post(path: str, body: Mapping[str, Any]) -> httpx.Response:
            return (await client.post(path, json=body)).raise_for_status()

        async def step(move: dict[str, Any]) -> float | None:
            await post("/browser", move)
            if move["action"] != "terminate":
                return 0.0
            verified = await post("/verify", {**row, "response": response})
            return float(verified.json()["reward"])

        async def begin() -> Step:
            client.cookies.clear()
            await post("/seed_session", {"task": TASK})
            return step

        yield begin
    web.should_exit = True
    await asyncio.to_thread(thread.join)


@asynccontextmanager
async def _mcp(clock: InnerClock) -> AsyncIterator[Begin]:
    """Over HTTP; each MCP session is an episode."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    from envs.adapters.mcp import META

    port = free_port()
    server = (inner_clock.__name__, str(clock.file), "envs.adapters.mcp", TASK, "--http", str(port))

    async def play(turns: Turns) -> float | None:
        """Play an episode; its client's scopes are entered and left in one task."""
        async with (
            streamable_http_client(f"http://127.0.0.1:{port}/mcp") as (read, write, _),
            ClientSession(read, write) as client,
        ):
            await client.initialize()
            answer = await client.call_tool("browser_snapshot", {})
            for _ in MOVES:
                move = await turns.next()
                target = {"target": str(move.get("element"))}
                name, arguments = {
                    "type": ("browser_type", {**target, "text": move.get("text")}),
                    "click": ("browser_click", target),
                    "terminate": ("browser_close", {}),
                }[move["action"]]
                answer = await client.call_tool(name, arguments)
            reward: float | None = answer.meta[META]["reward"]
            return reward

    # mcp 1.30 prints an error at the end of each session, so the output is shown if one fails.
    with (
        TemporaryFile() as output,
        subprocess.Popen([sys.executable, "-m", *server], stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            await answering(port)
            yield lambda: begin_episode(play)
        except BaseException:
            output.seek(0)
            sys.stderr.write(output.read().decode())
            raise
        finally:
            process.terminate()


@asynccontextmanager
async def _openenv(clock: InnerClock) -> AsyncIterator[Begin]:
    from envs.adapters.openenv import OpenEnvAction, OpenEnvClient

    async with (
        clock.serving("envs.adapters.openenv", "--port", "0", "--max-sessions", "1", "--no-screenshot") as url,
        OpenEnvClient(base_url=url) as client,
    ):

        async def step(move: dict[str, Any]) -> float | None:
            reward: float | None = (await client.step(OpenEnvAction(action=json.dumps(move)))).reward
            return reward

        async def begin() -> Step:
            await client.reset(task=TASK)
            return step

        yield begin


@asynccontextmanager
async def _server(clock: InnerClock) -> AsyncIterator[Begin]:
    from envs.server import RemoteEnv

    async with (
        clock.serving("envs.server", "--port", "0", "--max-sessions", "1") as url,
        RemoteEnv(url, TASK, screenshots=False) as env,
    ):

        async def step(move: dict[str, Any]) -> float | None:
            return (await env.step(json.dumps(move))).reward

        async def begin() -> Step:
            await env.reset()
            return step

        yield begin


ARMS: Mapping[str, Callable[[InnerClock], AbstractAsyncContextManager[Begin]]] = {
    "Gymnasium": _gymnasium,
    "BrowserGym's shape": _browsergym,
    "OpenEnv": _openenv,
    "SkyRL": _skyrl,
    "Tinker": _tinker,
    "verl": _verl,
    "TRL": _trl,
    "MCP": _mcp,
    "verifiers": _verifiers,
    "NeMo-Gym": _nemo_gym,
    "CUBE": _cube,
    "environment server": _server,
    "TRL's rollouts": trl_rollouts,
    "verl's agent loop": verl_loop,
    "verifiers 0.4": verifiers_v1,
}
