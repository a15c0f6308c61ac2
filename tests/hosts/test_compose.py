"""The images are built, compose starts them, deployments train on them, in a worker's process and
in a container of a Docker work pool, by their own engine and by a vLLM server.

A rollout container and a flow run's container are killed: the runs go on. Then all is gone.

Needs a Docker engine with compose and buildx, and base images: `BASE` and `POSTGRES_IMAGE` name
others than Docker Hub's. `make test-docker` runs it; the first build takes ten minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tasks_lib.config import PROJECT
from tests.flows.conftest import SMALL
from tests.flows.test_resume import check_whole
from training.ledger.store import RunStore

pytestmark = [pytest.mark.docker, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(3000)]

NAME = "rollwright-test"
COMPOSE = ("docker", "compose", "--file", str(PROJECT / "docker" / "compose.yaml"), "--project-name", NAME)
API = "http://127.0.0.1:4200/api"
RUN = {**SMALL, "iterations": 2, "evaluation.every": 9}


def run(*command: str, timeout: float = 1800) -> str:
    """Output of a command that has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def states() -> dict[str, str]:
    """Health, or state, of each container."""
    listed = run(*COMPOSE, "ps", "--all", "--format", "json").splitlines()
    return {each["Name"]: each["Health"] or each["State"] for each in map(json.loads, listed)}


@pytest.fixture(scope="module")
def composed() -> Iterator[float]:
    """Everything is up and healthy; after how many seconds, images there."""
    for command in (("docker", "info"), ("docker", "compose", "version"), ("docker", "buildx", "version")):
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no docker command")
        if found.returncode:
            pytest.skip(f"{' '.join(command)}: {found.stderr.strip().splitlines()[-1]}")
    run(*COMPOSE, "build")
    began = time.monotonic()
    try:
        run(*COMPOSE, "up", "--detach", "--wait", timeout=600)
        yield time.monotonic() - began
    finally:
        run(*COMPOSE, "--profile", "vllm", "down", "--volumes", "--remove-orphans", timeout=300)
        assert not states()


def parameters(run_id: str) -> list[str]:
    """Options of ``prefect deployment run`` for a small run, group by group."""
    given: dict[str, Any] = {"general": {"preset": "quickstart", "run_id": run_id, "iterations": RUN["iterations"]}}
    for key, value in RUN.items():
        group, _, name = key.partition(".")
        if name:
            given.setdefault(group, {})[name] = value.strip("[]").split(",") if isinstance(value, str) else value
    return [part for name, values in given.items() for part in ("-p", f"{name}={json.dumps(values)}")]


def in_flows(*command: str) -> str:
    """Output of a command in the container `flows`."""
    return run(*COMPOSE, "exec", "-T", "flows", *command)


def wait_for(run_id: str, pattern: str, seconds: float) -> float:
    """Seconds until the run has such a file."""
    began = time.monotonic()
    while not in_flows("sh", "-c", f"ls -d /shared/runs/{run_id}/{pattern} 2>/dev/null || true"):
        said = run(*COMPOSE, "logs", "--no-color", "--tail", "60", "flows")
        assert "in state Failed" not in said and time.monotonic() - began < seconds, said
        time.sleep(0.5)
    return time.monotonic() - began


