"""Starts the processes of a cluster spec, on this machine or by ssh.

The module `slurm` writes SLURM's batch script.
"""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from envs.types import ConfigError
from tasks_lib.config.cluster_spec import JUDGE_NAME, JUDGE_PORT, SERVE_PORT, ClusterSpec, Role
from tasks_lib.config.reading import PROJECT, resolve_path
from tasks_lib.processes.dask_clients import (
    BROWSER_RESOURCE,
    EVALUATION_RESOURCE,
    TRAINER_RESOURCE,
    connect_client,
    worker_options,
)
from training.environment import DASK_ENVIRONMENT, TORCH_ENVIRONMENT, WORKER_ENVIRONMENT
from training.trainer.control.processes import end_process_trees

logger = logging.getLogger(__name__)

JOIN_SECONDS = 300.0
"""Longest wait for all workers to join the scheduler."""
SERVE_SECONDS = 900.0
"""Longest wait for workers and vLLM servers, which load a model first."""
SCHEDULER_FILE = "scheduler.json"
"""Name of the file in the log folder that Dask's scheduler writes when it listens.

Its port is not polled: another process may hold it and never answer.
"""
RESTART_SECONDS = 5.0
"""Seconds between two checks for processes that have ended."""
END_SECONDS = 15.0
"""Seconds between SIGTERM and SIGKILL."""
SSH = ("ssh", "-tt", "-o", "BatchMode=yes")
"""Command of ssh, with a terminal, so that a remote process ends with its connection."""


@dataclass(frozen=True)
class Launch:
    """One process of a cluster."""

    name: str
    host: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def whole_command(self) -> list[str]:
        """The command with its environment variables."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return ["env", *variables, *self.command] if variables else list(self.command)


RESOURCES: dict[Role, str] = {
    "rollout": BROWSER_RESOURCE,
    "evaluate": EVALUATION_RESOURCE,
    "train": TRAINER_RESOURCE,
}
"""Dask resource that workers of a role offer; other roles have no workers."""


def launches(spec: ClusterSpec, arguments: Sequence[str] = (), places: int = 1) -> list[Launch]:
    """Return the processes of a spec, the scheduler first.

    There is none where the cluster exists already, or Kubernetes has pods instead.

    Args:
        arguments: ``--preset`` and ``--set`` of the run; vLLM servers are started with them too.
        places: Episodes that a worker plays at once (``rollout.concurrency`` of the run).
    """
    if spec.start in ("existing", "kubernetes"):
        return []
    dask, python = (str(_scripts(spec) / name) for name in ("dask", "python"))
    written = ("--scheduler-file", str(logs_of(spec) / SCHEDULER_FILE))
    scheduler = (dask, "scheduler", "--host", spec.scheduler_host, "--port", str(spec.port), "--no-dashboard", *written)
    processes = [Launch("scheduler", spec.scheduler_host, scheduler, DASK_ENVIRONMENT)]
    for role, resource in RESOURCES.items():
        group = spec.group(role)
        if group is None:
            continue
        workers = 1 if role == "train" else group.processes
        torch = TORCH_ENVIRONMENT if role == "train" else WORKER_ENVIRONMENT
        variables = torch | DASK_ENVIRONMENT | {"OMP_NUM_THREADS": str(max(1, group.cpus // group.processes))}
        for number, host in enumerate(spec.hosts_of(role)):
            for worker in range(workers):
                name = f"{role}-{number}" + (f"-{worker}" if workers > 1 else "")
                offer = worker_options(resource, 1 if role == "train" else places)
                options = ("--name", name, "--host", host, "--no-dashboard", *offer)
                command = (dask, "worker", spec.address, *options)
                processes.append(Launch(name, host, command, variables))
    for host in spec.hosts_of("judge"):
        serving = _scripts(spec).parents[1] / ".venv-vllm" / "bin"
        processes.append(Launch("judge", host, judge_command(spec, host, str(serving))))
    return processes + ([] if spec.start == "local" else _servers(spec, python, arguments))


def _servers(spec: ClusterSpec, python: str, arguments: Sequence[str]) -> list[Launch]:
    """Return the vLLM servers of the machines that serve. On this machine a run starts its own."""
    serve = spec.group("serve")
    if serve is None:
        return []
    share = serve.gpus // serve.processes
    servers = []
    for number, host in enumerate(spec.hosts_of("serve")):
        for server in range(serve.processes):
            gpus = list(range(server * share, (server + 1) * share))
            settings = [f"serving.host={host}", f"root={spec.storage}", f"serving.media_root={spec.storage}"]
            settings += [f"serving.api_key={spec.api_key}"] if spec.api_key else []
            settings += [f"serving.gpus=[{gpus}]", f"serving.tensor_parallel={share}"] if share else []
            options = [part for setting in settings for part in ("--set", setting)]
            command = (python, "-m", "flows.serve", *arguments, *options, "--port", str(SERVE_PORT + server))
            servers.append(Launch(f"serve-{number}-{server}", host, command))
    return servers


def judge_command(spec: ClusterSpec, host: str, scripts: str) -> tuple[str, ...]:
    """Return the command of the judge's vLLM server.

    It runs in a shell, which gives it the key in vLLM's own variable.

    Args:
        scripts: Folder of the serving environment's scripts.
    """
    group = spec.group("judge")
    assert group is not None
    parallel = ["--tensor-parallel-size", str(group.gpus)] if group.gpus > 1 else []
    options = ["--served-model-name", JUDGE_NAME, "--host", host, "--port", str(JUDGE_PORT), *parallel]
    command = " ".join(
        shlex.quote(word) if "$" not in word else f'"{word}"'
        for word in (f"{scripts}/vllm", "serve", group.model, *options)
    )
    key = f'VLLM_API_KEY="${{{spec.api_key}}}" ' if spec.api_key else ""
    return ("bash", "-c", f"{key}exec {command}")


def logs_of(spec: ClusterSpec) -> Path:
    """Return the folder of the cluster's logs, on the storage that all machines see."""
    return resolve_path(spec.storage) / "clusters" / spec.name


