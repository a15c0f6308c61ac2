"""Copies of a run's metrics at other services."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from envs.types import ConfigError
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.folder.metrics import MetricsLog, numbers
from tasks_lib.folder.metrics_lines import EvaluationMetrics
from tasks_lib.preflight.flows import check_training
from tests.envs.adapters.own_environment import run_in

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
