"""Runs over three hosts: network namespaces with an address each on one bridge, and the file system
of this machine as shared storage.

The first host has Prefect's server, Dask's scheduler and the flow; the others roll out, the third
one trains too. Links are cut and hosts are killed. Needs root; `make test-hosts` runs it, which
takes a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.asynchronous import iterations, orchestration_share
from tests.flows.conftest import Run
from tests.flows.services import QUIET, SCRIPTS, Services
from tests.flows.test_resume import check_paced, check_whole, committed
from training.environment import DASK_ENVIRONMENT, TORCH_ENVIRONMENT

pytestmark = [pytest.mark.netns, pytest.mark.chaos, pytest.mark.slow, pytest.mark.dask, pytest.mark.timeout(1200)]

BRIDGE, PREFIX = "rwb0", "rwh"
CUT_SECONDS = 30.0
ASYNC = {"mode": "async", "pacing.staleness": 2, "evaluation.every": 9, "evaluation.episodes": 4}


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def let_through(action: str) -> None:
    """Add (``-I``) or remove (``-D``) the rule for the bridge: Docker drops what bridges forward
    that are not its own."""
    if shutil.which("iptables"):
        rule = ("FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT")
        subprocess.run(["iptables", action, *rule], check=False, capture_output=True)


class Host:
    """A network namespace."""

    def __init__(self, services: Services, number: int) -> None:
        self.name, self.link, self.address = f"{PREFIX}{number}", f"{PREFIX}v{number}", f"10.77.7.{number}"
        self._services = services
        self.inside = (shutil.which("ip") or "ip", "netns", "exec", self.name)
        ip("netns", "add", self.name)
        ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", self.link, "master", BRIDGE, "up")
        for command in (
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", self.name, *command)

    def start(self, name: str, *command: str, **environment: str) -> None:
        """Start a script of the virtual environment on this host."""
        self._services.start(name, *self.inside, str(SCRIPTS / command[0]), *command[1:], environment=environment)

    def cut(self) -> None:
        ip("link", "set", self.link, "down")

    def join(self) -> None:
        ip("link", "set", self.link, "up")

    def lose_storage(self, process: str, folder: Path) -> None:
        """For a process on it, and those that it started, a folder is empty and nobody can write
        there."""
        inside = ("nsenter", "--mount", "--target", str(self._services.pid(process)))
        subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)], check=True)

    def kill(self) -> None:
        """Everything that runs on it; the network goes first, so that nobody is told."""
        self.cut()
        pids = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True).stdout
        for pid in map(int, pids.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.join()


class Hosts:
    """Three of them, with everything that a run needs."""

    def __init__(self, folder: Path) -> None:
        self.services = Services(folder)
        self.folder = folder

    def start(self) -> None:
        """Start everything; `close` also where this fails."""
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        ip("addr", "add", "10.77.7.254/24", "dev", BRIDGE)  # of the tests themselves
        let_through("-I")
        self.first, self.second, self.third = (Host(self.services, number) for number in (1, 2, 3))
        self.cluster, server = f"tcp://{self.first.address}:8786", f"http://{self.first.address}:4200/api"
        home = {"PREFECT_HOME": str(self.folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        self.environment = {**home, "PREFECT_API_URL": server, "PREFECT_LOGGING_LEVEL": "INFO"}
        self.first.start("server", "prefect", "server", "start", "--host", self.first.address, **self.environment)
        scheduler = ("dask", "scheduler", "--host", self.first.address, "--port", "8786", *QUIET)
        self.first.start("scheduler", *scheduler, **DASK_ENVIRONMENT)
        self.services.wait_until("server", lambda: answers(f"{server}/health"))
        self.services.wait_until("scheduler", lambda: "Scheduler at" in self.services.log("scheduler"))
        self.start_worker(self.second, "second", "browser")
        self.start_third()

    def start_third(self) -> None:
        self.start_worker(self.third, "third", "browser")
        self.start_worker(self.third, "trainer", "trainer")

    def start_worker(self, host: Host, name: str, resource: str) -> None:
        options = ("--host", host.address, "--nthreads", "2", "--resources", f"{resource}=1", *QUIET)
        seen = self.services.whole_log(name).count("Registered to") if name in self.services.logs() else 0
        host.start(
            name, "dask", "worker", self.cluster, *options, **TORCH_ENVIRONMENT, **DASK_ENVIRONMENT, OMP_NUM_THREADS="1"
        )
        self.services.wait_until(name, lambda: self.services.whole_log(name).count("Registered to") > seen)

    def removed(self) -> int:
        """How often the scheduler has lost a worker."""
        return len(re.findall(r"Remove worker", self.services.whole_log("scheduler")))

    def close(self) -> None:
        self.services.stop_all()
        for number in (1, 2, 3):
            for thing in (("link", "del", f"{PREFIX}v{number}"), ("netns", "del", f"{PREFIX}{number}")):
                subprocess.run(["ip", *thing], check=False, capture_output=True)
        let_through("-D")
        subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the command ip (iproute2)")
    if subprocess.run(["ip", "netns", "add", f"{PREFIX}0"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    ip("netns", "del", f"{PREFIX}0")
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def make_run(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def make(run_id: str, **changes: object) -> Run:
        (tmp_path / "runs").mkdir(exist_ok=True)
        settings = {"cluster.address": hosts.cluster, "trainer.nodes": 1, **changes}
        runs.append(Run(tmp_path / "runs", run_id, hosts.environment, hosts.first.inside, **settings))
        return runs[-1]

    yield make
    for run in runs:
        run.stop()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def seconds_until(condition: Callable[[], bool], timeout: float = 180.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout
        time.sleep(0.1)
    return time.monotonic() - began


def played(run: Run, pattern: str) -> int:
    return len(list(run.store.root.glob(f"trajectories/*/{pattern}")))


@pytest.mark.parametrize("mode", [{}, ASYNC], ids=["synchronous", "asynchronous"])
def test_a_link_is_cut_for_half_a_minute_and_a_host_is_killed(
    hosts: Hosts, make_run: Callable[..., Run], mode: dict[str, object]
) -> None:
    run = make_run("mine", iterations=3, **mode)
    run.start()
    run.wait_until(lambda: played(run, "i000000-*") > 2)
    kept, removed = committed(run.store), hosts.removed()
    hosts.second.cut()
    time.sleep(CUT_SECONDS)
    hosts.second.join()
    assert hosts.removed() == removed, "a worker that is given up closes when it is back"
    run.wait_until(lambda: (run.store.latest_policy() or 0) >= 1)
    assert kept.items() <= committed(run.store).items()

    kept = committed(run.store)
    hosts.third.kill()
    began = time.monotonic()
    noticed = seconds_until(lambda: hosts.removed() >= removed + 2)
    for name in ("third", "trainer"):
        hosts.services.kill(name)
    hosts.start_third()
    back = time.monotonic() - began
    run.wait_until(lambda: run.store.latest_policy() == 2)
    updated = time.monotonic() - began
    run.finish(600)
    print(
        f"\n{mode.get('mode', 'sync')}: Dask gave the killed host up after {noticed:.1f} s, it was back after {back:.1f} s,"
    )
    print(f"version 2 was there after {updated:.1f} s, the end after {time.monotonic() - began:.1f} s")
    print(f"orchestration took {100 * orchestration_share(iterations(run.store)):.1f} % of the loop")
    assert kept.items() <= committed(run.store).items()
    check_whole(run.store, 3)
    if mode:
        check_paced(run.store, 3, 4, 2)
    left = [
        each for each in psutil.process_iter(["cmdline"]) if str(run.store.root) in " ".join(each.info["cmdline"] or ())
    ]
    assert not left, "a trainer outlived its run"


@pytest.mark.parametrize("mode", [{}, ASYNC], ids=["synchronous", "asynchronous"])
def test_an_unbroken_run_says_what_part_of_its_time_was_orchestration(
    hosts: Hosts, make_run: Callable[..., Run], mode: dict[str, object]
) -> None:
    quickstart = {"rollout.groups_per_iteration": 32, "rollout.concurrency": 12, "algorithm.group_size": 8}
    run = make_run("whole", iterations=2, **quickstart, **mode, **{"rollout.groups_per_task": 4} if mode else {})
    run.finish(600)
    print(f"\n{mode.get('mode', 'sync')}, 256 episodes an iteration: ", end="")
    print(f"orchestration took {100 * orchestration_share(iterations(run.store)):.1f} % of the loop")
    check_whole(run.store, 2)


@pytest.mark.parametrize("mode", [{}, ASYNC], ids=["synchronous", "asynchronous"])
def test_a_host_that_loses_its_storage_is_left_out(
    hosts: Hosts, make_run: Callable[..., Run], mode: dict[str, object]
) -> None:
    run = make_run("torn", iterations=2, **mode)
    run.start()
    run.wait_until(lambda: played(run, "i000000-*") > 2)
    kept, removed = committed(run.store), hosts.removed()
    began = time.monotonic()
    hosts.second.lose_storage("second", run.store.root)
    noticed = seconds_until(lambda: hosts.removed() > removed)
    run.finish(600)
    print(
        f"\n{mode.get('mode', 'sync')}: left out after {noticed:.1f} s, the end after {time.monotonic() - began:.1f} s"
    )
    print(f"orchestration took {100 * orchestration_share(iterations(run.store)):.1f} % of the loop")
    hosts.services.stop("second")
    hosts.start_worker(hosts.second, "second", "browser")
    assert "its groups go to other workers" in run.log()
    assert kept.items() <= committed(run.store).items()
    check_whole(run.store, 2)
    if mode:
        check_paced(run.store, 2, 4, 2)
