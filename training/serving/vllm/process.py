"""Starts a vLLM server in its own process group and stops the whole group.

A server consists of three processes. If only the first one is killed, the others keep running and
hold the model's memory, so the whole group is always ended. If our own process dies, a watcher
process ends the group; it waits for the end of a pipe from us.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import httpx
import psutil

from envs.types import EngineError
from training.serving.vllm.command import ServerCommand

START_SECONDS = 600.0
"""Limit of a start. A small model takes 60 to 100 s here, most of it for imports; a large one is
read from shared storage."""
STOP_SECONDS = 15.0
"""Limit of a stop, then the group is killed. A healthy server ends within 3 s of SIGTERM."""
ASK_SECONDS = 30.0
"""Limit of one answer of /health. Other jobs on the cores can delay it by seconds."""
POLL_SECONDS = 0.5
"""Pause between two requests of /health."""
TAIL_BYTES = 4000
"""Size of a log's end that is searched for the reason of a failure."""

_WATCH = """
import os, signal, sys, time
sys.stdin.read()
for number in (signal.SIGTERM, signal.SIGKILL):
    try:
        os.killpg(int(sys.argv[1]), number)
    except ProcessLookupError:
        break
    time.sleep(5)
"""
"""Script of the watcher: it waits for its standard input's end, then ends the group. The kernel
closes the other end when our process ends, killed or not."""


class ServerProcess:
    """Process group of one server, from its start to its end.

    Args:
        log: File that the server's output is appended to.
    """

    def __init__(self, command: ServerCommand, log: Path) -> None:
        self.command = command
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """True while the server's first process runs; the others end soon after it."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id of the first process, which is also the group's id."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the server and return; it answers after about a minute.

        Raises:
            EngineError: the serving environment's Python cannot be executed.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            try:
                self._process = self._popen(log)
            except OSError as error:
                raise EngineError(
                    f"vLLM cannot be started: {self.command.argv[0]}: {error.strerror}; run `make vllm`"
                ) from error
        self._watcher = subprocess.Popen(
            [sys.executable, "-S", "-c", _WATCH, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _popen(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command.argv,
            env=dict(self.command.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    async def wait_until_healthy(self, seconds: float = START_SECONDS) -> None:
        """Wait until /health answers.

        Raises:
            EngineError: the server ended, or does not answer within ``seconds``; the message has
                the reason from its log.
        """
        until = time.monotonic() + seconds
        async with httpx.AsyncClient(timeout=ASK_SECONDS, trust_env=False) as client:
            while time.monotonic() < until:
                if not self.alive:
                    raise EngineError(
                        f"the vLLM server at {self.command.address} ended: {self.reason()} (log: {self.log})"
                    )
                with suppress(httpx.TransportError):  # the server does not listen yet
                    if (await client.get(f"{self.command.address}/health")).status_code == httpx.codes.OK:
                        return
                await asyncio.sleep(POLL_SECONDS)
        raise EngineError(
            f"the vLLM server at {self.command.address} is not healthy after {seconds:.0f} s (log: {self.log})"
        )

    def reason(self) -> str:
        """Return the log's last line that names an error, else its last line."""
        with open(self.log, "rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return (errors or lines or ["no output"])[-1]

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End every process of the group.

        Sends SIGTERM, then SIGKILL when the first process has ended or after ``seconds``.
        """
        if self._process is None:
            return
        until = time.monotonic() + seconds
        self._signal(signal.SIGCONT)  # a stopped process would not handle SIGTERM
        self._signal(signal.SIGTERM)
        while self.alive and time.monotonic() < until:  # the first process ends its workers, then itself
            await asyncio.sleep(0.1)
        self._signal(signal.SIGKILL)
        while self._group_lives():
            await asyncio.sleep(0.05)
        self._end_watcher()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _group_lives(self) -> bool:
        assert self._process is not None
        self._process.poll()  # reaps the first process, which would stay a zombie
        return bool(group_members(self._process.pid))

    def _end_watcher(self) -> None:
        if self._watcher is not None and self._watcher.stdin is not None:
            self._watcher.kill()
            self._watcher.stdin.close()
            self._watcher.wait()
            self._watcher = None


def group_members(group: int) -> list[int]:
    """Return the ids of a group's processes that have not ended."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members