def flow_runs(run_id: str) -> list[dict[str, Any]]:
    """The server's flow runs of a run, the oldest first."""
    wanted = json.dumps({"flow_runs": {"name": {"any_": [run_id]}}, "sort": "EXPECTED_START_TIME_ASC"}).encode()
    asked = urllib.request.Request(f"{API}/flow_runs/filter", wanted, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def check_files(run_id: str, folder: Path) -> None:
    """The files of the finished run agree with each other."""
    run(*COMPOSE, "cp", f"flows:/shared/runs/{run_id}", str(folder))
    check_whole(RunStore(folder / run_id), iterations=2)


def test_a_run_in_containers_outlives_one_of_them(composed: float, tmp_path: Path) -> None:
    images = run(
        "docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}", "--filter", "reference=rollwright/*"
    )
    print(f"\nhealthy after {composed:.0f} s\n{images}", end="")
    assert set(states().values()) == {"healthy"}
    assert sum("-rollout-" in name for name in states()) == 2
    in_flows("prefect", "deployment", "run", "train/quickstart", *parameters("composed"))
    print(f"first episode after {wait_for('composed', 'trajectories/*/*', 300):.0f} s")
    wait_for("composed", "trajectories/*/i000000-*", 600)
    name = next(name for name in states() if "-rollout-" in name)
    before = json.loads(run("docker", "inspect", name))[0]["State"]
    os.kill(before["Pid"], signal.SIGKILL)
    killed = time.monotonic()
    while states()[name] != "healthy" or json.loads(run("docker", "inspect", name))[0]["State"]["Pid"] == before["Pid"]:
        assert time.monotonic() - killed < 300, "Docker starts it again"
        time.sleep(1)
    print(f"the killed container was healthy after {time.monotonic() - killed:.0f} s")
    print(f"finished {wait_for('composed', 'result.json', 1500):.0f} s later")
    check_files("composed", tmp_path)
    assert [each["state_name"] for each in flow_runs("composed")] == ["Completed"]


@contextmanager
def docker_worker(folder: Path) -> Iterator[None]:
    """A worker of the Docker work pool, on the host."""
    environment = {**os.environ, "PREFECT_API_URL": API, "PREFECT_HOME": str(folder / "prefect")}
    command = (sys.executable, "-m", "prefect", "worker", "start", "--pool", "containers")
    with open(folder / "worker.log", "wb") as log:
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        worker.kill()  # asked to end, it waits for ever for the output of the container that was killed
        worker.wait(60)
        print((folder / "worker.log").read_text())


def test_a_docker_work_pool_runs_containers_and_resumes_a_killed_one(composed: float, tmp_path: Path) -> None:
    template = "deployments/work-pools/docker.json"
    in_flows("prefect", "work-pool", "create", "containers", "--type", "docker", "--base-job-template", template)
    in_flows("prefect", "--no-prompt", "deploy", "--name", "quickstart", "--pool", "containers")
    places = [f"network={NAME}_default", f"volume={NAME}_shared"]
    start = ["prefect", "deployment", "run", "train/quickstart", *parameters("pooled")]
    start += [part for each in places for part in ("--job-variable", each)]

    def container() -> str:
        return run("docker", "ps", "--quiet", "--filter", "label=io.prefect.deployment-name=quickstart").strip()

    with docker_worker(tmp_path):
        began = time.monotonic()
        in_flows(*start)
        wait_for("pooled", "trajectories/*/*", 300)
        print(f"\nfirst episode after {time.monotonic() - began:.0f} s")
        run("docker", "kill", container())
        killed = time.monotonic()
        while flow_runs("pooled")[0]["state_name"] != "Crashed":
            assert time.monotonic() - killed < 120, flow_runs("pooled")
            time.sleep(1)
        print(f"the killed flow run was called crashed after {time.monotonic() - killed:.0f} s")
        in_flows(*start)
        wait_for("pooled", "result.json", 900)
        while flow_runs("pooled")[-1]["state_name"] != "Completed" or container():
            assert time.monotonic() - killed < 1200, flow_runs("pooled")
            time.sleep(1)
    assert [each["state_name"] for each in flow_runs("pooled")] == ["Crashed", "Completed"]
    assert {each["work_pool_name"] for each in flow_runs("pooled")} == {"containers"}
    check_files("pooled", tmp_path)


def test_a_vllm_server_in_a_container_takes_each_version_of_a_run(
    composed: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLWRIGHT_VLLM_KEY", "a key of this test alone")
    monkeypatch.setenv("ROLLWRIGHT_CLUSTER", "deployments/clusters/compose-vllm.yaml")
    run(*COMPOSE, "--profile", "vllm", "build", "vllm")
    began = time.monotonic()
    run(*COMPOSE, "--profile", "vllm", "up", "--detach", "--wait", timeout=600)
    print(f"\nhealthy with vLLM after {time.monotonic() - began:.0f} s")
    in_flows(
        "prefect", "deployment", "run", "train/quickstart", *parameters("served"), "-p", 'serving={"dtype": "float32"}'
    )
    wait_for("served", "result.json", 600)
    check_files("served", tmp_path)
    said = run(*COMPOSE, "--profile", "vllm", "logs", "--no-color", "vllm")
    assert said.count("POST /update_weights") >= 3, "v0, v1 and v2"  # without POST its list of routes would count
    assert said.count("POST /inference/v1/generate") > 2 * 16, "a turn at least of each episode"
    assert "Internal Server Error" not in said
