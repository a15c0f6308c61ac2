"""A run's folder: what may be changed when it is opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envs.types import ConfigError
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.run import open_run
from training.store import read_json, write_json


def _config(root: Path, **changes: Any) -> TrainConfig:
    config: TrainConfig = resolve(TrainConfig, {"root": str(root), "preset": "quickstart", "run_id": "r", **changes})
    return config


def test_a_run_of_before_a_key_was_there_goes_on_with_its_default(tmp_path: Path) -> None:
    with open_run(_config(tmp_path)) as run:
        path = run.store.config_path
    written = read_json(path)
    del written["config"]["rewards"], written["config"]["tasks"]["blocklist_hours"]
    write_json(path, written)
    with open_run(_config(tmp_path)):
        assert "rewards" in read_json(path)["config"]
    write_json(path, written)
    with (
        pytest.raises(ConfigError, match="started with other values of: rewards "),
        open_run(_config(tmp_path, rewards={"length": 0.5})),
    ):
        pass


def test_what_decided_the_run_so_far_may_not_change(tmp_path: Path) -> None:
    with open_run(_config(tmp_path)):
        pass
    with open_run(_config(tmp_path, iterations=99)):
        pass
    with (
        pytest.raises(ConfigError, match="started with other values of: seed, rollout "),
        open_run(_config(tmp_path, seed=4, rollout={"attempts": 2})),
    ):
        pass
