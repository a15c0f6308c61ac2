"""The template of a site: loads the application once and forks an instance for each episode.

It has one thread and answers one line of JSON after another: ``launch``, ``copy``, ``drop``,
``look``, ``hash`` and ``save``. Questions about the state of an instance are answered by a child
that enters the instance's mount namespace, so that launches need not wait.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import select
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import kernel, postgres, servers
from .limits import (
    InstanceBounds,
    become,
    closed_above,
    hide,
    new_user,
    problem_of,
    reached_limit,
)
from .processes import fork_kept, fork_losses, is_exiting, kill, stopped
from .state import hash_state, read_database
from .storage import Storage

MAX_LOG = 2000
"""Last characters of an instance's log that an error shows."""
SHARED_FOLDERS = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Folders that all users may write; each instance has its own."""
OWN_FOLDER = SHARED_FOLDERS[0] / "own"
"""Folder of an instance's temporary files where files of the site are below ``/tmp``."""


@dataclass
class _Instance:
    pid: int
    """Its first process, or the keeper of that; 0 once it has ended."""
    first: int
    state: Path
    user: int | None
    """Its user; ``None`` for that of the template."""
    status: int = 0
    """Exit status once it has ended, or minus the signal."""


def run_template(config: dict[str, Any]) -> None:
    """Load the application, report on it, and answer until the control socket closes."""
    control = socket.socket(fileno=config["control"])
    try:
        template = _Template(config)
        report = template.prepare()
    except BaseException:
        _send(control, {"ready": False, "why": traceback.format_exc(limit=-4)})
        return
    _send(control, {"ready": True, **report})
    template.answer(control)


