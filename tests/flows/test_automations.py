"""The files of deployments/automations on a real server: created as docs/automations.md has it, and
seen to act on the events of a flow run of a deployment."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow

from envs.types import ProbeError
from tasks_lib.config import PROJECT
from tasks_lib.config.alerts import AlertConfig
from tasks_lib.loops.alerts import AbstentionAlert, RunAlerts
from tasks_lib.processes.prefect_run import emit
from tasks_lib.processes.serving import reported_probe
from training.ledger.store import RunStore

from ..conftest import make_group
from .services import SCRIPTS, PrefectServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = PROJECT / "docs" / "automations.md"
NEEDS_A_PERSON = {"run.stalled", "disk.low", "abstentions.high", "probe.failed"}


@flow(name="train", persist_result=False)
def eventful(root: str) -> None:
    """What a run reports where everything goes wrong: each condition lasts for several looks."""
    store, lines = RunStore(root), list[str]()
    store.root.mkdir(parents=True)
    watch = RunAlerts(store, AlertConfig(stalled_minutes=1, disk_gb=1e6), lines.append, 0.0)
    for now in (0, 61, 62, 63):
        watch.look(now)
    abstentions = AbstentionAlert(store.root.name, 0.5)
    for iteration in (0, 1):
        abstentions.look(iteration, [make_group(f"i{iteration:06d}-g0000", [None, None, 1.0])])
    with pytest.raises(ProbeError), reported_probe(store, 3):
        raise ProbeError("http://a does not serve v3")
    emit("rollwright.version.published", store.root.name, {"version": 3, "folder": str(store.policy_path(3))})


class Receiver:
    """An HTTP server that keeps the bodies that are posted to it."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *values: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def of(self, run: str) -> list[str]:
        """Names of the events of a run that it was called for."""
        return [body["event"].removeprefix("rollwright.") for body in self.bodies if body["run"] == run]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.1)


def shown_commands() -> str:
    """The commands of the page that create the automations."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (commands,) = [block for block in blocks if "prefect automation create" in block]
    assert isinstance(commands, str)
    return commands


@pytest.fixture
def receiver(deployed: PrefectServer, tmp_path: Path) -> Iterator[Receiver]:
    """The automations, whose webhook calls this; all that they leave is taken away."""
    receiver = Receiver()
    commands = shown_commands().replace("https://hooks.example/…", receiver.address)
    environment = {**deployed.environment, "PATH": f"{SCRIPTS}:/usr/bin:/bin", "OUT": str(tmp_path)}
    script = f"set -euo pipefail\ncd {shlex.quote(str(PROJECT))}\n{commands}"
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("Created automation") == 3, done.stdout + done.stderr
    yield receiver
    for automation in deployed.api("automations/filter", limit=200):
        deployed.api(f"automations/{automation['id']}", method="DELETE")
    deployment = deployed.api("deployments/name/train/quickstart")
    deployed.api(f"deployments/{deployment['id']}/resume_deployment", method="POST")
    for run in evaluations(deployed):
        deployed.api(f"flow_runs/{run['id']}", method="DELETE")
    receiver.close()


def evaluations(server: PrefectServer) -> list[dict[str, Any]]:
    """Flow runs of the deployment evaluate/default."""
    deployment = server.api("deployments/name/evaluate/default")
    found: list[dict[str, Any]] = server.api("flow_runs/filter", deployments={"id": {"any_": [deployment["id"]]}})
    return found


@pytest.mark.usefixtures("prefect_api")
def test_the_automations_act_on_runs_of_the_named_deployment(
    deployed: PrefectServer, receiver: Receiver, tmp_path: Path
) -> None:
    quickstart = deployed.api("deployments/name/train/quickstart")

    def paused() -> bool:
        return bool(deployed.api(f"deployments/{quickstart['id']}")["paused"])

    eventful(str(tmp_path / "alone"))
    until(lambda: len(receiver.of("alone")) >= len(NEEDS_A_PERSON))
    with get_client(sync_client=True) as client:
        created = deployed.api(f"deployments/{quickstart['id']}/create_flow_run", name="deployed")
        assert not paused() and not evaluations(deployed), "the run before was of no deployment"
        run_flow(
            eventful, flow_run=client.read_flow_run(UUID(created["id"])), parameters={"root": f"{tmp_path}/theirs"}
        )
    until(lambda: len(receiver.of("theirs")) >= len(NEEDS_A_PERSON))
    until(paused)
    until(lambda: evaluations(deployed))
    for run in ("alone", "theirs"):
        assert sorted(receiver.of(run)) == sorted(NEEDS_A_PERSON), "each once"
    stalled = next(body["details"] for body in receiver.bodies if body["event"] == "rollwright.run.stalled")
    assert stalled["seconds"] == 61 and stalled["folder"] == str(tmp_path / "alone")
    (evaluation,) = evaluations(deployed)
    assert evaluation["parameters"]["policy"] == {"checkpoint": str(tmp_path / "theirs" / "policies" / "v000003")}
    events = deployed.api("events/filter", filter={"event": {"prefix": ["rollwright."]}})["events"]
    for event in (event for event in events if event["resource"]["prefect.resource.name"] == "theirs"):
        related = {each["prefect.resource.role"]: each for each in event["related"]}
        assert related["deployment"]["prefect.resource.id"] == f"prefect.deployment.{quickstart['id']}"
        assert related["deployment"]["prefect.resource.name"] == "quickstart"
        assert related["flow-run"]["prefect.resource.id"] == f"prefect.flow-run.{created['id']}"
        assert related["flow"]["prefect.resource.name"] == "train"
