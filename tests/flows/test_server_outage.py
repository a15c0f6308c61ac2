"""The Prefect server is stopped, killed and started again in the middle of a run, which outlives
it."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from tasks_lib.config import TrainConfig, merge, parse_assignments
from training.ledger.store import RunStore

from .conftest import SMALL
from .services import PrefectServer, Services
from .test_deployment import given
from .test_resume import check_whole

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.dask]


@pytest.mark.timeout(900)
def test_a_run_outlives_its_server_and_can_be_interrupted_without_one(
    server: PrefectServer, make_run, dask_cluster, tmp_path
) -> None:
    services = Services(tmp_path)
    (tmp_path / "home").mkdir()
    server.copy_database(tmp_path / "home")
    try:
        server = PrefectServer(services, tmp_path / "home")
        run = make_run(
            "outage",
            prefect=server.environment,
            iterations=2,
            **{"cluster.address": dask_cluster.address, "evaluation.every": 9},
        )
        process = psutil.Process(services.pid("server"))
        run.start()
        run.wait_until(lambda: any(run.store.root.glob("trajectories/*/e000000-*")))
        process.suspend()
        run.wait_until(lambda: f"{server.url} does not answer" in run.log(), timeout=60)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(60) == 130
        assert "interrupted: what is whole is kept" in run.log() and "Traceback" not in run.log()
        run.process = None
        process.resume()

        done = run.store.latest_policy() or 0  # it goes on while its server is silent, as far as it can
        run.start()
        run.wait_until(lambda: (run.store.latest_policy() or 0) > done)
        services.kill("server")
        run.wait_until(lambda: run.log().count(f"{server.url} does not answer") == 2, timeout=60)
        server.start()
        run.finish()
        assert "answers again" in run.log()
        assert [each["state_name"] for each in server.flow_runs("outage")][-1] == "Completed"
        check_whole(run.store, iterations=2)
    finally:
        services.stop_all()


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_deployed_run_with_a_limit_outlives_its_server(dask_cluster, tmp_path) -> None:
    """Its deployment's limit gives it a lease that is renewed after 225 s: by then the server has
    been killed and started again.

    The server keeps leases in its memory, as it does by default, so it has forgotten this one.
    """
    services = Services(tmp_path)
    try:
        server = PrefectServer(services, tmp_path / "home")
        for command in (("work-pool", "create", "local", "--type", "process"), ("--no-prompt", "deploy", "--all")):
            code, output = server.cli(*command)
            assert code == 0, output
        changes = {
            **SMALL,
            "iterations": 500,  # more than there is time for: it is killed with its worker
            "rollout.groups_per_iteration": 2,
            "evaluation.every": 1000,
            "evaluation.episodes": 4,
            "cluster.address": dask_cluster.address,
            "root": tmp_path / "runs",
            "run_id": "limited",
        }
        values = merge(
            {"preset": "quickstart"}, parse_assignments([f"{key}={value}" for key, value in changes.items()])
        )
        assert server.api("deployments/name/train/quickstart")["global_concurrency_limit"]["limit"] == 1
        services.start("worker", "prefect", "worker", "start", "--pool", "local", environment=server.environment)
        code, output = server.cli("deployment", "run", "train/quickstart", *given(TrainConfig, values))
        assert code == 0, output
        store = RunStore(tmp_path / "runs" / "limited")

        def state() -> str:
            return str(server.flow_runs("limited")[-1]["state_name"])

        services.wait_until("worker", lambda: (store.latest_policy() or 0) > 0, timeout=600)
        begun = time.monotonic()
        services.kill("server")
        time.sleep(20)  # away for longer than the three tries of a renewal
        server.start()
        services.wait_until("worker", lambda: time.monotonic() > begun + 240, timeout=600)
        done = store.latest_policy() or 0
        services.wait_until("worker", lambda: (store.latest_policy() or 0) > done + 1, timeout=600)
        assert state() == "Running", services.whole_log("worker")
        assert "has forgotten lease" in services.whole_log("worker")
    finally:
        services.stop_all()
