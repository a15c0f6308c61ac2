"""A run sends Prefect an event each time that a condition begins."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.types import PolicyError, ProbeError, StopReason
from tasks_lib.config.alerts import AlertConfig
from tasks_lib.loops import alerts
from tasks_lib.loops.alerts import AbstentionAlert, RunAlerts, watched_run
from tasks_lib.processes.serving import PolicyServers
from tasks_lib.worker.live import WorkerState
from tasks_lib.worker.oversampling import NOT_NEEDED
from training.ledger.store import RunStore, write_json

from .test_loop import record

GB = 10**9
ROOMY = SimpleNamespace(free=50 * GB, total=100 * GB)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    sent: list[tuple[str, dict[str, Any]]] = []

    def emit(event: str, run_id: str, payload: dict[str, Any]) -> None:
        assert run_id == "mine"
        sent.append((event.removeprefix("rollwright."), payload))

    monkeypatch.setattr(alerts, "emit", emit)
    monkeypatch.setattr("tasks_lib.processes.serving.emit", emit)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: ROOMY)
    return sent


def finish(store: RunStore, worker: str, episodes: int) -> None:
    """Write the live state of a worker that has ended so many attempts; its time always changes."""
    state = WorkerState(
        worker=worker,
        time=float(finish.calls),  # type: ignore[attr-defined]
        phase="i000000",
        episodes=8,
        finished={StopReason.DONE: episodes},
        slots=(),
        browsers={},
    )
    finish.calls += 1  # type: ignore[attr-defined]
    write_json(store.live_path(worker), state)


finish.calls = 0  # type: ignore[attr-defined]


def test_a_run_that_stands_still_is_reported_once_until_it_moves(
    tmp_path: Path, events: list[tuple[str, dict[str, Any]]]
) -> None:
    store, lines = RunStore(tmp_path / "mine"), list[str]()
    finish(store, "a", 3)
    watch = RunAlerts(store, AlertConfig(stalled_minutes=10), lines.append, 0.0)
    for now in (0, 300, 599):
        finish(store, "a", 3)  # the worker lives, and nothing ends
        watch.look(now)
    assert events == [] == lines
    for now in (600, 610, 5000):
        watch.look(now)
    assert [(name, payload["seconds"]) for name, payload in events] == [("run.stalled", 600)]
    assert len(lines) == 1 and "10 minutes" in lines[0] and "flows.monitor" in lines[0]
    moves = [
        lambda: finish(store, "a", 4),
        lambda: finish(store, "b", 0),
        lambda: write_json(store.evaluation_path(0), {}),
        lambda: write_json(store.policy_path(1) / "manifest.json", {"version": 1}),
    ]
    for number, move in enumerate(moves):
        move()
        watch.look(5000.0 * (number + 2))
        watch.look(5000.0 * (number + 2) + 599)
        assert len(events) == number + 1
        watch.look(5000.0 * (number + 2) + 600)
        assert len(events) == number + 2
    assert events[-1][1]["version"] == 1
    RunAlerts(store, AlertConfig(stalled_minutes=0), lines.append, 0.0).look(1e9)
    assert len(events) == len(moves) + 1, "0 is off"


def test_a_disk_that_fills_up_is_reported_once_until_it_has_room(
    tmp_path: Path, events: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list[str]()
    watch = RunAlerts(RunStore(tmp_path / "mine"), AlertConfig(stalled_minutes=0, disk_gb=5), lines.append, 0.0)
    for free, sent in ((6, 0), (4.9, 1), (4, 1), (5.1, 1), (4.9, 1), (6.1, 1), (4.9, 2)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free * GB, total=9 * GB))
        watch.look(0.0)
        assert len(events) == len(lines) == sent, f"{free} GB are free"
    assert events[0] == (
        "disk.low",
        {"free_bytes": 4.9 * GB, "total_bytes": 9 * GB, "folder": str(tmp_path / "mine")},
    )


def test_a_folder_that_cannot_be_read_does_not_end_the_watch(
    tmp_path: Path,
    events: list[tuple[str, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, seen = RunStore(tmp_path / "mine"), threading.Event()
    store.live_path("a").parent.mkdir(parents=True)
    store.live_path("a").write_text("{torn")
    monkeypatch.setattr(alerts, "LOOK_SECONDS", 0.01)
    config = AlertConfig(stalled_minutes=1e-9, disk_gb=0)
    with caplog.at_level(logging.WARNING), watched_run(store, config, lambda line: seen.set()):
        while not caplog.messages:
            seen.wait(0.01)
        assert not events
        finish(store, "a", 1)
        assert seen.wait(60), "it looks again"
    assert [name for name, _ in events] == ["run.stalled"]
    assert len(caplog.messages) == 1 and "cannot be watched for the moment" in caplog.messages[0]
    assert not [thread for thread in threading.enumerate() if thread.name == "run-alerts"]


def test_a_batch_of_abstentions_is_reported_by_share_and_cause(events: list[tuple[str, dict[str, Any]]]) -> None:
    watch = AbstentionAlert("mine", 0.5)
    bad, good = [record("no judge", "crash", None)], [record("no judge", None, None)]
    for iteration, records in enumerate((good, bad, bad, good, [record("crash", None, NOT_NEEDED)])):
        watch.look(iteration, records)
    assert [(name, payload["iteration"], payload["share"]) for name, payload in events] == [
        ("abstentions.high", 1, 2 / 3),
        ("abstentions.high", 4, 1 / 2),
    ]
    assert events[0][1]["causes"] == {"no judge": 1, "crash": 1}
    AbstentionAlert("mine", 0.5).look(0, [])
    assert len(events) == 2


def test_a_failed_probe_is_reported_and_ends_the_publication(
    tmp_path: Path, events: list[tuple[str, dict[str, Any]]]
) -> None:
    def publish(error: Exception) -> None:
        def call(load: object, version: int, folder: Path) -> None:
            raise error

        supervisor: Any = SimpleNamespace(replicas=[], served=None, asleep=False, behind=(), publish=None)
        portal: Any = SimpleNamespace(call=call)
        with pytest.raises(type(error)):
            PolicyServers(supervisor, portal, RunStore(tmp_path / "mine")).publish(3)

    publish(PolicyError("the server refuses the folder"))
    assert events == []
    publish(ProbeError("http://a does not serve v3"))
    assert events == [("probe.failed", {"version": 3, "reason": "http://a does not serve v3"})]


def test_an_evaluation_of_abstentions_is_reported_by_its_version(events: list[tuple[str, dict[str, Any]]]) -> None:
    for abstained in (1, 2):
        AbstentionAlert("mine", 0.5).report({"version": 7}, abstained, 4, {"the browser died": abstained})
    expected = {"version": 7, "share": 0.5, "abstained": 2, "episodes": 4, "causes": {"the browser died": 2}}
    assert events == [("abstentions.high", expected)]
