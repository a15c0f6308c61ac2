"""Machines of a distributed trainer: workers of its Dask cluster that offer the resource
``trainer``."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import distributed

from envs.types import ConfigError, TrainingError
from tasks_lib.processes.dask_clients import TRAINER_RESOURCE, run_on_workers, workers_offering
from training.trainer.control.launch import Group, free_port
from training.trainer.control.link import OwnerLink
from training.trainer.control.node import END_SECONDS, run_node

JOIN_SECONDS = 600.0
"""Longest wait for missing machines, such as after one of them died."""


class DaskNodes:
    """The first ``count`` workers that offer the resource, by name."""

    def __init__(self, client: distributed.Client, count: int, wait_seconds: float = 0.0) -> None:
        """Find the workers.

        Raises:
            ConfigError: there are fewer, also after ``wait_seconds``.
        """
        self._client = client
        self._workers = trainer_workers(client, count, wait_seconds)
        self.host = own_address(client.scheduler.address)

    def rendezvous(self) -> str:
        """Return a free port of the first machine, as ``HOST:PORT``."""
        first = self._workers[0]
        host = host_of(first)
        port = run_on_workers(self._client, free_port, host, workers=[first])[first]
        if isinstance(port, Exception):
            raise TrainingError(f"worker {first}, which is to train, gives no port: {port}") from port
        return f"{host}:{port}"

    def start(self, run_dir: Path, link: OwnerLink) -> Group:
        """Run each machine's share as a task of its worker.

        It is queued behind a share that is still ending there.
        """
        futures = [
            self._client.submit(
                run_node,
                run_dir,
                number,
                host_of(worker),
                key=f"trainer-{link.token[:8]}-node-{number}",
                workers=[worker],
                resources={TRAINER_RESOURCE: 1},
                pure=False,
            )
            for number, worker in enumerate(self._workers)
        ]
        return DaskGroup(futures, link)


class DaskGroup:
    """The shares of one trainer, each a future."""

    def __init__(self, futures: list[distributed.Future], link: OwnerLink) -> None:
        self._futures = futures
        self._link = link

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"the trainer on {len(self._futures)} machines"

    @property
    def alive(self) -> bool:
        """True while no share has ended and no worker is lost."""
        return all(future.status == "pending" for future in self._futures)

    def ended(self) -> str:
        """Say how each share ended."""
        return ", ".join(f"node {number}: {self._end(future)}" for number, future in enumerate(self._futures))

    def _end(self, future: distributed.Future) -> str:
        if future.status == "finished":
            return f"exit code {future.result(timeout=END_SECONDS)}"
        if future.status == "error":
            error = future.exception(timeout=END_SECONDS)
            return f"{type(error).__name__}: {error}"
        return "runs" if future.status == "pending" else str(future.status)

    def stop(self, timeout: float) -> None:
        """Tell every machine to end its share, and wait for that.

        Machines that do not answer are given up.
        """
        self._link.close()
        deadline = time.monotonic() + timeout + END_SECONDS
        while any(future.status == "pending" for future in self._futures) and time.monotonic() < deadline:
            time.sleep(0.05)
        for future in self._futures:
            future.cancel()


def trainer_workers(client: distributed.Client, count: int, wait_seconds: float) -> list[str]:
    """Return the addresses of ``count`` workers that offer the resource, by name.

    Raises:
        ConfigError: fewer offer it, also after ``wait_seconds``.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        offering = workers_offering(client, TRAINER_RESOURCE)
        if len(offering) >= count:
            return offering[:count]
        if time.monotonic() > deadline:
            raise ConfigError(
                f"trainer.nodes: {count}, but {len(offering)} workers of the Dask cluster offer the resource {TRAINER_RESOURCE!r}; "
                f"start more with: dask worker {client.scheduler.address} --resources {TRAINER_RESOURCE}=1 --nthreads 2"
            )
        time.sleep(1.0)


def host_of(address: str) -> str:
    """Return the host of a Dask address.

    >>> host_of("tcp://10.0.0.7:40001")
    '10.0.0.7'
    """
    return str(urlsplit(address).hostname)


def own_address(scheduler: str) -> str:
    """Return this machine's address as the scheduler's machine reaches it; nothing is sent.

    Raises:
        TrainingError: there is no route to the scheduler.
    """
    parts = urlsplit(scheduler)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname, parts.port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise TrainingError(f"no way to the Dask scheduler at {scheduler}: {error}") from error
