"""Copies of a run's metrics at other services."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import psutil
import pytest

from envs.types import ConfigError
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.folder.metrics import MetricsLog, numbers
from tasks_lib.folder.metrics_lines import EvaluationMetrics
from tasks_lib.folder.trackers import open_trackers
from tasks_lib.preflight.flows import check_training
from tests.envs.adapters.own_environment import framework_python, run_in
from training.trainer.control.launch import free_port

PLAY = """
import json, logging, sys
from pathlib import Path
from tasks_lib.folder.trackers import open_trackers

warnings = []
logging.getLogger("tasks_lib.folder.trackers").addFilter(lambda record: warnings.append(record.getMessage()))
folder, ids = Path(sys.argv[1]), []
for start in range(2):
    (tracker,) = open_trackers(["wandb"], folder, {"seed": 7})
    tracker.log("train", {"train/loss": 0.5078125 + start, "train/kl_by_images/1": 0.25}, 3 + start)
    tracker.log("evaluation", {"evaluation/success/mean": 0.75}, 0)
    tracker.close(failed=False)
    ids.append((folder / "wandb.id").read_text())
tracker.log("train", {"train/loss": 1.0}, 5)
tracker.log("train", {"train/loss": 1.0}, 6)
print(json.dumps({"ids": ids, "warnings": warnings}))
"""


class Copied:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, float], int]] = []
        self.closed: list[bool] = []

    def log(self, kind: str, values: Mapping[str, float], step: int) -> None:
        self.lines.append((kind, dict(values), step))

    def close(self, failed: bool) -> None:
        self.closed.append(failed)


def test_a_tracker_gets_the_numbers_of_each_line(tmp_path: Path) -> None:
    copied = Copied()
    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", [copied])
    for version in (0, 4):
        line = EvaluationMetrics(version=version, mean=0.5, low=0.2, high=0.8, n=8 + version)
        log.append(line, version)
    log.close()
    written = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    assert copied.lines == [
        (line["kind"], dict(numbers(line, line["kind"])), version)
        for line, version in zip(written, (0, 4), strict=True)
    ]
    assert copied.lines[1][1][f"{written[1]['kind']}/n"] == 12 and copied.closed == [False]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="W&B is installed here")
def test_a_tracker_that_is_not_installed_is_refused_before_a_run(tmp_path: Path) -> None:
    config = resolve(TrainConfig, {"preset": "quickstart", "root": str(tmp_path), "trackers": ["wandb"]})
    with pytest.raises(ConfigError, match="trackers: wandb is not installed; install it: uv pip install"):
        check_training(config)
    assert not config.run_dir.exists()


def test_mlflow_without_a_server_is_refused_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(TrainConfig, {"preset": "quickstart", "root": str(tmp_path), "trackers": ["mlflow"]})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI=sqlite.* names none"):
        check_training(config)
    assert not config.run_dir.exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConfigError, match="refuses the run"):
        open_trackers(["mlflow"], tmp_path, {})


@pytest.mark.frameworks
def test_mlflow_keeps_the_lines_of_both_starts_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On its own server, which is asked by its own address; and once that has ended."""
    with mlflow_server(tmp_path) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        config = {"seed": 7, "rollout": {"kinds": ["a"], **{f"key{number}": number for number in range(120)}}}
        for start in range(2):
            (tracker,) = open_trackers(["mlflow"], tmp_path / "run", {**config, "iterations": start})
            tracker.log(
                "train", {"train/loss": 0.5 + start, **{f"train/x/{number}": 0.0 for number in range(1100)}}, 3 + start
            )
            tracker.log("evaluation", {"evaluation/success/mean": 0.75}, 0)
            tracker.close(failed=not start)
        api, run = f"{address}/api/2.0/mlflow", (tmp_path / "run" / "mlflow.id").read_text()
        kept = httpx.get(f"{api}/runs/get", params={"run_id": run}, timeout=60).json()["run"]
        assert (kept["info"]["run_name"], kept["info"]["status"]) == ("run", "FINISHED")
        params = {each["key"]: each["value"] for each in kept["data"]["params"]}
        assert len(params) == 123 and (params["seed"], params["rollout.kinds"], params["iterations"]) == (
            "7",
            '["a"]',
            "0",
        )
        assert len(kept["data"]["metrics"]) == 1102
        history = httpx.get(
            f"{api}/metrics/get-history", params={"run_id": run, "metric_key": "train/loss"}, timeout=60
        ).json()
        assert [(each["step"], each["value"]) for each in history["metrics"]] == [(3, 0.5), (4, 1.5)]
        (tracker,) = open_trackers(["mlflow"], tmp_path / "run", config)
    for step in (5, 6):
        tracker.log("train", {"train/loss": 1.0}, step)
    tracker.close(failed=False)
    assert [message.partition(":")[0] for message in caplog.messages if message.startswith("MLflow")] == [
        "MLflow does not take the metrics of step 5",
        "MLflow does not take the end of the run",
    ]


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """A server of its own environment, on loopback; its address."""
    port, python = free_port(), framework_python("mlflow")
    store = f"sqlite:///{folder}/mlflow.db"
    command = [str(python), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with open(folder / "mlflow.log", "wb") as log:
        server = subprocess.Popen(
            [*command, "--backend-store-uri", store],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    family = psutil.Process(server.pid)
    try:
        address = f"http://127.0.0.1:{port}"
        while not answers(f"{address}/health"):
            assert server.poll() is None, (folder / "mlflow.log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        for process in [*family.children(recursive=True), family]:
            process.kill()
        server.wait()


def answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=60).is_success
    except httpx.HTTPError:
        return False


@pytest.mark.frameworks
def test_weights_and_biases_keeps_the_lines_of_both_starts_of_a_run(tmp_path: Path) -> None:
    """In its offline mode; its files have the lines that it would send."""
    out = run_in("wandb", PLAY, str(tmp_path), WANDB_MODE="offline", WANDB_PROJECT="project-x")
    assert len({*out["ids"]}) == 1
    one, two = (path.read_bytes() for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")))
    for data in (one, two):
        assert all(name in data for name in (b"project-x", out["ids"][0].encode(), b"train/kl_by_images/1", b"0.75"))
    assert b"1.5078125" in two and b"1.5078125" not in one
    (warning,) = out["warnings"]
    assert "does not take the metrics of step 5" in warning, "said once, and nothing raised"
