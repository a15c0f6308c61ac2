"""Starts, watches and stops the trainer from the flow's process. Imports no torch."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import psutil

from envs.types import DiskError, ReadError, StorageError, TrainingError
from training.environment import TORCH_ENVIRONMENT
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.disk import raise_disk_errors, try_to_write
from training.ledger.store import RunStore, read_json, write_json
from training.trainer.heartbeat import HEARTBEAT, Silence
from training.trainer.link import LOOK_SECONDS, OwnerLink
from training.trainer.node import end_family, project_root
from training.trainer.resume import find_resume_point
from training.trainer.spec import TrainerSpec

logger = logging.getLogger(__name__)

STORAGE_ERRORS = {kind.__name__: kind for kind in (StorageError, DiskError, ReadError)}
"""Errors of a trainer that are raised as they are in the flow's process."""
LOG_TAIL_LINES = 20
"""Lines of trainer.log in the message of an error without error.json."""


class Group(Protocol):
    """The processes of a trainer, on one machine or several."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def alive(self) -> bool:
        """None of it has ended yet."""

    def ended(self) -> str:
        """How it ended."""

    def stop(self, timeout: float) -> None:
        """End what is left of it. Harmless when all has ended."""


class Nodes(Protocol):
    """Machines on which a trainer can be started."""

    @property
    def host(self) -> str:
        """Address under which they reach this process."""

    def rendezvous(self) -> str:
        """A free HOST:PORT of the first of them."""

    def start(self, run_dir: Path, link: OwnerLink) -> Group:
        """Have ``training.trainer.node.run_node`` run on each; closing the link ends it."""


class TrainerProcess:
    """The trainer's process group of one run.

    Make it with ``start``; ``stop`` it in a ``finally``, or use it as a context manager.
    """

    def __init__(self, store: RunStore, group: Group, link: OwnerLink, silence: float = 0.0) -> None:
        self._store = store
        self._group = group
        self._link = link
        self._silence = silence

    @classmethod
    def start(cls, run_dir: Path, spec: TrainerSpec, nodes: Nodes | None = None) -> TrainerProcess:
        """Write the spec and start the process group; returns at once (``wait_until_ready`` to wait for it).

        The calling process becomes the owner: when it dies, so does the trainer.

        Args:
            nodes: The machines; ``None``: this one.

        Raises:
            StorageError: The latest policy is damaged; names the file and says how to go on.
            TrainingError: There is no version to go on from.
            DiskError: The run's folder cannot be written to.
        """
        store = RunStore(Path(run_dir).resolve())
        point = find_resume_point(store, spec)
        if point.damage:
            logger.warning("%s; updates after v%d are done again from their batches", point.damage, point.version)
        with raise_disk_errors(store.trainer_path):
            store.trainer_path.mkdir(parents=True, exist_ok=True)
        for name in ("ready.json", "error.json", HEARTBEAT):
            (store.trainer_path / name).unlink(missing_ok=True)
        link = OwnerLink(nodes.host if nodes else "127.0.0.1")
        told = {"resume_from": point.version, "owner": link.address, "token": link.token}
        if nodes:
            told["rendezvous"] = nodes.rendezvous()
        spec = spec.model_copy(update=told)
        try:
            write_json(store.trainer_path / "config.json", spec)
            group = nodes.start(store.root, link) if nodes else LocalGroup.start(store, spec)
        except BaseException:
            link.close()
            raise
        return cls(store, group, link, spec.trainer.silence)

    @property
    def group(self) -> Group:
        """Its processes."""
        return self._group

    @property
    def alive(self) -> bool:
        """It has not ended yet."""
        return self._group.alive

    def wait_until_ready(self, timeout: float) -> dict[str, Any]:
        """Wait until it waits for batches; what ``ready.json`` says. Errors as in ``wait_for_policy``."""
        return self._wait_for(self._store.trainer_path / "ready.json", timeout)

    def wait_for_policy(self, version: int, timeout: float) -> dict[str, Any]:
        """Wait until a version, whose batch is written, is published; its manifest.

        Raises:
            TrainingError: The trainer died (its error, or the end of its log), gives no sign of progress, or the time is over.
            StorageError: It ended because of a damaged file.
            DiskError: It ended because the run's folder cannot be written to.
        """
        self._link.ring(version)
        return self._wait_for(self._store.policy_path(version) / MANIFEST, timeout)

    def stop(self, timeout: float = 10.0) -> None:
        """End it: what is left after ``timeout`` seconds is killed. Harmless when it has ended."""
        self._group.stop(timeout)
        self._link.close()

    def __enter__(self) -> TrainerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _wait_for(self, path: Path, timeout: float) -> dict[str, Any]:
        deadline, silence = time.monotonic() + timeout, Silence(self._store.trainer_path)
        looks = self._link.looks
        while True:
            # The process first: what it wrote before it ended is seen by the look that follows.
            alive = self.alive
            if path.exists():
                found: dict[str, Any] = read_json(path)
                return found
            if not alive:
                self._raise_storage_error()
                raise TrainingError(
                    f"the trainer ended ({self._group.ended()}) before {path} was there: {self._cause()}"
                )
            if lost := self._link.lost_nodes():
                (name, seconds), *_ = lost.items()
                raise TrainingError(
                    f"{name} of the trainer has not been heard of for {seconds:.0f} s: is its machine up?"
                )
            if 0 < self._silence < silence.seconds():
                raise TrainingError(
                    f"{self._group.name} has made no progress for {self._silence:g} s (trainer.silence), see {self._log}"
                )
            if time.monotonic() > deadline:
                raise TrainingError(f"no {path} within {timeout:.0f} s; {self._group.name} still runs, see {self._log}")
            looks = self._link.wait(looks, LOOK_SECONDS)

    def _raise_storage_error(self) -> None:
        """Raise what the trainer found wrong with the run's storage, which no restart mends."""
        path = self._store.trainer_path / "error.json"
        if not path.exists():
            try_to_write(self._store.trainer_path)  # it could not even write that
        elif (error := read_json(path))["type"] in STORAGE_ERRORS:
            raise STORAGE_ERRORS[error["type"]](error["message"])

    @property
    def _log(self) -> Path:
        return self._store.trainer_path / "trainer.log"

    def _cause(self) -> str:
        path = self._store.trainer_path / "error.json"
        if path.exists():
            error = read_json(path)
            return f"{error['type']}: {error['message']}"
        logs = [log for log in (self._log, *sorted(self._store.trainer_path.glob("node-*.log"))) if log.exists()]
        return "\n".join(f"the end of {log}:\n{_tail(log)}" for log in logs)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])


