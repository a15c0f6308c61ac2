"""A run's folder: what may be changed when it is opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envs.rewards.judge import DamagedLedger, Ledger
from envs.types import ConfigError
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.evaluation import evaluate_version
from tasks_lib.preflight import look_at_training
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
        pytest.raises(
            ConfigError,
            match=r"started with other values of: seed, rollout (.|\n)*\n  rollout.attempts: 3 then, 2 now\n  seed: 0 then, 4 now$",
        ),
        open_run(_config(tmp_path, seed=4, rollout={"attempts": 2})),
    ):
        pass


def test_a_run_goes_on_with_another_budget_of_its_judge_and_with_nothing_else_of_it(tmp_path: Path) -> None:
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}, "budget_requests": 9}
    with open_run(_config(tmp_path, rollout={"judge": judge})) as run:
        ledger = Ledger(run.store.spent_path())
        for _ in range(9):
            assert ledger.claim(run.rollouts.rollout.judge.limits) is None
        assert (
            ledger.claim(run.rollouts.rollout.judge.limits) == "the budget of 9 requests is used up (budget_requests)"
        )
    greater = {**judge, "budget_requests": 10, "budget_tokens": 500}
    config = _config(tmp_path, rollout={"judge": greater})
    look_at_training(config)
    with open_run(config) as run:
        limits = run.rollouts.order([], 0).rollout.judge.limits
        assert ledger.claim(limits) is None and ledger.claim(limits) is not None, "one more, as what was spent is kept"
        assert read_json(run.store.config_path)["config"]["rollout"]["judge"]["budget_requests"] == 10
    for other, says in (
        ({**judge, "votes": 3}, r"\n  rollout\.judge\.votes: 1 then, 3 now$"),
        (None, r"\n  rollout\.judge: .*, null now$"),
    ):
        with pytest.raises(ConfigError, match=rf"started with other values of: rollout \((.|\n)*{says}"):
            look_at_training(_config(tmp_path, rollout={"judge": other}))


@pytest.mark.parametrize("content", ['{"requests": 7, "to', '{"requests": -7, "tokens": 0}', "[7, 0]", "\0" * 96])
def test_a_run_that_cannot_know_what_its_judge_spent_begins_nothing_and_says_what_to_do(
    tmp_path: Path, content: str
) -> None:
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}, "budget_requests": 9}
    config = _config(tmp_path, rollout={"judge": judge})
    look_at_training(config)
    match = (
        r"judge_spent\.json: expected what was spent, not b.*; nothing is sent until you write .*, or delete the file"
    )
    with open_run(config) as run:
        path = run.store.spent_path()
        path.write_text(content)
        with pytest.raises(
            DamagedLedger, match=match
        ):  # outside of a flow: anything that is rolled out would be another error
            evaluate_version(run.rollouts, 0, run.tasks, episodes=1, workers=1)
        assert path.read_text() == content and not list(run.store.root.glob("groups/*"))
    with pytest.raises(DamagedLedger, match=match):
        look_at_training(config)
    path.unlink()
    look_at_training(config)
    without = _config(tmp_path / "without")
    with open_run(without) as run:
        run.store.spent_path().write_text(content)
    look_at_training(without)  # without a judge nobody counts
