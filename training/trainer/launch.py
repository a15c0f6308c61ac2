"""Starts, watches and stops the trainer from the flow's process. Imports no torch."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from envs.types import DiskError, ReadError, StorageError, TrainingError
from training.environment import TORCH_ENVIRONMENT
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.disk import raise_disk_errors, temporary_name
from training.ledger.store import RunStore, read_json, write_json
from training.trainer.heartbeat import HEARTBEAT, Silence
from training.trainer.resume import find_resume_point
from training.trainer.spec import TrainerSpec

logger = logging.getLogger(__name__)

STORAGE_ERRORS = {kind.__name__: kind for kind in (StorageError, DiskError, ReadError)}
"""Errors of a trainer that are raised as they are in the flow's process."""
TRIAL_BYTES = 2**20
"""Written when a trainer died without a word, to see whether its disk is full."""
LOG_TAIL_LINES = 20
"""Lines of trainer.log in the message of an error without error.json."""


class TrainerProcess:
    """The trainer's process group of one run.

    Make it with ``start``; ``stop`` it in a ``finally``, or use it as a context manager.
    """

    def __init__(self, store: RunStore, process: subprocess.Popen[bytes], silence: float = 0.0) -> None:
        self._store = store
        self._process = process
        self._silence = silence

    @classmethod
    def start(cls, run_dir: Path, spec: TrainerSpec) -> TrainerProcess:
        """Write the spec and start the process group; returns at once (``wait_until_ready`` to wait for it).

        The calling process becomes the owner unless the spec names one: when the owner dies, so does the trainer.

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
        if spec.owner_pid is None:
            owner = psutil.Process()
            spec = spec.model_copy(update={"owner_pid": owner.pid, "owner_started": owner.create_time()})
        spec = spec.model_copy(update={"resume_from": point.version})
        write_json(store.trainer_path / "config.json", spec)
        with (
            raise_disk_errors(store.trainer_path / "trainer.log"),
            open(store.trainer_path / "trainer.log", "ab") as log,
        ):
            process = subprocess.Popen(
                command(store.root, spec.trainer.processes),
                env={**os.environ, **group_environment(spec)},
                cwd=project_root(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(store, process, spec.trainer.silence)

    @property
    def pid(self) -> int:
        """Of the process that was started: the only rank, or torchrun's agent."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """It has not ended yet."""
        return self._process.poll() is None

    def pids(self) -> list[int]:
        """All live processes of the group."""
        return [member.pid for member in self._members()]

    def wait_until_ready(self, timeout: float, poll_seconds: float = 0.05) -> dict[str, Any]:
        """Wait until it waits for batches; what ``ready.json`` says. Errors as in ``wait_for_policy``."""
        return self._wait_for(self._store.trainer_path / "ready.json", timeout, poll_seconds)

    def wait_for_policy(self, version: int, timeout: float, poll_seconds: float = 0.05) -> dict[str, Any]:
        """Wait until a version is published; its manifest.

        Raises:
            TrainingError: The trainer died (its error, or the end of its log), gives no sign of progress, or the time is over.
            StorageError: It ended because of a damaged file.
            DiskError: It ended because the run's folder cannot be written to.
        """
        return self._wait_for(self._store.policy_path(version) / MANIFEST, timeout, poll_seconds)

    def stop(self, timeout: float = 10.0) -> None:
        """End it: SIGTERM, then SIGKILL to what is left after ``timeout`` seconds. Harmless when it has ended."""
        members = self._members()
        for signum in (signal.SIGTERM, signal.SIGKILL):
            # torchrun hands SIGTERM on to its ranks, which have sessions of their own; SIGKILL has to name each.
            for member in members if signum == signal.SIGKILL else members[:1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(signum)
            _, members = psutil.wait_procs(members, timeout)
        self._process.wait(timeout)

    def __enter__(self) -> TrainerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _wait_for(self, path: Path, timeout: float, poll_seconds: float) -> dict[str, Any]:
        deadline, silence = time.monotonic() + timeout, Silence(self._store.trainer_path)
        while True:
            # The process first: what it wrote before it ended is seen by the look that follows.
            alive = self.alive
            if path.exists():
                found: dict[str, Any] = read_json(path)
                return found
            if not alive:
                self._raise_storage_error()
                raise TrainingError(
                    f"the trainer ended (exit code {self._process.returncode}) before {path} was there: {self._cause()}"
                )
            if 0 < self._silence < silence.seconds():
                raise TrainingError(
                    f"the trainer (pid {self.pid}) has made no progress for {self._silence:g} s (trainer.silence), see {self._log}"
                )
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"no {path} within {timeout:.0f} s; the trainer (pid {self.pid}) still runs, see {self._log}"
                )
            time.sleep(poll_seconds)

    def _raise_storage_error(self) -> None:
        """Raise what the trainer found wrong with the run's storage, which no restart mends."""
        path = self._store.trainer_path / "error.json"
        if not path.exists():
            # It could not even write that. Large enough to be refused where little is left.
            trial = temporary_name(path)
            with raise_disk_errors(self._store.trainer_path):
                try:
                    trial.write_bytes(bytes(TRIAL_BYTES))
                finally:
                    trial.unlink(missing_ok=True)
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
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if self._log.exists() else []
        return f"the end of {self._log}:\n" + "\n".join(lines)

    def _members(self) -> list[psutil.Process]:
        if not self.alive:
            return []
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
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


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def project_root() -> Path:
    """The folder that holds the ``training`` package, from which ``-m training.trainer`` is found."""
    return Path(__file__).resolve().parents[2]


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), names[0])
