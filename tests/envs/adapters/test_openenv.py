"""Episodes through a real OpenEnv server, by its own clients and over plain HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastapi
import httpx
import pytest
import uvicorn
import yaml
from fastapi import FastAPI
from openenv.cli._validation import validate_running_environment
from openenv.core.env_server.serialization import serialize_observation
from openenv.core.generic_client import GenericEnvClient
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser
from playwright.sync_api import sync_playwright

from envs import find_chromium, list_tasks
from envs.adapters.openenv import OpenEnvAction, OpenEnvClient, make_app
from envs.adapters.openenv.__main__ import read_arguments
from envs.adapters.openenv.environment import OpenEnvEnvironment

from .reference import CANARY, SCRIPTS, digest, reference

ROOT = Path(__file__).parents[3]
SESSIONS = 8


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The address of a server that serves ``app`` in a thread of its own."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return make_app(max_sessions=SESSIONS, tasks=[CANARY])


@pytest.fixture(scope="module")
def server(app: FastAPI) -> Iterator[str]:
    with serving(app) as address:
        yield address


def post(server: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server}{path}", json=body, timeout=60)


def check_episode(task: str, results: list[dict[str, Any]]) -> None:
    """The results of a reset and of its steps, as they come over the wire, are the reference's."""
    expected = reference(task)
    assert [digest(one["observation"]["page"]) for one in results] == expected.observations
    pictures = [base64.b64decode(one["observation"]["screenshot"]) for one in results]
    assert [hashlib.sha256(one).hexdigest() for one in pictures] == expected.screenshots
    assert [one["done"] for one in results] == [step.done for step in expected.steps]
    assert [one["reward"] for one in results] == [step.reward for step in expected.steps]
    assert digest(results[-1]["metadata"]["trajectory"]) == digest(expected.trajectory)
    assert results[-1]["observation"]["stop"] == expected.trajectory.stop_reason


def as_wire(result: Any) -> dict[str, Any]:
    return {
        "observation": result.observation,
        "reward": result.reward,
        "done": result.done,
        "metadata": result.metadata,
    }


async def play(server: str, task: str) -> list[dict[str, Any]]:
    expected = reference(task)
    async with GenericEnvClient(base_url=server) as env:
        results = [await env.reset(task=task, **({} if expected.seed is None else {"seed": expected.seed}))]
        for text in expected.texts:
            results.append(await env.step({"action": text}))
        state = await env.state()
        assert state["step_count"] == len(expected.texts) and state["done"] and state["task"] == task
        return [as_wire(one) for one in results]


async def test_eight_clients_at_once_play_the_reference_episodes(server: str) -> None:
    tasks = [*SCRIPTS, *SCRIPTS][:SESSIONS]
    await asyncio.to_thread(lambda: [reference(task) for task in SCRIPTS])
    for task, results in zip(tasks, await asyncio.gather(*(play(server, task) for task in tasks)), strict=True):
        check_episode(task, results)


@pytest.mark.parametrize("task", ["miniwob/enter-text", "bundled/directory-open/200000/0"])
def test_episodes_over_plain_http_are_the_reference(server: str, app: FastAPI, task: str) -> None:
    expected = reference(task)
    seed = {} if expected.seed is None else {"seed": expected.seed}
    results = [post(server, "/reset", episode_id=f"http {task}", task=task, **seed).json()]
    for text in expected.texts:
        results.append(post(server, "/step", episode_id=f"http {task}", action={"action": text}).json())
    for one in results:
        one.setdefault("metadata", None)
    check_episode(task, results)
    assert len(app.state.shared.table) == 0, "its end gave the browser back"


async def test_two_clients_share_no_store(server: str) -> None:
    async with GenericEnvClient(base_url=server) as first, GenericEnvClient(base_url=server) as second:
        assert "found: nothing" in (await first.reset(task=CANARY.task_id)).observation["text"]
        await first.step({"action": "click [1]"})
        again = await first.step({"action": {"type": "refresh"}})
        assert "cookie" in again.observation["text"], "an episode must see its own marks"
        assert "found: nothing" in (await second.reset(task=CANARY.task_id)).observation["text"]
        over_http = post(server, "/reset", episode_id="canary", task=CANARY.task_id).json()
        assert "found: nothing" in over_http["observation"]["text"]
        assert "found: nothing" in (await first.reset()).observation["text"], "nor with its next episode"
        post(server, "/close", episode_id="canary")


