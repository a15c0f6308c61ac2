"""Starts and stops one Chromium process tree: its pipe, its memory, its certain end.

It is spoken to over a pipe, which nobody else can connect to. When we die without a word, the pipe closes and Chromium ends by itself.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import psutil

from envs.browser.chromium import AUTOMATION_ARGS
from envs.cdp.cbor import CBOR
from envs.cdp.client import CdpClient, ConnectionLost
from envs.cdp.pipe import Pipe
from envs.cdp.wire import MAX_MESSAGE
from envs.types import BrowserError

logger = logging.getLogger(__name__)

START_SECONDS = 30.0
"""Real seconds for Chromium to answer (0.13 s when idle)."""

STOP_SECONDS = 5.0
"""Real seconds that killed processes may take to be gone (0.05 s when idle)."""

PIPE_BYTES = 2**20
"""A snapshot and a screenshot at once; by itself a pipe holds 64 kB."""

LOWEST_DESCRIPTOR = 10
"""Of our pipes; a child gets 0 to 4."""

POLL_SECONDS = 0.01
"""Between looks at the file in which Chromium writes its port."""


class ChromiumProcess:
    """One Chromium process tree that we started. Made by `start`."""

    def __init__(self, process: psutil.Process, profile: Path, pipe: Pipe) -> None:
        self._process = process
        self._profile = profile
        self._pipe = pipe
        self._numbers = count(1)

    @classmethod
    async def start(
        cls, executable: Path, args: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> ChromiumProcess:
        """Start and wait until it answers. ``environment`` is laid over our own.

        Raises:
            BrowserError: it ended, or did not answer in time; with what it said.
        """
        profile = Path(tempfile.mkdtemp(prefix="rollwright-chromium-"))
        arguments = [*AUTOMATION_ARGS, *args, f"--user-data-dir={profile}"]
        try:
            pid, (reading, writing) = _spawn(executable, arguments, {**os.environ, **(environment or {})}, profile)
        except BaseException:
            shutil.rmtree(profile, ignore_errors=True)
            raise
        pipe = Pipe(reading, writing, max_size=MAX_MESSAGE)
        process = cls(psutil.Process(pid), profile, pipe)
        try:
            await pipe.open()
            await process._answer(executable)
        except BaseException:
            await process.stop()
            raise
        return process

    def client(self) -> CdpClient:
        """The way to the browser.

        There is one pipe: who asks again takes it from who asked before.
        """
        return CdpClient(self._pipe, CBOR, self._numbers)

    async def address(self) -> str:
        """``ws://127.0.0.1:<port>/devtools/browser/<id>`` of a browser that was started with ``--remote-debugging-port=0``.

        Raises:
            BrowserError: it does not listen.
        """
        port_file = self._profile / "DevToolsActivePort"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.running:
            if port_file.exists() and len(lines := port_file.read_text().split()) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            await asyncio.sleep(POLL_SECONDS)
        raise BrowserError(f"Chromium {self.pid} does not listen on a port{self._said()}")

    @property
    def pid(self) -> int:
        """Of the browser process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def family(self) -> list[psutil.Process]:
        """The browser process and its children, the browser first; empty when it is gone."""
        try:
            return [self._process, *self._process.children(recursive=True)] if self.running else []
        except psutil.NoSuchProcess:
            return []

    def memory_mb(self) -> float:
        """Proportional set size of all its processes (shared pages once) in MiB.

        Resident size where the system does not tell.
        """
        return sum(_memory(process) for process in self.family()) / 2**20

    async def stop(self) -> None:
        """Kill it and its children, and remove its profile."""
        family = self.family()
        self._pipe.close()
        await asyncio.to_thread(_end, family or [self._process])
        # A child may still write while it dies; what is left then is a few files in the temporary folder.
        await asyncio.to_thread(shutil.rmtree, self._profile, True)

    async def _answer(self, executable: Path) -> None:
        client = self.client()
        try:
            async with asyncio.timeout(START_SECONDS):
                await client.call("Browser.getVersion", None, None)
        except TimeoutError:
            raise BrowserError(
                f"{executable} did not start: it did not answer within {START_SECONDS:g} s{self._said()}"
            ) from None
        except ConnectionLost as error:
            raise BrowserError(f"{executable} did not start: {error}{self._said()}") from error
        finally:
            client.close()

    def _said(self) -> str:
        lines = (self._profile / "log").read_text(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def _spawn(
    executable: Path, args: Sequence[str], environment: Mapping[str, str], profile: Path
) -> tuple[int, tuple[int, int]]:
    """Its process id, and our ends of the pipe.

    To read from and to write to.
    """
    try:
        with ExitStack() as kept, ExitStack() as theirs:  # each is closed also where the next one cannot be opened
            to_chromium, from_chromium = _pipe(theirs, kept), _pipe(kept, theirs)
            log = os.open(profile / "log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
            theirs.callback(os.close, log)
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            theirs.callback(os.close, null)
            # Chromium's debugging pipe is on descriptors 3 and 4.
            places = [(null, 0), (null, 1), (log, 2), (to_chromium[0], 3), (from_chromium[1], 4)]
            pid = os.posix_spawn(
                executable,
                [str(executable), *args],
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, ours, place) for ours, place in places],
                setpgroup=0,  # Ctrl-C is for us: what is under way is broken off by who began it
            )
            kept.pop_all()
    except OSError as error:
        raise BrowserError(f"{executable} did not start: {error}") from error
    return pid, (from_chromium[0], to_chromium[1])


def _pipe(*closed_by: ExitStack) -> tuple[int, int]:
    """A new pipe's reading and writing ends.

    Both are above the descriptors that a child gets, so that none is overwritten by another.

    Args:
        closed_by: What closes the reading end, and what closes the writing end.
    """
    ends = os.pipe()
    try:
        with suppress(
            PermissionError
        ):  # a user may have so many bytes in pipes; a smaller one is filled and read in turns
            fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        moved = []
        for end, stack in zip(ends, closed_by, strict=True):
            moved.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR))
            stack.callback(os.close, moved[-1])
    finally:
        for end in ends:
            os.close(end)
    return moved[0], moved[1]


def _end(family: list[psutil.Process]) -> None:
    """Kill them.

    There is nothing to save in a profile that is thrown away, and an orderly end takes a second.
    """
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue  # it ended with its browser
    psutil.wait_procs(family, timeout=STOP_SECONDS)


def _memory(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
        return int(getattr(full, "pss", 0) or full.rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0  # it ended while we looked
