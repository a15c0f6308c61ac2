"""Containers as instances: one for each episode, started cold, removed with its volumes.

A container has no network but its loopback. As root, its port is reached by sockets that are made
in its network namespace; else the engine publishes the port on this machine's loopback, and the
container reaches what the engine's network reaches.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Any

import orjson

from envs.cancel_scope import finish_shielded
from envs.sites.recipes.build import SiteBuild
from envs.sites.recipes.engine import OWNER_LABEL, ContainerEngine, find_engine, owner_of_containers
from envs.sites.recipes.template import InstanceTemplate, TemplateReport, private_memory, require_memory
from envs.sites.site_guest import kernel
from envs.sites.site_guest.limits import reached_limit
from envs.sites.site_guest.servers import RETRY_SECONDS, pass_on
from envs.sites.site_guest.state import hash_state
from envs.types import SiteError

LOG_LINES = "20"
"""Last lines of a container's log that an error shows."""
PROCESSES = 32_768
"""Processes of a container's users on the machine: the kernel's usual bound; the real one is by
control group."""
_SIDE_FILES = ("-wal", "-journal")


@dataclass
class _Container:
    name: str
    """Name that the engine knows."""
    pid: int = 0
    port: int = 0
    """Published port; 0 if its network namespace is entered."""
    server: asyncio.Server | None = None
    relays: set[asyncio.Task[None]] = field(default_factory=set)


