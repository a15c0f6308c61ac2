"""A flow run that is cancelled in Prefect's UI while a process worker runs it: every process of it
ends, and the run goes on when it is started again."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tasks_lib.commands.doctor import examine
from tasks_lib.config import TrainConfig, merge, parse_assignments
from training.ledger.store import RunStore
from training.trainer.control.processes import wait_until_dead

from .conftest import SMALL
from .services import PrefectServer, Services
from .test_deployment import given

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.dask, pytest.mark.timeout(900)]

WITHIN = 30.0
"""Seconds in which all processes of a cancelled run have to be gone: Prefect kills what is left of
its process group then."""


def test_a_cancelled_run_leaves_no_process_and_goes_on(deployed: PrefectServer, tmp_path: Path) -> None:
    services, store = Services(tmp_path), RunStore(tmp_path / "runs" / "ended")
    changes = {**SMALL, "iterations": 500, "root": tmp_path / "runs", "run_id": "ended", "evaluation.every": 1000}
    values = merge({"preset": "quickstart"}, parse_assignments([f"{key}={value}" for key, value in changes.items()]))

    def start(version: int) -> str:
        """The flow run that was started, once it has published a version after this one."""
        known = len(deployed.flow_runs("ended"))  # a flow run has its name once it has begun
        code, output = deployed.cli("deployment", "run", "train/quickstart", *given(TrainConfig, values))
        assert code == 0, output
        services.wait_until("worker", lambda: (store.latest_policy() or 0) > version, timeout=300)
        runs = deployed.flow_runs("ended")
        assert len(runs) == known + 1 and runs[-1]["state_name"] == "Running"
        return str(runs[-1]["id"])

    def state(run: str) -> str:
        return str(deployed.api(f"flow_runs/{run}")["state_name"])

    def cancel(run: str) -> None:
        """As the button of the UI does it; all processes of the run end."""
        family = psutil.Process(services.pid("worker")).children(recursive=True)
        commands = " ".join(" ".join(process.cmdline()) for process in family)
        assert "training.trainer" in commands and "chromium" in commands and "spawn_main" in commands
        begun = time.monotonic()
        answer = deployed.api(f"flow_runs/{run}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
        assert answer["status"] == "ACCEPT"
        alive = wait_until_dead(family, WITHIN)
        print(f"all {len(family)} processes were gone after {time.monotonic() - begun:.1f} s")
        assert not alive, [process.cmdline() for process in alive]
        services.wait_until("worker", lambda: state(run) == "Cancelled", timeout=120)

    try:
        services.start("worker", "prefect", "worker", "start", "--pool", "local", environment=deployed.environment)
        cancel(start(0))
        assert not store.result_path.exists()
        assert [finding for finding in examine(store.root) if finding.severity == "fault"] == []
        cancel(start(store.latest_policy() or 0))
        assert "Crash detected" not in services.whole_log("worker")
    finally:
        services.stop_all()
