"""A server's whole process group ends, whoever of it or of us dies first."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from envs.types import EngineError
from training.serving.vllm.command import ServerCommand
from training.serving.vllm.process import ServerProcess, group_members

from .conftest import ROOT, free_port

FAKE = Path(__file__).parent / "fake_vllm.py"


def fake_command(folder: Path, *more: str) -> ServerCommand:
    """A server of two processes; the second one's id is in ``folder``/worker."""
    port = free_port()
    argv = (sys.executable, str(FAKE), str(port), str(folder / "worker"), *more)
    return ServerCommand(argv, dict(os.environ), f"http://127.0.0.1:{port}")


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    found = ServerProcess(fake_command(tmp_path), tmp_path / "logs" / "server.log")
    found.start()
    yield found
    await found.stop()


async def test_a_server_is_started_and_stopped_with_its_workers(process: ServerProcess) -> None:
    await process.wait_until_healthy(60)
    assert process.alive and process.pid is not None
    assert len(group_members(process.pid)) == 2
    await process.stop()
    assert not process.alive and group_members(process.pid) == []


async def test_workers_that_lost_their_server_are_ended(process: ServerProcess) -> None:
    await process.wait_until_healthy(60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    while process.alive:
        await asyncio.sleep(0.01)
    assert len(group_members(process.pid)) == 1
    await process.stop()
    assert group_members(process.pid) == []


async def test_a_stopped_server_is_ended(process: ServerProcess) -> None:
    await process.wait_until_healthy(60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    await process.stop()
    assert group_members(process.pid) == []


def test_servers_end_when_we_are_killed(tmp_path: Path) -> None:
    command = fake_command(tmp_path)
    ours = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time; from pathlib import Path\n"
            "from training.serving.vllm.command import ServerCommand\n"
            "from training.serving.vllm.process import ServerProcess\n"
            f"process = ServerProcess(ServerCommand({command.argv!r}, dict(os.environ), ''), Path({str(tmp_path / 'log')!r}))\n"
            "process.start(); print(process.pid, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert ours.stdout is not None
    group = int(ours.stdout.readline())
    while len(group_members(group)) < 2:
        time.sleep(0.05)
    ours.kill()
    ours.wait()
    until = time.monotonic() + 60
    while group_members(group) and time.monotonic() < until:
        time.sleep(0.05)
    assert group_members(group) == []
    ours.stdout.close()


async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    broken = ServerProcess(fake_command(tmp_path, "--broken"), tmp_path / "server.log")
    broken.start()
    with pytest.raises(EngineError, match="ended: ValueError: no such model"):
        await broken.wait_until_healthy(60)
    await broken.stop()
    worker = int((tmp_path / "worker").read_text())
    assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE


async def test_a_missing_environment_is_named(tmp_path: Path) -> None:
    absent = ServerProcess(ServerCommand((str(tmp_path / "python"),), {}, ""), tmp_path / "server.log")
    with pytest.raises(EngineError, match="run `make vllm`"):
        absent.start()


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    silent = ServerProcess(
        ServerCommand((sys.executable, "-c", "import time; time.sleep(60)"), {}, "http://127.0.0.1:9"), tmp_path / "log"
    )
    silent.start()
    with pytest.raises(EngineError, match="not healthy after 1 s"):
        await silent.wait_until_healthy(1)
    await silent.stop()
