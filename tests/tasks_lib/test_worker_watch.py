"""A cluster that has lost all of its rollout workers is named, and so is their return."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tasks_lib.preflight.flows import slow_precision
from tasks_lib.processes import worker_watch
from tasks_lib.processes.worker_watch import watched_workers
from training.config import TrainerConfig

ADDRESS = "tcp://127.0.0.1:8786"


def until(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("never")


def test_lost_and_returned_workers_are_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_watch, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(worker_watch, "GONE_SECONDS", 0.05)
    able = {"tcp://127.0.0.1:1": {"name": "a", "resources": {"browser": 1}}}
    unable = {"tcp://127.0.0.1:2": {"name": "b", "resources": {"trainer": 1}}}
    workers: list[dict[str, Any]] = [able]
    looks: list[int] = []

    def scheduler_info(n_workers: int) -> dict[str, Any]:
        looks.append(n_workers)
        return {"workers": workers[0]}

    client: Any = SimpleNamespace(status="running", scheduler_info=scheduler_info)
    with caplog.at_level(logging.WARNING), watched_workers(client, ADDRESS, "browser"):
        until(lambda: len(looks) > 10)
        assert not caplog.messages
        workers[0] = unable
        until(lambda: len(looks) > 40)
        workers[0] = able
        until(lambda: len(looks) > 60)
    lost, back = caplog.messages
    assert f"dask worker {ADDRESS} --resources browser=1" in lost and "offers 'browser' again" in back


def test_bfloat16_on_a_cpu_without_amx_is_warned_of(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (old := tmp_path / "old").write_text("flags : avx2 avx512_bf16\n")
    (new := tmp_path / "new").write_text("flags : avx2 amx_bf16 amx_tile\n")
    half, whole = TrainerConfig(bf16=True), TrainerConfig(bf16=False)
    assert "slower than float32" in slow_precision(half, old)[0]
    assert slow_precision(half, new) == slow_precision(whole, old) == slow_precision(TrainerConfig(), old) == []
