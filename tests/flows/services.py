"""Processes that a user starts beside a run: a Prefect server, a worker, a Dask cluster. Real, on
loopback, stopped by their pids."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import orjson
import psutil
from distributed import Client
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.sorting import FlowRunSort

from tasks_lib.config import PROJECT
from training.environment import TORCH_ENVIRONMENT
from training.trainer.control.launch import free_port
from training.trainer.control.processes import wait_until_dead

SCRIPTS = Path(sys.executable).parent
ENTRY = re.compile(r"^(?=\d\d:\d\d:\d\d\.\d)", re.MULTILINE)
"""Where an entry of a server's log begins; a traceback belongs to the line before it."""

FAULT = re.compile(r"\bERROR\b|\bCRITICAL\b|^\S*(?:Error|Exception): ", re.MULTILINE)
"""In a log entry that tells of an error, or has a traceback."""

BUSY = re.compile(r"database is locked|heartbeat persistence failed")
"""What a server on SQLite says on a busy machine and does again."""


QUIET = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")
"""Options of Dask's processes: no pages, and the server of metrics not on port 8787, which somebody
else may have."""

DASK_LOG = {"DASK_LOGGING__DISTRIBUTED": "info"}
"""Waits here read Dask's log; a local cluster of this process may have set the level to warnings,
for its workers."""


