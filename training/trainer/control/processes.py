"""Starts and ends the processes of a trainer on one machine, and ends them with their parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from envs.types import ConfigError
from training.environment import TORCH_ENVIRONMENT
from training.ledger.disk import raise_disk_errors
from training.trainer.spec import TrainerSpec

ORPHAN_EXIT_CODE = 86
"""Exit code of a process whose owner or parent is gone."""
DEAD_POLL_SECONDS = 0.01
"""Pause between two looks whether killed processes are dead."""


def torchrun(run_dir: Path, options: Mapping[str, object]) -> list[str]:
    """Return the command line of torchrun's agent, which starts the ranks of this machine."""
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "training.trainer", "--run-dir", str(run_dir)]


def rank_environment(spec: TrainerSpec, address: str) -> dict[str, str]:
    """Return the variables of a machine's ranks; gloo and NCCL use the address's interface."""
    settings, interface = spec.trainer, interface_of(address)
    variables = {**TORCH_ENVIRONMENT, "GLOO_SOCKET_IFNAME": interface, "PYTHONUNBUFFERED": "1"}
    if settings.nodes:
        variables["NCCL_SOCKET_IFNAME"] = interface
    if settings.nodes or settings.torch_threads or settings.processes > 1:
        per_machine = settings.processes // max(1, settings.nodes)
        variables["OMP_NUM_THREADS"] = str(settings.torch_threads or max(1, (os.cpu_count() or 1) // per_machine))
    return variables


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address.

    Raises:
        ConfigError: no interface has it.
    """
    interfaces = {
        entry.address: name
        for name, addresses in psutil.net_if_addrs().items()
        for entry in addresses
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }
    if address not in interfaces:
        raise ConfigError(
            f"no network interface of {socket.gethostname()} has the address {address}; "
            f"it has {', '.join(sorted(interfaces))}"
        )
    return interfaces[address]


def start_process(command: list[str], variables: dict[str, str], log_path: Path) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; its output is added to the log.

    Raises:
        DiskError: The log cannot be written to.
    """
    with raise_disk_errors(log_path), open(log_path, "ab") as log:
        return subprocess.Popen(
            command,
            env={**os.environ, **variables},
            cwd=project_root(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def project_root() -> Path:
    """Return the folder of the ``training`` package, where ``-m training.trainer`` is found."""
    return Path(__file__).resolve().parents[3]


def process_started(pid: int) -> float | None:
    """Return a live process's start time in seconds since the epoch.

    ``None`` if there is no such process or it is a zombie.
    """
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def end_processes(processes: Sequence[psutil.Process], seconds: float, children: Sequence[psutil.Process] = ()) -> None:
    """Send SIGTERM to processes, then after ``seconds`` SIGKILL to all that are left.

    Args:
        children: Processes that get SIGKILL alone, since their parent forwards SIGTERM to them.
    """
    receivers, left = processes, [*processes, *children]
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for process in receivers:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signum)
        receivers = left = wait_until_dead(left, seconds)


def wait_until_dead(processes: Collection[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until processes are dead, and return those that still live after ``seconds``.

    A dead process counts although it is still listed: the system's first process removes orphans,
    some seconds later on some systems.
    """
    given_up = time.monotonic() + seconds
    while (alive := [process for process in processes if _is_alive(process)]) and time.monotonic() < given_up:
        time.sleep(DEAD_POLL_SECONDS)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_process_trees(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """End processes and their descendants.

    The processes get SIGTERM in their order; after ``seconds`` SIGKILL ends what is left.
    """
    # Another process may have the id of one that has ended.
    running = [process for process in processes if process.poll() is None]
    leaders, children = list[psutil.Process](), list[psutil.Process]()
    for process in running:
        with suppress(psutil.NoSuchProcess):
            leaders.append(psutil.Process(process.pid))
            children += leaders[-1].children(recursive=True)
    # Ranks have their own sessions, so each needs its own SIGKILL.
    end_processes(leaders, seconds, children)
    for process in running:
        process.wait(seconds)


def start_watchdog(owner_pid: int | None = None, owner_started: float | None = None, interval: float = 1.0) -> None:
    """Start a daemon thread that ends this process when its owner or parent has died.

    It checks every ``interval`` seconds. The parent counts too: behind torchrun it is the agent,
    and nothing else would notice its SIGKILL.
    """
    parent = os.getppid()

    def watch() -> None:
        while True:
            if os.getppid() != parent:
                exit_orphan(f"parent process {parent} is gone")
            if owner_pid is not None and not _same(process_started(owner_pid), owner_started):
                exit_orphan(f"owner process {owner_pid} is gone")
            time.sleep(interval)

    threading.Thread(target=watch, name="trainer-watchdog", daemon=True).start()


def _same(actual: float | None, expected: float | None) -> bool:
    # Both times come from the same clock ticks, and a pid is not reused within 0.1 s.
    return actual is not None and (expected is None or abs(actual - expected) < 0.1)


def exit_orphan(reason: str) -> None:
    """Exit this process at once, with the reason on standard error."""
    print(f"trainer: {reason}, exiting", file=sys.stderr, flush=True)
    # Not sys.exit: the main thread may wait in a collective that never completes. Files appear only
    # by rename, so none is left half-written.
    os._exit(ORPHAN_EXIT_CODE)
