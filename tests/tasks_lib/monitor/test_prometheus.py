"""The monitor's ``/metrics``, as Prometheus' own parser reads them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tasks_lib.folder.lock import run_lock
from tasks_lib.monitor.live_server import LiveMonitor
from tasks_lib.monitor.live_source import FolderSource
from tasks_lib.monitor.prometheus import render_metrics
from tasks_lib.monitor.run_figures import RunFigures
from tasks_lib.monitor.serving import PageServer
from tasks_lib.worker.live import Doing, SlotState, WorkerState
from training.ledger.store import atomic_write_bytes, read_json

Samples = dict[tuple[str, str], float]
UNITS = ("bytes", "seconds", "ratio", "versions", "turns", "per_second", "total")
COUNTED = {"run", "run_state", "problem", "environments", "slow_environments", "browsers", "workers", "monitor_viewers"}
COUNTED |= {"iterations_done", "iterations_planned", "policy_version"}
"""Metrics that count what their names say."""


def parsed(content: bytes) -> Samples:
    """Samples by name and label, each of which Prometheus would take."""
    samples: Samples = {}
    for family in text_string_to_metric_families(content.decode()):
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            key = (sample.name.removeprefix("rollwright_"), ",".join(sample.labels.values()))
            assert sample.name.startswith("rollwright_") and len(sample.labels) <= 1 and key not in samples
            samples[key] = sample.value
    return samples


def worker(number: int = 1, *doings: Doing) -> WorkerState:
    """A worker whose slots do this."""
    slots = tuple(
        SlotState(episode_id=f"i-{at}", kind=f"kind-{at}", step=1, horizon=5, doing=doing, seconds=1.0, version=at)
        for at, doing in enumerate(doings)
    )
    return WorkerState(
        worker=f"host-{number}",
        time=time.time(),
        phase="i000002",
        episodes=8,
        finished={},
        slots=slots,
        browsers={"browsers": [{"state": "READY"}]},
        sites={"oscar": {"playing": 3, "memory": 1 << 20}},
        lag=number / 10,
    )


def test_prometheus_reads_what_the_run_is(make_run: Callable[..., Any]) -> None:
    store = make_run("live-run", iterations=2, every=2, finished=False).store
    atomic_write_bytes(
        store.live_path("host-1"), worker(1, Doing.TURN, Doing.TURN, Doing.QUEUE).model_dump_json().encode()
    )
    monitor = LiveMonitor(FolderSource(store), RunFigures(store))
    application = PageServer().application(monitor.routes(), monitor.polling)
    with run_lock(store.root), TestClient(application, base_url="http://127.0.0.1:8710") as client:
        deadline = time.monotonic() + 120
        while (samples := parsed(client.get("/metrics").content)).get(("environments", "turn")) != 2:
            assert time.monotonic() < deadline
    assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=")
    assert samples["run", "live-run"] == samples["run_state", "running"] == samples["browsers", "READY"] == 1
    assert (samples["sites", "oscar playing"], samples["sites", "oscar memory"]) == (3, 1 << 20)
    assert samples["run_state", "stalled"] == samples["problem", ""] == 0
    assert samples["engine_waiting_turns", ""] == 1 and samples["engine_running_turns", ""] == 2
    assert samples["workers", ""] == 1 and samples["worker_lag_seconds", ""] == pytest.approx(0.1)
    assert samples["success_ratio", ""] == read_json(store.evaluation_path(2))["mean"]
    assert samples["policy_version", ""] == samples["iterations_done", ""] == 2
    assert 0 < samples["disk_free_bytes", ""] < samples["disk_size_bytes", ""]


def test_every_name_has_its_unit_and_labels_stay_few() -> None:
    """Workers, kinds, versions and causes are without number: none of them is a label."""
    workers = [worker(number, *Doing) for number in range(50)]
    figures = {
        "run_id": "run",
        "state": "running",
        "problem": "The disk is full.",
        "staleness": {"0": 1, "3": 3},
        "abstentions": {f"cause {at}": 1 for at in range(100)},
        "versions": {str(at): 1 for at in range(100)},
        "cells": dict.fromkeys(map(str, Doing), 50),
        "queues": {"engine": 0.5},
        "rates": {"episodes": 2.0, "steps": None},
    }
    samples = parsed(render_metrics(figures, workers, viewers=3))
    assert all(name.endswith(UNITS) or name in COUNTED for name, _ in samples)
    assert len(samples) < 50
    assert samples["abstentions_total", ""] == 100 and samples["problem", ""] == 1
    assert samples["staleness_mean_versions", ""] == 2.25 and samples["staleness_max_versions", ""] == 3
    assert samples["queue_wait_seconds", "engine"] == 0.5 and samples["worker_lag_seconds", ""] == pytest.approx(4.9)
    assert ("steps_per_second", "") not in samples, "what is not known is left out"


def test_a_run_whose_folder_is_gone_is_unknown(tmp_path: Path) -> None:
    samples = parsed(render_metrics({"state": "unknown", "problem": "It is gone."}, [], 0))
    assert samples["run_state", "unknown"] == samples["problem", ""] == 1