class _Template:
    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._folder = Path(config["folder"])
        self._instances: dict[str, _Instance] = {}
        self._copied: dict[str, int | None] = {}
        """Users of instances whose state is a copy of another one's, until they are launched."""
        self._asked: dict[int, tuple[int, int, str]] = {}
        """Pipes of children that answer a question: its id, the child, and the answer so far."""
        self._launched: dict[int, dict[str, Any]] = {}
        """Pipes of instances that do not serve yet, each with the answer to its launch."""
        self._application: Any = None
        self._storage: Storage
        self._isolated = not config["missing"]
        self._bounds = InstanceBounds(**config["bounds"])
        self._answers = False
        """The application has answered the ready path: its forks are ready once they serve."""
        self._group: int | None = None
        """Group of the instances' users; ``None`` if they run as the template does."""
        self._shared = [place for place in SHARED_FOLDERS if place.is_dir()]
        """Folders in whose place an instance sees its own."""

    def prepare(self) -> dict[str, Any]:
        """Make the storage, load and warm the application; return what a person should know."""
        config, begun = self._config, time.monotonic()
        missing, no_users = config["missing"], ""
        seed = Path(config["state"])
        if self._isolated:
            try:
                kernel.unshare(kernel.NEW_MOUNTS)
                kernel.make_mounts_private()
                kernel.mount("proc", "/proc", "proc")  # of this process namespace
                no_users = self._separate(seed)
                self._storage = self._stored(seed, mounts=True)
            except OSError as error:
                self._isolated, missing = False, str(error)
        if not self._isolated:
            self._group = None
            self._storage = self._stored(seed, mounts=False)
        if server := config["postgres"]:
            if self._isolated:  # the kernel then removes the server's shared memory with its namespace
                kernel.unshare(kernel.NEW_IPC)
            self._folder.chmod(0o711)  # instances, which are other users, enter the socket's folder
            postgres.start_copy(server["program"], Path(server["cluster"]), Path(server["folder"]))
        warm, statuses = self._isolated and config["kind"] != "process", dict[str, int]()
        notices = [
            self._storage.notice,
            f"instances share this machine's processes, network and user, and limits.processes and "
            f"limits.written_mb are not kept: {missing}" * bool(missing),
            f"instances run as root, and limits.processes is not kept: {no_users}" * bool(no_users),
        ]
        if warm:
            os.chdir(seed)
            self._application = servers.load(config["application"])
            if config["kind"] == "asgi":
                importlib.import_module("uvicorn")
            ask = servers.warm_asgi if config["kind"] == "asgi" else servers.warm_wsgi
            statuses = {
                path: ask(self._application, path) for path in dict.fromkeys([*config["warm"], config["ready"]])
            }
            self._answers = statuses.get(config["ready"], 500) < 400
            notices += [
                f"{path} answered {status} to a warm request"
                for path, status in statuses.items()
                if status >= 400 and path in config["warm"]
            ]
            notices += fork_losses(seed)
            gc.collect()
            gc.freeze()  # so that collections of an instance do not copy the template's memory
        return {
            "warm": warm,
            "isolated": self._isolated,
            "own_users": self._group is not None,
            "storage": self._storage.kind,
            "notices": [notice for notice in notices if notice],
            "seconds": time.monotonic() - begun,
        }

    def _separate(self, seed: Path) -> str:
        """Hide what an instance's user may not see; return why there can be no such users."""
        program = shutil.which(self._config["command"][0]) if self._config["command"] else None
        program = sys.executable if program is None else program
        needed = [seed.parent, Path(sys.base_prefix), Path(sys.prefix), Path(program).parent, *map(Path, sys.path)]
        needed = [folder for folder in needed if folder.is_dir()]
        kept = [*needed, self._folder]
        shown = kept if self._config["postgres"] else needed  # the database's socket is in the folder
        for folder in needed:
            while (closed := closed_above(folder)) is not None:
                if closed in needed:
                    return f"other users may not enter {closed}"
                hide(closed, kept)
        for place in [place for place in self._shared if any(folder.is_relative_to(place) for folder in kept)]:
            hide(place, kept)
            if any(folder.is_relative_to(place) for folder in shown):
                self._shared.remove(place)
        if not any(place == OWN_FOLDER.parent for place in self._shared):
            OWN_FOLDER.mkdir()
            self._shared.append(OWN_FOLDER)
        group = new_user(())
        if not (why := problem_of(group, group, needed, program)):
            self._group = group
        return why

    def _stored(self, seed: Path, *, mounts: bool) -> Storage:
        disk_mb, written_mb = self._config["disk_mb"], self._bounds.written_mb
        return Storage(self._folder, seed, disk_mb, written_mb, mounts=mounts, group=self._group)

    def answer(self, control: socket.socket) -> None:
        """Answer lines until the socket closes."""
        unread = b""
        while True:
            readable, _, _ = select.select([control.fileno(), *self._asked, *self._launched], [], [])
            for pipe in [number for number in readable if number != control.fileno()]:
                self._finish(control, pipe)
            if control.fileno() not in readable:
                continue
            piece = control.recv(65536)
            if not piece:
                return
            *lines, unread = (unread + piece).split(b"\n")
            for line in lines:
                self._answer_line(control, json.loads(line))

    def _answer_line(self, control: socket.socket, asked: dict[str, Any]) -> None:
        try:
            answer = getattr(self, f"_{asked['do']}")(asked)
        except Exception as error:
            _send(control, {"id": asked["id"], "error": f"{type(error).__name__}: {error}"})
            return
        if answer is not None:
            _send(control, {"id": asked["id"], **answer})

    def _launch(self, asked: dict[str, Any]) -> None:
        """Fork an instance, on its copied state if it has one.

        The answer comes when it serves, or has ended.
        """
        name = asked["name"]
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._folder / f"{name}.socket"))
        listener.listen(128)
        serving, signal_serving = os.pipe()
        try:
            if name in self._copied:
                user = self._copied.pop(name)
            else:
                user = self._new_user()
                self._storage.make(name, user)
            pid, first = self._fork(lambda: self._serve(name, asked["environment"], listener, user, signal_serving))
        except BaseException:
            self._storage.drop(name)
            (self._folder / f"{name}.socket").unlink()
            os.close(serving)
            raise
        finally:
            listener.close()
            os.close(signal_serving)
        self._instances[name] = _Instance(pid, first, self._storage.folder_of(name), user)
        self._launched[serving] = {"id": asked["id"], "pid": pid}

    def _copy(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Give new instances the state that another one has now; its processes stand still
        meanwhile."""
        source = self._instances[asked["name"]]
        with stopped(source.pid, kept=not self._isolated):
            for name in asked["names"]:
                self._copied[name] = self._new_user()
                self._storage.copy(asked["name"], name, source.user, self._copied[name])
        return {}

    def _new_user(self) -> int | None:
        taken = [*self._copied.values(), *(one.user for one in self._instances.values())]
        return None if self._group is None else new_user(user or 0 for user in taken)

    def _drop(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = asked["name"]
        if name in self._copied:  # it was not launched
            del self._copied[name]
            self._storage.drop(name)
        instance = self._instances.pop(name, None)
        if instance is not None:
            kill(instance.pid, kept=not self._isolated)
            self._storage.drop(name)
            (self._folder / f"{name}.socket").unlink(missing_ok=True)
            (self._folder / f"{name}.log").unlink(missing_ok=True)
        return {}

    def _look(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return whether an instance lives, the end of its log, and the limit that it reached."""
        instance = self._instances[asked["name"]]
        log = self._folder / f"{asked['name']}.log"
        text = log.read_text(errors="replace")[-MAX_LOG:] if log.exists() else ""
        if instance.pid:
            ended, status = os.waitpid(instance.pid, 0 if is_exiting(instance.first) else os.WNOHANG)
            if ended:
                instance.pid, instance.status = 0, os.waitstatus_to_exitcode(status)
        alive = instance.pid != 0
        return {"alive": alive, "status": instance.status, "log": text, "limit": reached_limit(text)}

    def _hash(self, asked: dict[str, Any]) -> None:
        patterns = [*asked["ephemeral"], *asked["derived"]]
        instance = self._instances[asked["name"]]
        self._ask_child(asked, instance, lambda: hash_state(instance.state, patterns))

    def _save(self, asked: dict[str, Any]) -> None:
        """Save a database of an instance, as it is now, into a file that the worker reads."""
        instance = self._instances[asked["name"]]
        file = os.open(asked["to"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

        def save() -> dict[str, Any]:
            content = read_database(instance.state / asked["file"])
            with os.fdopen(file, "wb") as saved:
                saved.write(content)
            return {"bytes": len(content)}

        try:
            self._ask_child(asked, instance, save)
        finally:
            os.close(file)

    def _ask_child(self, asked: dict[str, Any], instance: _Instance, work: Callable[[], dict[str, Any]]) -> None:
        if instance.pid == 0 or is_exiting(instance.first):
            raise RuntimeError("its server has ended")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                if self._isolated:
                    kernel.enter(f"/proc/{instance.pid}/ns/mnt", kernel.NEW_MOUNTS)
                if instance.user is not None and self._group is not None:
                    become(instance.user, self._group)
                answer = work()
            except BaseException as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            with os.fdopen(write, "w") as pipe:
                json.dump({"id": asked["id"], **answer}, pipe)
            os._exit(0)
        os.close(write)
        self._asked[read] = (asked["id"], pid, "")

    def _finish(self, control: socket.socket, pipe: int) -> None:
        if pipe in self._launched:
            served = os.read(pipe, 1) != b""
            os.close(pipe)
            _send(control, {**self._launched.pop(pipe), "ready": served and self._answers})
            return
        number, pid, text = self._asked[pipe]
        piece = os.read(pipe, 65536).decode()
        if piece:
            self._asked[pipe] = (number, pid, text + piece)
            return
        del self._asked[pipe]
        os.close(pipe)
        if status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            _send(control, {"id": number, "error": f"the process that reads its state ended with status {status}"})
        else:
            control.sendall(text.encode() + b"\n")

    def _fork(self, work: Callable[[], None]) -> tuple[int, int]:
        """Run ``work`` in a child: the first process of a namespace if that is allowed, else of a
        keeper. Return the ids of what has to be waited for, and of the child."""
        if self._isolated:
            kernel.unshare(kernel.NEW_PROCESSES)
            pid = first = os.fork()
        else:
            pid, first = fork_kept()
        if pid:
            if self._isolated:  # the next child is the first process of another namespace
                kernel.enter("/proc/self/ns/pid", kernel.NEW_PROCESSES)
            return pid, first
        try:
            kernel.die_with_parent()
            work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)

    def _serve(
        self, name: str, environment: dict[str, str], listener: socket.socket, user: int | None, serving: int
    ) -> None:
        """Become the instance: isolate it, make its handles anew, and serve."""
        config = self._config
        os.setsid()
        log = os.open(self._folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for handle in (config["control"], *self._asked, *self._launched):
            os.close(handle)
        temporary = self._storage.temporary(name)
        state = str(self._storage.folder_of(name))
        if self._isolated:
            kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_HOST_NAME)
            self._storage.lay(name)
            kernel.mount("proc", "/proc", "proc")
            own = os.open(temporary, os.O_PATH)  # its path may be below one of them
            for place in self._shared:
                kernel.bind(Path(f"/proc/self/fd/{own}"), place)
            os.close(own)
            temporary = OWN_FOLDER if OWN_FOLDER in self._shared else OWN_FOLDER.parent
            kernel.raise_loopback()
        self._bounds.apply(self._storage.largest_mb, own_user=user is not None)
        if user is not None and self._group is not None:
            become(user, self._group)
            kernel.stay_readable()
            kernel.die_with_parent()  # the change of user has undone it
            os.environ["HOME"] = str(temporary)
        os.environ.update(environment, SITE_STATE=state, TMPDIR=str(temporary))
        os.chdir(state)
        random.seed(0)  # after a fork Python seeds it anew
        if config["kind"] == "process":
            os.close(serving)
            servers.serve_process(config["command"], state, listener, own_network=self._isolated)
            return
        application = self._application or servers.load(config["application"])
        if config["after_fork"]:
            servers.load(config["after_fork"])()
        os.write(serving, b"1")
        os.close(serving)
        (servers.serve_asgi if config["kind"] == "asgi" else servers.serve_wsgi)(application, listener)


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")
