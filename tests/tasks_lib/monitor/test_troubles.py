"""A monitor goes on when a worker dies, a disk is full or a folder is gone, and says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distributed
import orjson
import pytest
from starlette.testclient import TestClient

from tasks_lib.folder.lock import run_lock
from tasks_lib.monitor import scheduler_source
from tasks_lib.monitor.live_server import LiveMonitor
from tasks_lib.monitor.live_source import FolderSource
from tasks_lib.monitor.run_figures import RunFigures
from tasks_lib.monitor.scheduler_source import SchedulerSource
from tasks_lib.monitor.serving import PageServer
from tasks_lib.worker.live import Doing, LiveState
from tasks_lib.worker.rollout_worker import RolloutWorker
from training.ledger.store import RunStore, atomic_write_bytes


def playing(step: int) -> LiveState:
    """A worker's state with one episode."""
    live = LiveState("i000003", 8, dict)
    slot = live.take_slot()
    slot.begin("i000003-g0000-s00-a0", "click", 5, "click/1", 3)
    slot.set_doing(Doing.TURN, step)
    return live


def wait_for(look: Callable[[], Any]) -> Any:
    """Return what ``look`` gives, however slow the machine is."""
    deadline = time.monotonic() + 120
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return seen


@contextmanager
def monitored(store: RunStore) -> Iterator[tuple[TestClient, LiveMonitor]]:
    """A monitor of a run's folder that polls, and a client of it."""
    monitor = LiveMonitor(FolderSource(store), RunFigures(store))
    application = PageServer().application(monitor.routes(), monitor.polling)
    with TestClient(application, base_url="http://127.0.0.1:8710") as client:
        yield client, monitor


def run_of(monitor: LiveMonitor) -> dict[str, Any]:
    """Return what the monitor sends to a new viewer of the run."""
    lines = [line for line in monitor.message(0).split(b"\n") if line.startswith(b"data: {")]
    return dict(orjson.loads(lines[-1][len(b"data: ") :])) if lines else {}


def write_state(store: RunStore, step: int) -> None:
    """Write the file of a worker whose episode is at a step."""
    data = playing(step).state().model_copy(update={"worker": "host-1"}).model_dump_json().encode()
    atomic_write_bytes(store.live_path("host-1"), data, sync=False)


def test_a_worker_that_dies_is_named_and_the_next_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_source, "CHECK_SECONDS", 0.0)
    one_worker = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**one_worker, protocol="tcp") as cluster:
        source = SchedulerSource(cluster.scheduler_address)
        with distributed.Client(cluster, set_as_default=False) as client:
            client.register_plugin(RolloutWorker())
            first = RolloutWorker.of_this_process()
            first.send("/runs/live", playing(1).state().model_dump_json())
            ((worker, _),) = wait_for(source.changes)
            cluster.scale(0)
            assert wait_for(source.changes) == [(worker, orjson.dumps({"worker": worker, "gone": True}))]
            assert source.problem == f"A worker is gone: {worker}." and source.states() == []
            cluster.scale(1)
            client.wait_for_workers(1, timeout=120)
            second = wait_for(lambda: RolloutWorker._instance if RolloutWorker._instance is not first else None)
            second.send("/runs/live", playing(2).state().model_dump_json())
            ((again, data),) = wait_for(source.changes)
            assert again == worker and orjson.loads(data)["slots"][0]["step"] == 2
            monkeypatch.setattr(source, "_gone_until", 0.0)
            source.changes()
            assert source.problem is None
        source.close()


def test_a_full_disk_is_named_while_the_page_goes_on(small_disk: Callable[[int], Path], synthetic: Any) -> None:
    store = synthetic.SyntheticRun(small_disk(16_000_000) / "run", iterations=1, every=1, finished=False).store
    with run_lock(store.root), monitored(store) as (client, monitor):
        wait_for(lambda: run_of(monitor).get("state") == "running")
        assert run_of(monitor)["problem"] is None
        filling = store.root / "filling"
        with pytest.raises(OSError, match="No space left"), filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        wait_for(lambda: "nearly full" in (run_of(monitor)["problem"] or ""))
        assert run_of(monitor)["state"] == "running" and run_of(monitor)["disk"]["free"] == 0
        assert client.get("/").status_code == client.get("/metrics").status_code == 200
        filling.unlink()
        write_state(store, 2)
        wait_for(lambda: b'"step":2' in monitor.message(0) and run_of(monitor)["problem"] is None)


def test_a_folder_that_comes_back_is_shown_again(make_run: Callable[..., Any]) -> None:
    store = make_run("live-run", iterations=1, every=1, finished=False).store
    elsewhere = store.root.with_name("elsewhere")
    with monitored(store) as (client, monitor):
        write_state(store, 1)
        wait_for(lambda: b'"step":1' in monitor.message(0))
        store.root.rename(elsewhere)
        gone = wait_for(lambda: (shown := run_of(monitor))["problem"] and "folder" in shown["problem"] and shown)
        assert gone["state"] == "unknown" and client.get("/").status_code == 200
        elsewhere.rename(store.root)
        write_state(store, 3)
        wait_for(lambda: b'"step":3' in monitor.message(0) and run_of(monitor)["state"] == "stopped")