def test_the_typed_client_plays_without_await_and_chooses_tasks(server: str) -> None:
    with OpenEnvClient(base_url=server).sync() as env:
        first = env.reset()
        assert first.observation.page["url"].endswith("click-test.html"), "the server's default task"
        assert env.state().task == "miniwob/click-test"
        seeds = [env.reset(task="miniwob/enter-text", seed=seed).observation.text for seed in (3, 4, 3)]
        assert seeds[0] == seeds[2] != seeds[1]
        assert env.reset(seed=4).observation.text == seeds[1], "of the same task"
        assert env.state().task == "miniwob/enter-text" and env.state().seed == 4
        env.reset(task="miniwob/click-test")
        result = env.step(OpenEnvAction(action="click [1]"))
        assert result.reward == 1.0 and result.done and result.observation.stop == "done"
        assert result.metadata["trajectory"]["reward"]["score"] == 1.0
        other = env.reset(task="bundled/shop-open", seed=200_000, instruction="Buy nothing.", horizon=1)
        assert other.observation.page["instruction"] == "Buy nothing."
        assert env.step(OpenEnvAction(action="click [1]")).observation.stop == "horizon"


async def test_a_client_over_the_capacity_is_refused_in_openenv_s_words(server: str) -> None:
    clients = [GenericEnvClient(base_url=server) for _ in range(SESSIONS - 1)]
    await asyncio.gather(*(client.connect() for client in clients))
    assert post(server, "/reset", episode_id="last", task="miniwob/click-test").status_code == 200
    async with GenericEnvClient(base_url=server) as late:
        with pytest.raises(RuntimeError, match=r"all 8 sessions are in use.*CAPACITY_REACHED"):
            await late.reset()
    refused = post(server, "/reset", episode_id="more")
    assert refused.status_code == 503
    counts = {"active_sessions": 8, "max_sessions": 8}
    assert refused.json()["detail"].items() >= {"code": "CAPACITY_REACHED", **counts}.items()
    await clients[0].close()
    async with GenericEnvClient(base_url=server) as late:
        assert not (await late.reset()).done
    assert post(server, "/close", episode_id="last").json() == {"closed": True}
    await asyncio.gather(*(client.close() for client in clients))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"seed": -1}, r"seed: .*greater than or equal to 0 \(got -1\)"),
        ({"seed": "abc"}, r"seed: .*integer.*\(got 'abc'\)"),
        ({"seed": 10**9}, "seed 1000000000 is not one of miniwob/click-test"),
        ({"task": "miniwob/no-such"}, "no task 'miniwob/no-such'"),
        ({"task": "http://127.0.0.1:1/"}, "start it with --live"),
        ({"task": "live/example.com", "instruction": "Look."}, "start it with --live"),
        ({"tsk": "miniwob/click-test"}, r"tsk: .*it takes seed, episode_id, task"),
        ({"horizon": 0}, r"horizon: .*\(got 0\)"),
        ({"split": "train"}, "give the task, or its split and index"),
        ({"split": "nights", "index": 0}, "no split 'nights': there are train"),
        ({"split": "train", "index": 10**6}, "task 1000000 of split 'train': it has 1"),
    ],
)
async def test_wrong_arguments_of_a_reset_are_named(server: str, arguments: dict[str, Any], said: str) -> None:
    async with GenericEnvClient(base_url=server) as env:
        with pytest.raises(RuntimeError, match=said):
            await env.reset(**arguments)
        assert not (await env.reset()).done, "the session lives on"
    answer = post(server, "/reset", **arguments)
    assert answer.status_code == 422
    post(server, "/close", episode_id="wrong")


async def test_a_step_out_of_turn_or_without_an_action_is_refused(server: str) -> None:
    async with GenericEnvClient(base_url=server) as env:
        with pytest.raises(RuntimeError, match="no episode: reset first"):
            await env.step({"action": "click [1]"})
        await env.reset(task="miniwob/click-test", seed=3)
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            await env.step({"click": 1})
        assert (await env.step({"action": "click [1]"})).reward == 1.0
        with pytest.raises(RuntimeError, match=r"the episode is over \(done\): reset"):
            await env.step({"action": "click [1]"})
    assert post(server, "/step", action={"action": "click [1]"}).status_code == 422, "no episode_id"
    unknown = post(server, "/step", episode_id="nobody's", action={"action": "click [1]"})
    assert unknown.status_code == 404 and "POST /reset with this episode_id first" in unknown.text
    named = post(server, "/reset", task="miniwob/click-test", seed=3).json()["observation"]["episode_id"]
    assert post(server, "/step", episode_id=named, action={}).status_code == 422
    assert httpx.get(f"{server}/state", params={"episode_id": named}).json()["step_count"] == 0
    over = post(server, "/step", episode_id=named, action={"action": "click [1]"})
    assert over.json()["reward"] == 1.0
    again = post(server, "/step", episode_id=named, action={"action": "click [1]"})
    assert again.status_code == 409 and "the episode is over (done)" in again.text


