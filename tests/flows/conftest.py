"""Real runs as a user starts them: ``python -m flows.train`` in a process of its own.

One Prefect server serves them, and the flows that tests call in their own process; these share one
Dask cluster too. The server's start takes 25 s on a busy machine, that of a Dask worker 5 s of CPU.
A test has its own where starting or ending is what it tries.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks_lib.config import PROJECT, merge, parse_assignments
from training.ledger.store import RunStore
from training.trainer.control.processes import wait_until_dead

from .services import DaskCluster, PrefectServer, Services, as_from_a_terminal

SMALL = {
    "iterations": 3,
    "tasks.kinds": "[click-test-2,click-option,enter-text,click-tab]",
    "rollout.groups_per_iteration": 4,
    "rollout.concurrency": 8,
    "algorithm.group_size": 4,
    "evaluation.episodes": 8,
    "evaluation.every": 3,
    "trainer.epochs": 1,
}
"""Laid over the quickstart preset: every part of it, in seconds."""


class Run:
    """A training run that is started, watched, killed and started again."""

    def __init__(
        self, root: Path, run_id: str, environment: Mapping[str, str], within: Sequence[str] = (), **changes: object
    ) -> None:
        """
        Args:
            environment: Variables that say where Prefect is.
            within: Words before the command, as those that run it on another host.
        """
        self.store = RunStore(root / run_id)
        self._log = root.parent / f"{run_id}.log"
        settings = {**SMALL, **changes, "root": root, "run_id": run_id}
        self.values = merge(
            {"preset": "quickstart"}, parse_assignments([f"{key}={value}" for key, value in settings.items()])
        )
        """What it is started with, for a flow that is called in the test's own process."""
        self._command = [*within, sys.executable, "-m", "flows.train", "--preset", "quickstart"]
        self._command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self._environment = {**os.environ, **environment}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=PROJECT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=as_from_a_terminal,
            )

    def finish(self, timeout: float = 400) -> None:
        """Start (unless it runs) and wait for the end, which must be a good one."""
        if self.process is None:
            self.start()
        assert self.process is not None
        try:
            code = self.process.wait(timeout)
        finally:
            self.process.kill()
            self.process = None
        assert code == 0, self.log()

    def wait_until(self, condition: Callable[[], bool], timeout: float = 300) -> None:
        """Watch the run's folder; fails with the log when the run ends first."""
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log()}"
            assert time.monotonic() < deadline, f"nothing after {timeout} s:\n{self.log()}"
            time.sleep(0.05)  # a look may list hundreds of files

    def kill(self) -> None:
        """SIGKILL the flow process; its children must go by themselves."""
        assert self.process is not None
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None
        alive = wait_until_dead(family, 30)
        assert not alive, f"outlived the flow process by 30 s: {[(p.pid, p.cmdline()) for p in alive]}"

    def children(self, *words: str) -> list[psutil.Process]:
        """Descendants whose command line has all ``words``, oldest first."""
        assert self.process is not None
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if all(word in " ".join(process.cmdline()) for word in words):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return sorted(found, key=lambda process: process.pid)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """The session's Prefect server."""
    services = Services(tmp_path_factory.mktemp("server"))
    try:
        yield PrefectServer(services, tmp_path_factory.mktemp("prefect-server"))
    finally:
        services.stop_all()


@pytest.fixture(scope="session")
def deployed(server: PrefectServer) -> PrefectServer:
    """The server with what prefect.yaml declares."""
    for command in (("work-pool", "create", "local", "--type", "process"), ("--no-prompt", "deploy", "--all")):
        code, output = server.cli(*command)
        assert code == 0, output
    return server


@pytest.fixture(scope="session")
def ephemeral(server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of runs that start an ephemeral server."""
    home = tmp_path_factory.mktemp("prefect-ephemeral")
    server.copy_database(home)
    return {"PREFECT_HOME": str(home), "PREFECT_API_URL": ""}


@pytest.fixture
def make_run(tmp_path: Path, server: PrefectServer) -> Iterator[Callable[..., Run]]:
    """``make_run(run_id, key=value…)``, on the session's server or where ``prefect`` says. Whatever
    still runs at the end is killed."""
    runs: list[Run] = []

    def make(run_id: str, prefect: Mapping[str, str] = server.environment, **changes: object) -> Run:
        runs.append(Run(tmp_path / "runs", run_id, prefect, **changes))
        (tmp_path / "runs").mkdir(exist_ok=True)
        return runs[-1]

    yield make
    for run in runs:
        run.stop()


@pytest.fixture(scope="session")
def dask_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """The session's Dask cluster, with one worker that can run rollouts: ``cluster.address`` is its
    ``address``."""
    services = Services(tmp_path_factory.mktemp("dask"))
    try:
        cluster = DaskCluster(services)
        with cluster.worker("worker", "--resources", "browser=1"):
            yield cluster
    finally:
        services.stop_all()


@pytest.fixture(scope="session")
def prefect_api(server: PrefectServer) -> Iterator[None]:
    """Flows that run inside the test process use the session's server."""
    with temporary_settings({PREFECT_API_URL: server.url}):
        yield
