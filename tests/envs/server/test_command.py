"""``python -m envs.server``: what it refuses, and that it drains and leaves nothing running."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from envs.server import RemoteEnv
from envs.server.__main__ import PORT, main, read_options

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/environment-server.md"
TASK = "miniwob/click-test"
ARGUMENTS = ["--port", "0", "--max-sessions", "2", "--drain-seconds", "30", "--min-free-mb", "0"]


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its address."""
    command = [sys.executable, "-m", "envs.server", *ARGUMENTS, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.fullmatch(r"serving 2 sessions at (http://127\.0\.0\.1:\d+)\n", line)
        assert address, line
        yield process, address[1]
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def serving() -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server process, and a client of it."""
    with started() as (process, address), httpx.Client(base_url=address, timeout=60) as client:
        yield process, client


def opened(client: httpx.Client) -> str:
    session: str = client.post("/sessions", json={"task": TASK, "seed": 7}).json()["session_id"]
    assert client.post(f"/sessions/{session}/reset", json={"epoch": 1}).status_code == 200
    return session


def test_the_example_of_the_page_runs_and_its_commands_are_accepted(
    serving: tuple[subprocess.Popen[str], httpx.Client], capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert "http://127.0.0.1:8700" in example and f"--port {PORT}" in text and PORT == 8700
    exec(example.replace("http://127.0.0.1:8700", str(serving[1].base_url)), {"__name__": "example"})
    assert capsys.readouterr().out == "1.0 True 1\n"
    commands = re.findall(r"^python -m envs\.server (.*)$", text, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        read_options(shlex.split(command))


def test_it_drains_after_a_signal_and_leaves_nothing_running(
    serving: tuple[subprocess.Popen[str], httpx.Client],
) -> None:
    process, client = serving
    session = opened(client)
    lent = client.post(f"/sessions/{session}/devtools").json()
    assert lent["cdp_url"].startswith("ws://127.0.0.1:")
    assert client.delete(f"/sessions/{session}/devtools").status_code == 200
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("chrom" in child.name() or "headless" in child.name() for child in children)
    process.send_signal(signal.SIGTERM)
    while (health := client.get("/health")).status_code == 200:
        time.sleep(0.02)
    assert health.json()["status"] == "draining"
    refused = client.post("/sessions", json={"task": TASK})
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
    assert refused.headers["retry-after"]
    step = client.post(f"/sessions/{session}/step", json={"action": "click [1]", "epoch": 1, "step": 1})
    assert step.json()["reward"] == 1.0, "the open session is served to its end"
    assert client.delete(f"/sessions/{session}").status_code == 200
    assert process.wait(30) == 0
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_it_ends_after_its_drain_also_if_nobody_reads_what_it_prints() -> None:
    with started("--drain-seconds", "0.2") as (process, address), httpx.Client(base_url=address, timeout=60) as client:
        opened(client)
        assert process.stdout is not None
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_second_signal_closes_the_sessions(
    serving: tuple[subprocess.Popen[str], httpx.Client],
) -> None:
    process, client = serving
    opened(client)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    while client.get("/health").status_code == 200:
        time.sleep(0.02)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert psutil.wait_procs(children, timeout=10)[1] == []


async def test_a_killed_server_leaves_no_browser_and_its_client_goes_on(
    serving: tuple[subprocess.Popen[str], httpx.Client],
) -> None:
    process, client = serving
    async with RemoteEnv(str(client.base_url), TASK, seed=7) as env:
        await env.reset()
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        assert psutil.wait_procs(children, timeout=20)[1] == []
        stepping = asyncio.create_task(env.step("click [1]"))
        await asyncio.sleep(0.2)
        with started("--port", str(client.base_url.port)):
            step = await stepping
            assert step.done and step.reward is None and "no session" in str(step.abstained)
            await env.reset()
            assert (await env.step("click [1]")).reward == 1.0
            await env.close()


CLIENT = """
import asyncio, httpx, sys
from envs.server import RemoteEnv
from tests.envs.devtools_client import bare_client

async def main(address, how):
    async with RemoteEnv(address, "miniwob/click-test", seed=7, keep_alive=how == "steps") as env:
        await env.reset()
        if how == "steps":
            await env.step("wait 1")
            print(env.session_id, flush=True)
            await asyncio.sleep(600)
        lent = httpx.post(f"{address}/sessions/{env.session_id}/devtools").json()
        async with bare_client(lent["cdp_url"]) as agent:
            print(env.session_id, flush=True)
            while True:
                await agent.call("Browser.getVersion")
                await asyncio.sleep(0.1)

asyncio.run(main(*sys.argv[1:]))
"""
"""A client that keeps its session: over HTTP, or by what it says at a DevTools address."""


def test_killed_clients_give_their_sessions_back_and_have_no_reward() -> None:
    with started("--lease-seconds", "2") as (_, address), httpx.Client(base_url=address, timeout=60) as web:
        command = [sys.executable, "-c", CLIENT, address]
        clients = [
            subprocess.Popen([*command, how], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for how in ("steps", "devtools")
        ]
        try:
            sessions = [client.stdout.readline().strip() for client in clients if client.stdout]
            assert web.get("/health").json()["sessions"] == 2
        finally:
            for client in clients:
                client.kill()
                client.wait()
        late = time.monotonic() + 60
        while web.get("/health").json()["sessions"]:
            assert time.monotonic() < late, "a killed client still holds a session"
            time.sleep(0.05)
        for session in sessions:
            gone = web.get(f"/sessions/{session}/trajectory")
            assert (gone.status_code, gone.json()["error"]["code"]) == (410, "expired_session")
        metrics = web.get("/metrics").text
        for name, count in (("expired", 2), ("closed", 0), ("episodes", 2)):
            assert f"rollwright_sessions_{name}_total {count}\n" in metrics
        for session in [opened(web), opened(web)]:  # both places are free again
            step = web.post(f"/sessions/{session}/step", json={"action": "click [1]", "epoch": 1, "step": 1})
            assert step.json()["reward"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--host", "0.0.0.0"], "a server without keys listens on 127.0.0.1 only"),
        (["--host", "::"], "a server without keys"),
        (["--host", "somewhere.example"], "a server without keys"),
        (["--key-file", "nothing"], "nothing cannot be read"),
        (["--reach", "a.example"], "is no origin"),
        (["--address", "a.example"], "write NAME=http://HOST:PORT"),
        (["--max-sessions", "0"], "max_sessions: Input should be greater than or equal to 1"),
    ],
)
def test_it_refuses_what_is_not_safe_or_clear(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARGUMENTS, *arguments]) == 1
    assert problem in capsys.readouterr().err