def test_a_repeated_http_request_is_answered_and_not_done_twice(server: str) -> None:
    post(server, "/reset", episode_id="twice", task="bundled/shop-open/200000/0")
    body = {"episode_id": "twice", "action": {"action": "click [1]"}, "request_id": "1"}
    late = post(server, "/step", timeout_s=0.0001, **body)
    assert late.status_code == 504 and "goes on: send its request_id again" in late.text
    first, second = post(server, "/step", **body).json(), post(server, "/step", **body).json()
    assert first == second
    assert httpx.get(f"{server}/state", params={"episode_id": "twice"}).json()["step_count"] == 1
    post(server, "/close", episode_id="twice")


async def test_a_killed_browser_is_no_reward(server: str, app: FastAPI) -> None:
    async with GenericEnvClient(base_url=server) as env:
        await env.reset(task="bundled/shop-open/200000/0")
        os.kill(app.state.shared.table.host.pool.browser_pids()[0], signal.SIGKILL)
        result = await env.step({"action": "click [1]"})
        assert result.done and result.reward is None
        assert result.observation["abstained"] and result.observation["stop"] == "browser_error"
        assert (await env.state())["abstained"] == result.observation["abstained"]
        assert (await env.reset(task="miniwob/click-test", seed=3)).reward == 0.0, "the next episode begins"
        assert (await env.step({"action": "click [1]"})).reward == 1.0


async def test_what_the_web_interface_is_fed_shows_the_page(server: str, app: FastAPI) -> None:
    env = OpenEnvEnvironment(app.state.shared)
    shown = await asyncio.to_thread(env.reset, task="miniwob/click-test", seed=3)  # as from its pool of threads
    drawn = serialize_observation(shown)["observation"]
    picture = re.search(r'src="data:image/jpeg;base64,([^"]+)"', env.render_web(drawn))
    assert picture is not None and base64.b64decode(picture[1])[:2] == b"\xff\xd8"
    evil = env.render_web({"text": "<script>alert(1)</script>", "screenshot": ""})
    assert "<script>" not in evil and "&lt;script&gt;" in evil
    actions = env.web_actions(drawn)
    assert actions == [('click [1] button "Click Me!"', {"action": "click [1]"})]
    ended = await asyncio.to_thread(env.step, OpenEnvAction(**actions[0][1]))
    assert ended.reward == 1.0
    await asyncio.to_thread(env.close)
    await asyncio.to_thread(env.close)
    assert len(app.state.shared.table) == 0


async def test_a_browser_is_given_back_when_nobody_calls() -> None:
    quick = make_app(max_sessions=1, lease_seconds=0.3, task="miniwob/click-test")
    with serving(quick) as address:
        async with GenericEnvClient(base_url=address) as env:
            await env.reset()
            while len(quick.state.shared.table):
                await asyncio.sleep(0.05)
            with pytest.raises(RuntimeError, match="its lease ended"):
                await env.step({"action": "click [1]"})
            assert not (await env.reset()).done


def test_the_server_keeps_openenv_s_contract(server: str) -> None:
    report = validate_running_environment(server)
    assert report["passed"] and report["mode"] == "simulation", report
    assert report["summary"]["passed_count"] == report["summary"]["total_count"] == 6
    schema = httpx.get(f"{server}/schema").json()
    assert set(schema["action"]["properties"]) == {"action", "metadata"}
    assert httpx.get(f"{server}/metadata").json()["name"] == "rollwright"