class LocalGroup:
    """Processes on this machine: the only rank, or torchrun's agent with its ranks."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    @classmethod
    def start(cls, store: RunStore, spec: TrainerSpec) -> LocalGroup:
        """Start it; returns at once."""
        log_path = store.trainer_path / "trainer.log"
        with raise_disk_errors(log_path), open(log_path, "ab") as log:
            process = subprocess.Popen(
                command(store.root, spec.trainer.processes),
                env={**os.environ, **group_environment(spec)},
                cwd=project_root(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process)

    @property
    def name(self) -> str:
        """For messages."""
        return f"the trainer (pid {self.process.pid})"

    @property
    def alive(self) -> bool:
        """It has not ended yet."""
        return self.process.poll() is None

    def ended(self) -> str:
        """How it ended."""
        return f"exit code {self.process.returncode}"

    def stop(self, timeout: float) -> None:
        """End it: SIGTERM, then SIGKILL to what is left after ``timeout`` seconds."""
        end_family(self.process, timeout)

    def pids(self) -> list[int]:
        """All live processes of the group, the one that was started first."""
        try:
            leader = psutil.Process(self.process.pid)
            return [leader.pid, *(child.pid for child in leader.children(recursive=True))] if self.alive else []
        except psutil.NoSuchProcess:
            return []


def command(run_dir: Path, processes: int) -> list[str]:
    """The command line of the group.

    One process is started directly: torchrun's agent would import torch first, which costs 3 s and 200 MB for nothing to watch.
    """
    arguments = ["-m", "training.trainer", "--run-dir", str(run_dir)]
    if processes == 1:
        return [sys.executable, *arguments]
    rendezvous = [
        "--nnodes",
        "1",
        "--rdzv-backend",
        "static",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(free_port()),
    ]
    return [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node", str(processes), *arguments]


def group_environment(spec: TrainerSpec) -> dict[str, str]:
    """Variables of the group: what torchrun would set for a single rank, and loopback instead of a look-up of the host's name."""
    variables = {**TORCH_ENVIRONMENT, "GLOO_SOCKET_IFNAME": _loopback(), "PYTHONUNBUFFERED": "1"}
    threads = spec.trainer.torch_threads
    if threads or spec.trainer.processes > 1:
        variables["OMP_NUM_THREADS"] = str(threads or max(1, (os.cpu_count() or 1) // spec.trainer.processes))
    if spec.trainer.processes == 1:
        variables |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return variables


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of an address of this machine, the loopback interface's by default, that nobody listens on right now."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), names[0])
