"""The Prefect server is stopped and killed in the middle of a run: it is named, waited for, and Ctrl-C works."""

from __future__ import annotations

import signal

import psutil
import pytest

from .services import PrefectServer, Services
from .test_resume import check_whole

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.dask]


@pytest.mark.timeout(900)
def test_a_run_outlives_its_server_and_can_be_interrupted_without_one(make_run, dask_cluster, tmp_path) -> None:
    services = Services(tmp_path)
    try:
        server = PrefectServer(services, tmp_path / "home")
        run = make_run(
            "outage",
            prefect=server.environment,
            iterations=2,
            **{"cluster.address": dask_cluster.address, "evaluation.every": 9},
        )
        process = psutil.Process(services._running["server"].pid)
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
