"""The worker's side of a template: starts its processes, and asks it for instances."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import logging
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from envs.cancel_scope import finish_shielded
from envs.sites.recipes.build import SiteBuild, in_use
from envs.sites.recipes.postgres import PostgresServer, find_program, template_urls
from envs.sites.recipes.recipe import SiteRecipe
from envs.types import SiteError

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
"""Real seconds until a template must have loaded and warmed its application."""
ANSWER_SECONDS = 60.0
"""Real seconds for one answer of a template."""
STOP_SECONDS = 10.0
"""Real seconds until all processes must have ended; the kernel kills them."""
MAX_LINE = 16 << 20
"""Longest answer of a template, in bytes: the hashes of a state with many files."""
PREFIX = "rollwright-site-"
"""Beginning of the names of folders for sockets, logs and mounts."""
POSTGRES_FOLDER = "postgres"
"""Folder of such a folder with the socket of a PostgreSQL server."""
OWNER = "owner"
"""File of such a folder that its worker has locked, until the worker ends."""
_GUEST = Path(__file__).resolve().parents[1]
_COMMAND = (
    f"import sys; sys.path.insert(0, {str(_GUEST)!r}); from site_guest.supervisor import main; sys.path.pop(0); main()"
)


def remove_leftovers() -> list[Path]:
    """Remove folders of workers that were killed together with their supervisors; return them."""
    removed = []
    with _locked_temporary() as temporary:
        for folder in sorted(temporary.glob(f"{PREFIX}*")):
            try:
                with (folder / OWNER).open("a") as owner:  # which a kill may have left out
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            except (BlockingIOError, FileNotFoundError, PermissionError):
                continue  # it is in use, removed meanwhile, or another user's
            removed.append(folder)
    return removed


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder of sockets, logs and mounts; removed at the end, or by another worker."""
    remove_leftovers()
    with _locked_temporary() as temporary:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=temporary))
        owner = (folder / OWNER).open("w")
        fcntl.flock(owner, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a supervisor removes it too
        owner.close()


@contextmanager
def _locked_temporary() -> Iterator[Path]:
    """Lock the folder of temporary files: one process makes or removes sites' folders at a time."""
    temporary = Path(tempfile.gettempdir())
    handle = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield temporary
    finally:
        os.close(handle)


def private_memory(pids: Iterable[int]) -> int:
    """Return the bytes that processes and their descendants share with no other process.

    Those that have ended, or are another user's, count as 0.
    """
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            for process in (root := psutil.Process(pid), *root.children(recursive=True)):
                with suppress(psutil.Error):
                    total += process.memory_full_info().uss
    return total


def require_memory(recipe: SiteRecipe) -> None:
    """Check that a further instance may be launched.

    Raises:
        SiteError: Too little memory is free.
    """
    floor, free = recipe.limits.free_memory_mb, psutil.virtual_memory().available >> 20
    if free < floor:
        raise SiteError(
            f"site {recipe.name}: {free} MB of memory are free and limits.free_memory_mb is {floor}; "
            f"run fewer episodes at a time (rollout.concurrency), or lower it in the recipe"
        )


@dataclass(frozen=True)
class TemplateReport:
    """Report of a template on itself once it is ready."""

    warm: bool
    """True if instances are forks of the loaded application; else each loads it."""
    isolated: bool
    """True if each instance has namespaces of its own."""
    own_users: bool
    """True if each instance has a user of its own, who is not root."""
    storage: str
    """``btrfs``, ``overlay``, ``copy`` or ``volume``."""
    notices: tuple[str, ...]
    """Remarks on what is missing here, and on what a fork would lose."""
    seconds: float


class InstanceTemplate:
    """Base of what launches the instances of a build. Used in one event loop."""

    def __init__(self, build: SiteBuild) -> None:
        self.build = build
        self._folder: Path | None = None
        self._held = ExitStack()

    @property
    def folder(self) -> Path:
        """Folder of sockets and logs, which the instances see too."""
        assert self._folder is not None, "start it first"
        return self._folder

    def socket_of(self, name: str) -> Path:
        """Return the socket of an instance."""
        return self.folder / f"{name}.socket"

    async def _hold(self) -> None:
        """Keep the build, and make the folder."""
        self._held.enter_context(in_use(self.build))
        self._folder = await asyncio.to_thread(self._held.enter_context, own_folder())

    async def _release(self) -> None:
        await asyncio.to_thread(self._held.close)

    @property
    def _name(self) -> str:
        return self.build.recipe.name


class SiteTemplate(InstanceTemplate):
    """The template of a build on this machine."""

    def __init__(self, build: SiteBuild, *, isolate: bool = True) -> None:
        """
        Args:
            isolate: False for plain copies without namespaces, as where root is not allowed.
        """
        super().__init__(build)
        self._isolate = isolate
        self._process: subprocess.Popen[bytes] | None = None
        self._life: int | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[TemplateReport]
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count(1)
        self._copied = dict[str, dict[str, str]]()
        """URLs of the databases of instances that are copies of others, until they are launched."""
        self._variables = sorted(build.recipe.state.postgres.values())
        self.postgres: PostgresServer | None = None
        """Databases of the instances, once it is started; ``None`` if the recipe has none."""

    @property
    def alive(self) -> bool:
        """True while it can be asked."""
        return self._reading is not None and not self._reading.done()

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        assert self._process is not None, "start it first"
        return self._process.pid

    async def start(self) -> TemplateReport:
        """Start the processes and wait until the application is loaded and warm.

        Raises:
            SiteError: It is not built, or it fails or takes too long.
        """
        self.build.require_finished()
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        ours, theirs = socket.socketpair()
        life_read, life_write = os.pipe()
        self._life = life_write
        try:
            try:
                await self._hold()
                self._process = await asyncio.to_thread(self._spawn, theirs, life_read)
            finally:  # while they are open here, the end of the processes is not seen
                theirs.close()
                os.close(life_read)
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE)
            self._reading = loop.create_task(self._read(reader))
            async with asyncio.timeout(START_SECONDS):
                report = await self._ready
            if self._variables:
                self.postgres = PostgresServer(self.folder / POSTGRES_FOLDER, self._variables)
                await self.postgres.start()
        except TimeoutError:
            await self.close()
            raise SiteError(f"site {self._name} is not ready after {START_SECONDS:g} s; ask for less in warm") from None
        except BaseException:
            await finish_shielded(self.close())
            raise
        for notice in report.notices:
            logger.warning("site %s: %s", self._name, notice)
        return report

    async def close(self) -> None:
        """End all processes and remove their files. A second close does nothing."""
        if self.postgres is not None:
            await self.postgres.close()
        if self._life is not None:
            os.close(self._life)  # the supervisor ends everything
            self._life = None
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, STOP_SECONDS)
            except subprocess.TimeoutExpired:
                logger.warning("site %s: its processes do not end; the supervisor is %d", self._name, self._process.pid)
        await self._release()

    async def launch(self, name: str) -> bool:
        """Start an instance and return whether it is known to be ready.

        A fork is, once it serves, if the template itself has answered the ready path.

        Raises:
            SiteError: Too little memory is free, or it cannot be started.
        """
        require_memory(self.build.recipe)
        environment = self._copied.pop(name, {})
        if self.postgres is not None and not environment:
            environment = await self.postgres.create(name)
        answer = await self.ask("launch", name=name, environment=environment)
        return bool(answer["ready"])

    async def copy(self, name: str, to: Iterable[str]) -> None:
        """Give new instances the state and the databases that another one has now. They are
        launched later.

        Raises:
            SiteError: It has ended, or its databases cannot be copied.
        """
        await self.ask("copy", name=name, names=list(to))
        if self.postgres is not None:
            for new in to:
                self._copied[new] = await self.postgres.create(new, source=name)
                name = new  # the next one is copied from this one, to which no application is connected

    def unique_memory(self) -> int:
        """Return the bytes that its processes share with no other. Takes milliseconds."""
        return 0 if self._process is None else private_memory([self._process.pid])

    async def drop(self, name: str) -> None:
        """End an instance and drop its state and databases.

        Raises:
            SiteError: The template has ended, and the instance with it.
        """
        self._copied.pop(name, None)
        await self.ask("drop", name=name)
        if self.postgres is not None:
            await self.postgres.drop(name)

    async def hash_state(self, name: str) -> dict[str, str]:
        """Return a hash for each file and table of an instance's state that counts."""
        files = self.build.recipe.state
        asked = await self.ask("hash", name=name, derived=files.derived, ephemeral=files.ephemeral)
        tables = await self.postgres.hash_state(name, files.ephemeral) if self.postgres is not None else {}
        return {**asked["parts"], **tables}

    async def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Ask the template and return its answer.

        Raises:
            SiteError: It has ended, or the answer is an error.
        """
        if not self.alive or self._writer is None:
            raise SiteError(f"site {self._name}: its template has ended; the next episode starts it again")
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(json.dumps({"id": number, "do": do, **values}).encode() + b"\n")
            async with asyncio.timeout(ANSWER_SECONDS):
                values = await answer
        except TimeoutError:
            raise SiteError(f"site {self._name}: its template does not answer {do} in {ANSWER_SECONDS:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in values:
            raise SiteError(f"site {self._name}: {do}: {values['error']}")
        return values

    def _spawn(self, control: socket.socket, life: int) -> subprocess.Popen[bytes]:
        recipe, build = self.build.recipe, self.build
        config = {
            "folder": str(self._folder),
            "state": str(build.state),
            "life": life,
            "control": control.fileno(),
            "isolate": self._isolate,
            "kind": recipe.kind,
            "application": recipe.start.application,
            "command": recipe.start.command,
            "after_fork": recipe.start.after_fork,
            "warm": recipe.warm,
            "ready": recipe.ready.path,
            "disk_mb": recipe.limits.disk_mb,
            "postgres": self._server_of_databases(),
            "bounds": recipe.limits.model_dump(include={"memory_mb", "processes", "open_files", "written_mb"}),
        }
        return subprocess.Popen(
            [build.python, "-P", "-c", _COMMAND, json.dumps(config)],
            cwd=build.folder,
            env={**build.environment(), **template_urls(self.folder / POSTGRES_FOLDER, self._variables)},
            pass_fds=(control.fileno(), life),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _server_of_databases(self) -> dict[str, str] | None:
        if not self._variables:
            return None
        folder = str(self.folder / POSTGRES_FOLDER)
        return {"program": find_program("postgres"), "cluster": str(self.build.cluster), "folder": folder}

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Give each line of the template to who waits for it, until it ends."""
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "id" in message:
                    waiting = self._waiting.get(message["id"])
                    if waiting is not None and not waiting.done():
                        waiting.set_result(message)
                elif not message.pop("ready"):
                    self._ready.set_exception(
                        SiteError(f"site {self._name} cannot be started:\n{message['why'].strip()}")
                    )
                else:
                    self._ready.set_result(TemplateReport(**{**message, "notices": tuple(message["notices"])}))
        except ConnectionError:
            logger.info("site %s: the connection to its template broke", self._name)
        finally:
            ended = SiteError(f"site {self._name}: its template has ended")
            for asked in self._waiting.values():
                if not asked.done():
                    asked.set_exception(ended)
            if not self._ready.done():
                self._ready.set_exception(SiteError(f"{ended} before its application was loaded and warm"))
            if self._ready.done() and not self._ready.cancelled():
                self._ready.exception()  # read here: its caller may have given up