@contextmanager
def serving_command(*start: str | Path, **environment: str) -> Iterator[str]:
    """The address of a server that a command serves in a process of its own."""
    command = [*start, "--port", "0", "--max-sessions", "2"]
    server = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        yield next(found[0] for line in server.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def test_tasks_are_listed_by_split_and_chosen_by_index(server: str) -> None:
    splits = httpx.get(f"{server}/rollwright/splits").json()
    assert splits == [{"name": "train", "type": "train"}], "those of the server's task file"
    assert post(server, "/rollwright/num_tasks", split="train").json() == {"num_tasks": 1}
    (task,) = post(server, "/rollwright/tasks", split="train").json()["tasks"]
    assert task.items() >= {"id": CANARY.task_id, "index": 0, "seeds": [0, 1000]}.items() and "rubric" not in task
    assert post(server, "/rollwright/task", split="train", index=0).json()["task"] == task
    assert post(server, "/rollwright/task", split="train", index=1).status_code == 400
    assert post(server, "/rollwright/tasks", split="nights").status_code == 422
    with OpenEnvClient(base_url=server).sync() as env:
        assert "found: nothing" in env.reset(split="train", index=0).observation.text
        assert (env.state().task, env.state().seed) == (CANARY.task_id, 0)
        env.reset(split="train", index=0, seed=5)
        assert env.state().seed == 5
    everything = OpenEnvEnvironment(make_app().state.shared)
    ids = [task["id"] for task in everything.list_tasks("train")]
    assert len(ids) == everything.num_tasks("train") > 200 and len(set(ids)) == len(ids)
    assert set(ids) <= set(list_tasks())
    assert everything.get_task_range("train", 2, 4) == [everything.get_task("train", index) for index in (2, 3)]


@pytest.mark.long
def test_openenv_s_validator_passes_the_served_command() -> None:
    with serving_command(sys.executable, "-m", "envs.adapters.openenv") as address:
        tool = Path(sys.executable).with_name("openenv")
        done = subprocess.run([tool, "validate", "--url", address], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASS  ") == 6 and "Verdict: PASS" in done.stdout and "SKIP" not in done.stdout


@pytest.mark.frameworks
def test_openenv_s_web_interface_shows_the_page_and_plays_it() -> None:
    python = ROOT / ".venv-frameworks" / "openenv" / "bin" / "python"
    if not python.exists():
        pytest.skip("no .venv-frameworks/openenv: run scripts/setup_frameworks openenv")
    ours = str(Path(fastapi.__file__).parents[1])  # behind its own packages, which hold gradio
    code = (
        f"import sys, runpy; sys.path.append({ours!r}); runpy.run_module('envs.adapters.openenv', run_name='__main__')"
    )
    settings = {"ENABLE_WEB_INTERFACE": "true", "GRADIO_ANALYTICS_ENABLED": "False", "PYTHONPATH": str(ROOT)}
    with serving_command(python, "-c", code, **settings) as address, sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=find_chromium()).new_page()
        page.goto(f"{address}/web/")
        page.get_by_role("button", name="Reset").click()
        picture = page.get_by_alt_text("The page")
        picture.wait_for()
        assert picture.evaluate("image => image.naturalWidth") > 100
        page.get_by_text('click [1] button "Click Me!"').first.click()
        page.get_by_text("The episode is over (done): reward 1.0").first.wait_for()


def test_the_snippet_of_the_documentation_runs(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    (snippet,) = re.findall(r"```python\n(from envs.adapters.openenv .*?)```", page, re.DOTALL)
    assert len(snippet.splitlines()) <= 12
    exec(snippet.replace("http://127.0.0.1:8000", server), {})
    assert capsys.readouterr().out == "1.0 done\n"


def test_the_image_and_openenv_yaml_serve_what_the_module_offers() -> None:
    manifest = yaml.safe_load((ROOT / "docker" / "openenv" / "openenv.yaml").read_text())
    assert OpenEnvYamlParser().parse(ROOT / "docker" / "openenv").name == "rollwright"
    module, _, name = manifest["app"].partition(":")
    assert isinstance(getattr(importlib.import_module(module), name), FastAPI)
    stages = (ROOT / "docker" / "Dockerfile").read_text().split("\nFROM ")
    (stage,) = (stage for stage in stages if stage.startswith("rollout AS openenv\n"))
    command = json.loads(stage.rpartition("CMD ")[2])
    assert command[:3] == ["python", "-m", module] and f"EXPOSE {manifest['port']}" in stage
    assert read_arguments(command[3:]).port == manifest["port"]
    assert read_arguments([]).host == "127.0.0.1"