def _scripts(spec: ClusterSpec) -> Path:
    """Return the folder of the environment's scripts on the machines."""
    return Path(spec.project) / ".venv" / "bin" if spec.project else Path(sys.executable).parent


@contextmanager
def started(spec: ClusterSpec, processes: Sequence[Launch]) -> Iterator[None]:
    """Run the cluster's processes, with all workers joined, until the block ends.

    A process that ends meanwhile is started again: a worker whose connection was cut for long
    closes when the scheduler tells it that it was given up.

    Raises:
        ConfigError: SLURM starts the cluster, a process ended, or a worker did not join.
    """
    if spec.start == "slurm":
        raise ConfigError(
            f"--cluster: {spec.name} is started by slurm: add --dry-run, which prints a batch script, and submit that with sbatch; "
            "it runs the training too"
        )
    if spec.start == "kubernetes":
        raise ConfigError(
            f"--cluster: {spec.name} is started by kubernetes: add --dry-run, which prints manifests, and give them to kubectl apply -f -; "
            "they run the training too"
        )
    running: dict[str, subprocess.Popen[bytes]] = {}
    folder = logs_of(spec)
    (folder / SCHEDULER_FILE).unlink(missing_ok=True)
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(RESTART_SECONDS):
            for launch in processes:
                if (status := running[launch.name].poll()) is not None and not stopped.is_set():
                    logger.warning("%s of %s ended with status %s and is started again", launch.name, spec.name, status)
                    running[launch.name] = _start(spec, launch, folder)

    watcher = threading.Thread(target=watch, name="cluster", daemon=True)
    try:
        for launch in processes:
            running[launch.name] = _start(spec, launch, folder, first=True)
        if processes:
            _wait_for_workers(spec, running, folder)
            watcher.start()
        yield
    finally:
        stopped.set()
        if watcher.is_alive():
            watcher.join()
        # The scheduler last: a worker without one tries to reach it.
        end_process_trees([*reversed(running.values())], END_SECONDS)


def _start(spec: ClusterSpec, launch: Launch, folder: Path, *, first: bool = False) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    command = launch.whole_command
    if spec.start == "ssh":
        project = spec.project or str(PROJECT)
        command = [*SSH, launch.host, f"cd {shlex.quote(project)} && exec {shlex.join(command)}"]
    with open(folder / f"{launch.name}.log", "wb" if first else "ab") as log:
        return subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _wait_for_workers(spec: ClusterSpec, running: dict[str, subprocess.Popen[bytes]], folder: Path) -> None:
    awaited = {name for name in running if not name.startswith(("scheduler", "serve", "judge"))}
    servers = spec.servers() if any(name.startswith("serve") for name in running) else ()
    servers += (spec.judge,) if spec.judge else ()
    seconds = SERVE_SECONDS if servers else JOIN_SECONDS
    deadline, client, missing = time.monotonic() + seconds, None, awaited
    try:
        while True:
            for name, process in running.items():
                if process.poll() is not None:
                    raise ConfigError(
                        f"--cluster: {name} of {spec.name} ended with status {process.returncode}: {_tail(folder / f'{name}.log')}"
                    )
            if client is None and (folder / SCHEDULER_FILE).exists():
                client = connect_client(spec.address)
            if client is not None:
                workers = client.scheduler_info(n_workers=-1)["workers"].values()
                missing = awaited - {str(worker["name"]) for worker in workers}
                if not missing and all(map(_answers, servers)):
                    return
            if time.monotonic() > deadline:
                slow = sorted(missing) if client else ["scheduler"]
                logs = "; ".join(f"{name}: {_tail(folder / f'{name}.log')}" for name in slow)
                raise ConfigError(
                    f"--cluster: {', '.join((*sorted(missing), *servers))} of {spec.name} did not all join {spec.address} "
                    f"or answer within {seconds:.0f} s; see {folder}; {logs}"
                )
            time.sleep(0.5)
    finally:
        if client is not None:
            client.close()


def _answers(server: str) -> bool:
    try:
        with urllib.request.urlopen(f"{server}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")[-6:]
    return " / ".join(line.strip() for line in lines if line.strip()) or f"see {log}"
