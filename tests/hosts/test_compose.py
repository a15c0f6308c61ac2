"""The images are built, compose starts them, a deployment trains on them, a rollout container is killed: the run goes on. Then all is gone.

Needs a Docker engine with compose and buildx, and base images: `BASE` and `POSTGRES_IMAGE` name others than Docker Hub's. `make test-docker`
runs it; the first build takes ten minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks_lib.config import PROJECT
from tests.flows.conftest import SMALL
from tests.flows.test_resume import check_whole
from training.ledger.store import RunStore

pytestmark = [pytest.mark.docker, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(3000)]

COMPOSE = ("docker", "compose", "--file", str(PROJECT / "docker" / "compose.yaml"), "--project-name", "rollwright-test")
API = "http://127.0.0.1:4200/api"
RUN = {**SMALL, "iterations": 2, "evaluation.every": 9}
GENERAL = {"preset": "quickstart", "run_id": "composed", "iterations": 2}


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
        run(*COMPOSE, "down", "--volumes", "--remove-orphans", timeout=300)
        assert not states()


def groups() -> dict[str, Any]:
    """Parameters of the deployment, group by group."""
    given: dict[str, Any] = {"general": GENERAL}
    for key, value in RUN.items():
        group, _, name = key.partition(".")
        if name:
            given.setdefault(group, {})[name] = value.strip("[]").split(",") if isinstance(value, str) else value
    return given


def test_a_run_in_containers_outlives_one_of_them(composed: float, tmp_path: Path) -> None:
    images = run(
        "docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}", "--filter", "reference=rollwright/*"
    )
    print(f"\nhealthy after {composed:.0f} s\n{images}", end="")
    assert set(states().values()) == {"healthy"}
    assert sum("-rollout-" in name for name in states()) == 2
    parameters = [part for name, values in groups().items() for part in ("-p", f"{name}={json.dumps(values)}")]
    began = time.monotonic()
    run(*COMPOSE, "exec", "-T", "flows", "prefect", "deployment", "run", "train/quickstart", *parameters)

    def files(pattern: str) -> list[str]:
        command = f"ls -d /shared/runs/composed/{pattern} 2>/dev/null || true"
        return run(*COMPOSE, "exec", "-T", "flows", "sh", "-c", command).split()

    def wait_for(pattern: str, seconds: float) -> float:
        while not files(pattern):
            said = run(*COMPOSE, "logs", "--no-color", "--tail", "60", "flows")
            assert "in state Failed" not in said and time.monotonic() - began < seconds, said
            time.sleep(0.5)
        return time.monotonic() - began

    print(f"first episode after {wait_for('trajectories/*/*', 300):.0f} s")
    wait_for("trajectories/*/i000000-*", 600)
    name = next(name for name in states() if "-rollout-" in name)
    before = json.loads(run("docker", "inspect", name))[0]["State"]
    os.kill(before["Pid"], signal.SIGKILL)
    killed = time.monotonic()
    while states()[name] != "healthy" or json.loads(run("docker", "inspect", name))[0]["State"]["Pid"] == before["Pid"]:
        assert time.monotonic() - killed < 300, "Docker starts it again"
        time.sleep(1)
    print(f"the killed container was healthy after {time.monotonic() - killed:.0f} s")
    print(f"finished after {wait_for('result.json', 1500):.0f} s")
    run(*COMPOSE, "cp", "flows:/shared/runs/composed", str(tmp_path))
    check_whole(RunStore(tmp_path / "composed"), iterations=2)
    asked = urllib.request.Request(f"{API}/flow_runs/filter", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert [(each["name"], each["state_name"]) for each in json.load(answer)] == [("composed", "Completed")]
