"""Starts, watches and stops the trainer from the flow's process. Imports no torch."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from envs.types import DiskError, ReadError, StorageError, TrainingError
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.disk import raise_disk_errors, try_to_write
from training.ledger.store import RunStore, read_json, write_json
from training.trainer.control.heartbeat import HEARTBEAT, Silence
from training.trainer.control.link import LOOK_SECONDS, OwnerLink
from training.trainer.control.processes import (
    end_process_trees,
    rank_environment,
    start_process,
    torchrun,
)
from training.trainer.resume import find_resume_point
from training.trainer.spec import TrainerSpec

logger = logging.getLogger(__name__)

STORAGE_ERRORS = {kind.__name__: kind for kind in (StorageError, DiskError, ReadError)}
"""Errors of a trainer that the flow's process raises with the same type."""
LOG_TAIL_LINES = 20
"""Number of lines of trainer.log in an error message if there is no error.json."""


class Group(Protocol):
    """The processes of a trainer, on one machine or several."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def alive(self) -> bool:
        """True while no process has ended."""

    def ended(self) -> str:
        """Describe how the processes ended."""

    def stop(self, timeout: float) -> None:
        """End the remaining processes. Does nothing if all have ended."""


class TrainerNodes(Protocol):
    """Machines on which a trainer can be started."""

    @property
    def host(self) -> str:
        """Address of this process for the machines."""

    def rendezvous(self) -> str:
        """Return a free HOST:PORT of the first machine."""

    def start(self, run_dir: Path, link: OwnerLink) -> Group:
        """Start `control.node.run_node` on each machine; closing the link ends it."""


class TrainerProcess:
    """The trainer's process group of one run.

    Create it with ``start``. Call ``stop`` in a ``finally``, or use it as a context manager.
    """

    def __init__(self, store: RunStore, group: Group, link: OwnerLink, silence: float = 0.0) -> None:
        self._store = store
        self._group = group
        self._link = link
        self._silence = silence

    @classmethod
    def start(cls, run_dir: Path, spec: TrainerSpec, nodes: TrainerNodes | None = None) -> TrainerProcess:
        """Write the spec and start the process group; ``wait_until_ready`` waits for it.

        The calling process becomes the owner: when it dies, so does the trainer.

        Args:
            nodes: Machines of the trainer; ``None``: this one.

        Raises:
            StorageError: The latest policy is damaged; the message names the file and the remedy.
            TrainingError: No version can be resumed from.
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
        changes = {"resume_from": point.version, "owner": link.address, "token": link.token}
        if nodes:
            changes["rendezvous"] = nodes.rendezvous()
        spec = spec.model_copy(update=changes)
        try:
            write_json(store.trainer_path / "config.json", spec)
            group = nodes.start(store.root, link) if nodes else LocalGroup.start(store, spec)
        except BaseException:
            link.close()
            raise
        return cls(store, group, link, spec.trainer.silence)

    @property
    def group(self) -> Group:
        """Processes of the trainer."""
        return self._group

    @property
    def alive(self) -> bool:
        """True while no process has ended."""
        return self._group.alive

    def wait_until_ready(self, timeout: float) -> dict[str, Any]:
        """Wait until the trainer waits for batches; return ``ready.json``.

        Raises the errors of ``wait_for_policy``.
        """
        return self._wait_for(self._store.trainer_path / "ready.json", timeout)

    def wait_for_policy(self, version: int, timeout: float) -> dict[str, Any]:
        """Wait until a version is published and return its manifest. Its batch must be written.

        Raises:
            TrainingError: The trainer died (the message has its error or the end of its log), shows
                no progress, or ``timeout`` is over.
            StorageError: The trainer ended because of a damaged file.
            DiskError: The trainer ended because the run's folder cannot be written to.
        """
        self._link.announce_batch(version)
        return self._wait_for(self._store.policy_path(version) / MANIFEST, timeout)

    def stop(self, timeout: float = 10.0) -> None:
        """End the processes, and kill what is left after ``timeout`` seconds."""
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
            # The process is checked first, so that the file check sees everything it wrote before
            # it ended.
            alive = self.alive
            if path.exists():
                document: dict[str, Any] = read_json(path)
                return document
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
                ranks = self._link.hanging_ranks()
                held = f"; the others wait for {', '.join(ranks)}" if ranks else ""
                raise TrainingError(
                    f"{self._group.name} has made no progress for {self._silence:g} s (trainer.silence){held}, "
                    f"see {self._log}"
                )
            if time.monotonic() > deadline:
                raise TrainingError(f"no {path} within {timeout:.0f} s; {self._group.name} still runs, see {self._log}")
            looks = self._link.wait(looks, LOOK_SECONDS)

    def _raise_storage_error(self) -> None:
        """Raise the trainer's storage error, which no restart can repair."""
        path = self._store.trainer_path / "error.json"
        if not path.exists():
            try_to_write(self._store.trainer_path)  # the trainer may have failed to write even that file
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
    """Trainer processes on this machine: a single rank, or torchrun's agent with its ranks."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    @classmethod
    def start(cls, store: RunStore, spec: TrainerSpec) -> LocalGroup:
        """Start the processes; returns at once."""
        processes = spec.trainer.processes
        return cls(
            start_process(command(store.root, processes), group_environment(spec), store.trainer_path / "trainer.log")
        )

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"the trainer (pid {self.process.pid})"

    @property
    def alive(self) -> bool:
        """True while the first process runs."""
        return self.process.poll() is None

    def ended(self) -> str:
        """Describe how the process ended."""
        return f"exit code {self.process.returncode}"

    def stop(self, timeout: float) -> None:
        """Send SIGTERM, then SIGKILL to what is left after ``timeout`` seconds."""
        end_process_trees([self.process], timeout)


def command(run_dir: Path, processes: int) -> list[str]:
    """Return the command line of the group.

    A single process is started directly: torchrun's agent would import torch, which costs 3 s and
    200 MB, and would have nothing to watch.
    """
    if processes == 1:
        return [sys.executable, "-m", "training.trainer", "--run-dir", str(run_dir)]
    rendezvous = {"rdzv-backend": "static", "master-addr": "127.0.0.1", "master-port": free_port()}
    return torchrun(run_dir, {"nnodes": 1, "nproc-per-node": processes, **rendezvous})


def group_environment(spec: TrainerSpec) -> dict[str, str]:
    """Return the group's variables.

    A single rank gets those that torchrun would set. Loopback avoids a look-up of the host's name;
    its store binds any free port, since no other process connects to it.
    """
    variables = rank_environment(spec, "127.0.0.1")
    if spec.trainer.processes == 1:
        variables |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return variables


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port of this machine's address ``host`` without a listener."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port