def as_from_a_terminal() -> None:
    """For a process that is to be interrupted: a shell has its background jobs ignore Ctrl-C, and
    so what they start; tests may be such a job."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Services:
    """Starts processes that log into ``folder``; ``stop`` ends them and all their descendants, the
    youngest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None, folder: Path = PROJECT
    ) -> None:
        """Start a script of the virtual environment, in a folder."""
        with open(self._log(name), "ab") as log:
            self._running[name] = subprocess.Popen(
                [str(SCRIPTS / command[0]), *command[1:]],
                cwd=folder,
                env={**os.environ, **DASK_LOG, **(environment or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=as_from_a_terminal,
            )

    def wait_until(self, name: str, condition: Callable[[], bool], timeout: float = 180) -> None:
        """Until ``condition``; fails with the log when the process ends first."""
        deadline = time.monotonic() + timeout
        while not condition():
            code = self._running[name].poll()
            assert code is None, f"{name} ended with {code}:\n{self.log(name)}"
            assert time.monotonic() < deadline, f"{name} is not ready after {timeout} s:\n{self.log(name)}"
            time.sleep(0.5)  # a look may ask the Prefect server

    def log(self, name: str) -> str:
        """End of what a process wrote."""
        return self.whole_log(name)[-6000:]

    def logs(self) -> list[str]:
        """Names of the processes that have written one."""
        return [path.stem for path in self.folder.glob("*.log")]

    def whole_log(self, name: str) -> str:
        """All that a process wrote."""
        return self._log(name).read_text(errors="replace")

    def pid(self, name: str) -> int:
        """Of a running process."""
        return self._running[name].pid

    def interrupt(self, name: str) -> int:
        """SIGINT, as Ctrl-C gives; the exit status. What it started itself is left to it."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGINT)
        return process.wait(60)

    def kill(self, name: str) -> None:
        """SIGKILL to the process and all of its family."""
        process = self._running.pop(name)
        started = psutil.Process(process.pid)
        for member in [started, *started.children(recursive=True)]:
            member.kill()
        process.wait()

    def stop(self, name: str) -> None:
        """SIGTERM to the process, SIGKILL to whatever of its family is left after 15 s."""
        process = self._running.pop(name)
        if process.poll() is None:
            started = psutil.Process(process.pid)
            family = [started, *started.children(recursive=True)]
            process.terminate()
            for member in wait_until_dead(family, 15):
                member.kill()
        process.wait()

    def stop_all(self) -> None:
        """Stop everything, last started first."""
        for name in reversed(list(self._running)):
            self.stop(name)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


class PrefectServer:
    """``prefect server start`` with a home of its own, and its API."""

    def __init__(self, services: Services, home: Path) -> None:
        self.home = home
        self._services = services
        self.url = f"http://127.0.0.1:{free_port()}/api"
        self.environment = {
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": self.url,
            "PREFECT_LOGGING_LEVEL": "INFO",
            "PREFECT_WORKER_QUERY_SECONDS": "1",  # a worker asks every 10 to 15 s by itself
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        self._services = services
        self.start()

    def start(self) -> None:
        """Start it (again), and wait until it answers."""
        port = self.url.split(":")[2].removesuffix("/api")
        self._services.start("server", "prefect", "server", "start", "--port", port, environment=self.environment)
        self._services.wait_until("server", self._healthy)

    def copy_database(self, home: Path) -> None:
        """Give another server's home its database, which is migrated already, as it is at a user's
        second start."""
        with (
            closing(sqlite3.connect(self.home / "prefect.db")) as migrated,
            closing(sqlite3.connect(home / "prefect.db")) as copy,
        ):
            migrated.backup(copy)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def errors(self) -> list[str]:
        """First lines of the entries of the server's log that tell of an error, but for a database
        that was locked, which the server tries again: a traceback names it at its end, and a
        heartbeat of a worker names only what was not written."""
        entries = ENTRY.split(self._services.whole_log("server"))
        return [each.partition("\n")[0] for each in entries if FAULT.search(each) and not BUSY.search(each)]

    def cli(self, *arguments: str, timeout: float = 120) -> tuple[int, str]:
        """``prefect …``: exit status, and output on one line (rich wraps it at any width)."""
        done = subprocess.run(
            [str(SCRIPTS / "prefect"), *arguments],
            cwd=PROJECT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def api(self, path: str, *, method: str | None = None, **body: Any) -> Any:
        """POST to the API with a body, GET without; or ``method``. A server whose SQLite is locked
        answers 503, and is asked again, as Prefect's own client asks it."""
        request = urllib.request.Request(
            f"{self.url}/{path}",
            data=orjson.dumps(body) if body else None,
            headers={"Content-Type": "application/json"},
            method=method,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return orjson.loads(answer.read() or b"null")
            except HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:
                    raise
            time.sleep(1)

    def flow_runs(self, name: str) -> list[dict[str, Any]]:
        """Flow runs with this name, oldest first."""
        found: list[dict[str, Any]] = self.api("flow_runs/filter", flow_runs={"name": {"any_": [name]}})
        return sorted(found, key=lambda run: run["created"])


class DaskCluster:
    """A Dask scheduler on loopback, and the workers that join it, started as docs/scaling.md has
    it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.address = f"tcp://127.0.0.1:{free_port()}"
        port = self.address.rsplit(":", 1)[1]
        services.start("scheduler", "dask", "scheduler", "--host", "127.0.0.1", "--port", port, *QUIET)
        services.wait_until("scheduler", lambda: self.address in services.log("scheduler"))

    @contextmanager
    def worker(self, name: str, *options: str) -> Iterator[None]:
        """Run one more worker, which the scheduler lists when the block begins."""
        command = ("dask", "worker", self.address, "--nthreads", "2", *QUIET, *options)
        before = self._workers()
        self._services.start(name, *command, environment=TORCH_ENVIRONMENT)
        try:
            self._services.wait_until(name, lambda: bool(self._workers() - before))
            yield
        finally:
            self._services.stop(name)

    def _workers(self) -> set[str]:
        """Return the addresses that the scheduler lists."""
        with Client(self.address, set_as_default=False, timeout=180) as client:
            return set(client.scheduler_info(n_workers=-1)["workers"])


def state_message(flow_run: str) -> str | None:
    """The message of the newest flow run with this name, from the API of this process."""
    with get_client(sync_client=True) as client:
        chosen = FlowRunFilter(name=FlowRunFilterName(any_=[flow_run]))
        run = client.read_flow_runs(flow_run_filter=chosen, sort=FlowRunSort.START_TIME_DESC, limit=1)[0]
    return run.state.message if run.state is not None else None
