"""``python -m flows.serve_environments``: one local cluster of two worker processes, whose places
clients use through the master; a worker that is killed; and the drain."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from envs.server import EnvServerOptions, Master, RemoteEnv, server_options
from flows.serve_environments import main, read_arguments
from tasks_lib.rollouts import environment_nodes

from ..envs.adapters.reference import digest, reference

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = ["--port", "0", "--workers", "2", "--sessions", "1", "--min-free-mb", "0", "--drain-seconds", "60"]
EPISODES = ("miniwob/enter-text", "miniwob/click-button-sequence")
TASK = "miniwob/click-test"

pytestmark = [pytest.mark.dask, pytest.mark.chaos]


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[psutil.Process, str]]:
    """The command's process, and its address once both workers serve."""
    command = [sys.executable, "-m", "flows.serve_environments", *ARGUMENTS]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.fullmatch(r"serving the workers of tcp://127\.0\.0\.1:\d+ at (http://127\.0\.0\.1:\d+)\n", line)
        assert address, line
        yield psutil.Process(process.pid), address[1]
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for one in (process, *children):
            one.kill()
        process.wait()


async def health(client: httpx.AsyncClient, **awaited: int) -> dict[str, int | str]:
    """The master's state, once it says what is awaited."""
    while True:
        state: dict[str, int | str] = (await client.get("/health")).json()
        if awaited.items() <= state.items():
            return state
        await asyncio.sleep(0.1)


def added(text: str, name: str) -> list[int]:
    """The values of a metric, by all of its labels."""
    return [int(value) for value in re.findall(rf"^rollwright_{name}(?:{{.*}})? (\d+)$", text, re.MULTILINE)]


def worker_of(process: psutil.Process, node: str) -> psutil.Process:
    """The process that listens at a node's address."""
    port = urlsplit(node).port
    for child in process.children(recursive=True):
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in child.net_connections()):
            return child
    raise AssertionError(f"nobody listens at {node}")


async def played(url: str, task: str) -> None:
    """Play a reference episode, and compare what came out with `open_env`'s."""
    expected = reference(task)
    async with RemoteEnv(url, task, seed=expected.seed) as env:
        steps = [await env.reset()]
        for text in expected.texts:
            steps.append(await env.step(text))
        assert [digest(step.observation) for step in steps] == expected.observations
        assert steps[-1].reward == expected.reward and env.trajectory is not None
        assert digest(env.trajectory) == digest(expected.trajectory)


async def test_both_workers_play_behind_one_address(serving: tuple[psutil.Process, str]) -> None:
    _, url = serving
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert await health(client, nodes=2) == {"status": "ok", "sessions": 0, "capacity": 2, "nodes": 2}
        await asyncio.gather(*(played(url, task) for task in EPISODES))
        text = (await client.get("/metrics")).text
        assert added(text, "sessions_opened_total") == [2] and added(text, "capacity") == [2]
        assert added(text, "sessions_steps_total") == [sum(len(reference(task).texts) for task in EPISODES)]
        nodes = re.findall(r'^rollwright_node_healthy{node="(.+)"} 1$', text, re.MULTILINE)
        assert len(nodes) == 2, "each was full with one of them"
        for node in nodes:
            denied = httpx.get(f"{node}/tasks")
            assert denied.status_code == 401 and denied.json()["error"]["code"] == "key"


@pytest.mark.long
async def test_a_killed_worker_ends_its_episode_alone_and_another_serves(
    serving: tuple[psutil.Process, str],
) -> None:
    process, url = serving
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as client,
        RemoteEnv(url, TASK, seed=7) as first,
    ):
        await health(client, nodes=2)
        text = (await client.get("/metrics")).text
        (node,) = re.findall(r'^rollwright_node_sessions{node="(.+)"} 1$', text, re.MULTILINE)
        async with RemoteEnv(url, TASK, seed=7) as second:
            await asyncio.gather(first.reset(), second.reset())
            worker = worker_of(process, node)
            browsers = worker.children(recursive=True)
            worker.kill()
            step = await first.step("click [1]")
            assert step.done and step.reward is None and f"node {node} is gone" in str(step.abstained)
            assert (await second.step("click [1]")).reward == 1.0
            assert psutil.wait_procs(browsers, timeout=20)[1] == []
            await health(client, nodes=2, capacity=2)
            await first.reset()
            assert (await first.step("click [1]")).reward == 1.0, "played by the worker that came instead"
            full = await client.post("/sessions", json={"task": TASK})
            assert full.status_code == 503 and full.json()["error"]["code"] == "capacity"


@pytest.mark.long
async def test_a_signal_drains_all_workers_and_leaves_nothing_running(serving: tuple[psutil.Process, str]) -> None:
    process, url = serving
    children = process.children(recursive=True)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await health(client, nodes=2, sessions=0)
        session = (await client.post("/sessions", json={"task": TASK, "seed": 7})).json()["session_id"]
        assert (await client.post(f"/sessions/{session}/reset")).status_code == 200
        lent = await client.post(f"/sessions/{session}/devtools")
        assert lent.status_code == 201 and lent.json()["cdp_url"].startswith("ws://127.0.0.1:")
        assert (await client.delete(f"/sessions/{session}/devtools")).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert (await health(client, nodes=0))["status"] == "draining"
        refused = await client.post("/sessions", json={"task": TASK})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        step = await client.post(f"/sessions/{session}/step", json={"action": "click [1]"})
        assert step.json()["reward"] == 1.0, "the open session is served to its end"
        assert (await client.delete(f"/sessions/{session}")).status_code == 200
        assert await asyncio.to_thread(process.wait, 60) == 0
    assert psutil.wait_procs(children, timeout=20)[1] == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--host", "0.0.0.0"], "a server without keys listens on 127.0.0.1 only"),
        (["--workers", "0"], "workers: "),
        (["--reach", "a.example"], "is no origin"),
    ],
)
def test_it_refuses_what_is_not_safe_or_clear(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARGUMENTS, *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_the_keys_are_in_no_text_of_the_options(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ann:" + "a" * 20)
    given = read_arguments(["--key-file", str(tmp_path / "keys"), "--host", "0.0.0.0"])
    options = server_options(given, master_key="m" * 20)
    assert options.keys == {"ann": "a" * 20} and options.master_key == "m" * 20
    assert "aaaa" not in repr(options) and "mmmm" not in repr(options), "Dask logs the arguments of tasks that fail"


async def test_a_look_that_fails_is_logged_once_and_the_watch_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(environment_nodes, "LOOK_SECONDS", 0.0)
    looks = 0

    def answers(**_: int) -> dict[str, object]:
        nonlocal looks
        looks += 1
        raise OSError("silence") if looks < 3 else KeyError("workers")

    client: Any = SimpleNamespace(scheduler_info=answers)
    nodes = environment_nodes.EnvironmentNodes(client, Master(), EnvServerOptions())
    watching = asyncio.create_task(nodes._watch())
    while looks < 6:
        assert not watching.done()
        await asyncio.sleep(0)
    watching.cancel()
    said = [record.message for record in caplog.records]
    assert said[:2] == ["the Dask scheduler does not answer: silence"] * 2
    assert len(said) == 3 and said[2].startswith("a look at the workers failed; the next one is in ")