class ContainerTemplate(InstanceTemplate):
    """Starts the containers of a recipe; has the methods of a `SiteTemplate`."""

    def __init__(self, build: SiteBuild, *, isolate: bool = True) -> None:
        """
        Args:
            isolate: False to publish ports, as where root is not allowed.
        """
        super().__init__(build)
        self._isolated = isolate and os.geteuid() == 0
        self._engine: ContainerEngine
        self._containers: dict[str, _Container] = {}
        self._started = False

    @property
    def alive(self) -> bool:
        """True from start to close."""
        return self._started

    async def start(self) -> TemplateReport:
        """Find the engine and the image, and remove what killed workers left.

        Raises:
            SiteError: There is no engine, or the image is not on this machine.
        """
        self.build.require_finished()
        begun = time.monotonic()
        self._engine = await asyncio.to_thread(find_engine)
        if not await asyncio.to_thread(self._engine.has_image, self.build.image):
            raise SiteError(
                f"site {self._name}: its image {self.build.image} is not on this machine; "
                f"run: python -m flows.sites build {self._name}"
            )
        await asyncio.to_thread(self._engine.remove_leftovers)
        await self._hold()
        self._started = True
        missing = "its containers have the network of the engine, because only root can enter another one"
        notices = () if self._isolated else (missing,)
        seconds = time.monotonic() - begun
        return TemplateReport(False, self._isolated, False, "volume", notices, seconds)

    async def close(self) -> None:
        """Remove all containers and files. A second close does nothing."""
        ends = await asyncio.gather(*(self.drop(name) for name in list(self._containers)), return_exceptions=True)
        self._started = False
        await self._release()
        for end in ends:
            if end is not None:
                raise end

    async def launch(self, name: str) -> bool:
        """Start a container; whether it is ready is not known then.

        Raises:
            SiteError: Too little memory is free, or it cannot be started.
        """
        require_memory(self.build.recipe)
        await finish_shielded(self._start(name))  # a start that is cut short could leave a container
        return False

    async def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Do what a `SiteTemplate` is asked: ``look`` or ``save``.

        Raises:
            SiteError: The engine fails, or the container has ended.
        """
        answer: dict[str, Any] = await getattr(self, f"_{do}")(**values)
        return answer

    def unique_memory(self) -> int:
        """Return the bytes that its containers' processes share with no other."""
        return private_memory(one.pid for one in list(self._containers.values()) if one.pid)

    async def drop(self, name: str) -> None:
        """Remove a container with its volumes."""
        made = self._containers.get(name)
        if made is not None:
            if made.server is not None:
                made.server.close()
            for task in made.relays:
                task.cancel()
            await asyncio.to_thread(self._engine.remove, made.name)
            self._containers.pop(name, None)
            self.socket_of(name).unlink(missing_ok=True)

    async def hash_state(self, name: str) -> dict[str, str]:
        """Return a hash for each file and table of a container's state that counts."""
        files = self.build.recipe.state
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            for folder in files.folders:
                (Path(place) / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
            await self._copy(name, [f"{folder}/." for folder in files.folders], Path(place))
            seen = await asyncio.to_thread(hash_state, Path(place), [*files.derived, *files.ephemeral])
        parts: dict[str, str] = seen["parts"]
        return parts

    async def _run(self, *arguments: str) -> str:
        try:
            return await asyncio.to_thread(self._engine.run, *arguments)
        except SiteError as error:
            raise SiteError(f"site {self._name}: {error}") from None

    async def _start(self, name: str) -> None:
        made = self._containers[name] = _Container(f"{self.folder.name}-{name}")
        identifier = (await self._run(*self._arguments(made.name))).split()[-1]
        (seen,) = orjson.loads(await self._run("inspect", "--type", "container", made.name))
        made.pid = seen["State"]["Pid"]
        port = f"{self.build.recipe.start.port}/tcp"
        if not self._isolated and (published := seen["NetworkSettings"]["Ports"].get(port)):
            made.port = int(published[0]["HostPort"])
        if self._isolated and seen["State"]["Running"] and not _is_container(made.pid, identifier):
            look = await self._look(name)
            if look["alive"]:
                raise SiteError(
                    f"site {self._name}: the engine {self._engine.command} runs on another machine than this"
                )
        made.server = await asyncio.start_unix_server(lambda *ends: self._lead(made, *ends), self.socket_of(name))

    def _arguments(self, name: str) -> list[str]:
        recipe = self.build.recipe
        start, limits = recipe.start, recipe.limits
        network = ["--network", "none"] if self._isolated else ["--publish", f"127.0.0.1::{start.port}"]
        temporary = f"rw,mode=1777,size={limits.written_mb}m"
        return [
            *("run", "--detach", "--pull", "never", "--stop-timeout", "0"),
            *("--read-only", "--security-opt", "no-new-privileges"),
            *("--name", name, "--label", f"{OWNER_LABEL}={owner_of_containers()}"),
            *network,
            *("--pids-limit", str(limits.processes)),
            *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
            *("--ulimit", f"nofile={limits.open_files}:{limits.open_files}"),
            *("--ulimit", f"nproc={PROCESSES}:{PROCESSES}"),  # Podman's own default may be more than is allowed
            *(part for folder in start.temporary for part in ("--tmpfs", f"{folder}:{temporary}")),
            *(part for folder in recipe.state.folders for part in ("--volume", folder)),
            *(part for name, value in start.environment.items() for part in ("--env", f"{name}={value}")),
            self.build.image,
            *(word.replace("{port}", str(start.port)) for word in start.command),
        ]

    async def _lead(self, made: _Container, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay a connection to the server in the container, once it listens."""
        task = asyncio.current_task()
        assert task is not None
        made.relays.add(task)
        try:
            up_reader, up_writer = await self._connected(made)
            await asyncio.gather(pass_on(reader, up_writer), pass_on(up_reader, writer))
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()  # the container has ended, or is dropped: its caller cancels this
        finally:
            made.relays.discard(task)
            writer.close()

    async def _connected(self, made: _Container) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if made.port:
            return await asyncio.open_connection("127.0.0.1", made.port)
        while True:
            inside = _socket_in(f"/proc/{made.pid}/ns/net")
            try:
                address = ("127.0.0.1", self.build.recipe.start.port)
                await asyncio.get_running_loop().sock_connect(inside, address)
                return await asyncio.open_connection(sock=inside)
            except ConnectionRefusedError:
                inside.close()
                await asyncio.sleep(RETRY_SECONDS)
            except BaseException:
                inside.close()
                raise

    async def _look(self, name: str) -> dict[str, Any]:
        """Return whether a container runs, the end of its log, and the limit that it reached."""
        container = self._containers[name].name
        (seen,) = orjson.loads(await self._run("inspect", "--type", "container", container))
        _, output, errors = await asyncio.to_thread(self._engine.attempt, "logs", "--tail", LOG_LINES, container)
        state, log = seen["State"], f"{output}{errors}"
        limit = "limits.memory_mb" if state.get("OOMKilled") else reached_limit(log)
        return {"alive": state["Running"], "status": state["ExitCode"], "log": log, "limit": limit}

    async def _save(self, name: str, file: str, to: str) -> dict[str, Any]:
        """Save a database of a container, with what its log holds."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            await self._copy(name, (file,), Path(place), optional=[f"{file}{end}" for end in _SIDE_FILES])
            await asyncio.to_thread(_merge, Path(place) / file.lstrip("/"), Path(to))
        return {}

    async def _copy(self, name: str, paths: Iterable[str], place: Path, optional: Iterable[str] = ()) -> None:
        """Copy files of a container into a folder, as they are at one moment."""
        container = self._containers[name].name
        await self._run("pause", container)
        try:
            for path in paths:
                (place / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                await self._run("cp", f"{container}:{path}", str(place / path.lstrip("/")))
            for path in optional:
                source = f"{container}:{path}"
                await asyncio.to_thread(self._engine.attempt, "cp", source, str(place / path.lstrip("/")))
        finally:
            await asyncio.shield(self._run("unpause", container))


def _merge(database: Path, to: Path) -> None:
    """Copy a database with what its log holds; it is a copy itself, so that it may be written."""
    try:
        with (
            closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True)) as source,
            closing(sqlite3.connect(to)) as copy,
        ):
            source.backup(copy)
    except sqlite3.Error as error:
        raise SiteError(f"{database.name}: {error}") from error


def _socket_in(namespace: str) -> socket:
    """Make a TCP socket in another network namespace; the thread that enters it ends then."""

    def make() -> socket:
        kernel.enter(namespace, kernel.NEW_NETWORK)
        made = socket()
        made.setblocking(False)
        return made

    with ThreadPoolExecutor(1) as entering:
        return entering.submit(make).result()


def _is_container(pid: int, identifier: str) -> bool:
    """Return True if a process of this machine is the first one of a container, by its mounts."""
    try:
        return identifier in Path(f"/proc/{pid}/mountinfo").read_text()
    except FileNotFoundError:
        return False
