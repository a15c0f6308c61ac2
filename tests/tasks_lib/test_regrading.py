"""What is graded again, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envs.rewards import read_rubric, score
from envs.rewards.judge import DamagedLedger, Ledger, Limits
from envs.tasks import save_tasks
from envs.types import ConfigError, SeedRange, Split, TaskError, WebTask, rubric_hash
from tasks_lib.config import resolve
from tasks_lib.orders import Needs, Regraded
from tasks_lib.regrading import RegradeConfig, Regrading
from tests.envs.rewards.played import trajectory
from training.groups import EpisodeSummary, GroupRecord
from training.store import RunStore, write_json

RUBRIC = read_rubric({"fact_groups": [{"name": "a", "facts": [{"id": "b", "type": "url", "url": "/"}]}]})
SEEDS = {Split.TRAIN: SeedRange(start=0, stop=9)}
TASK = WebTask(
    task_id="shop/a",
    site="shop",
    kind="a",
    path="/",
    difficulty=1,
    horizon=3,
    seeds=SEEDS,
    rubric=RUBRIC,
    rubric_hash=rubric_hash(RUBRIC),
)


def _stored(folder: Path) -> RunStore:
    """A group of three: a reward, an abstention, another reward."""
    store = RunStore(folder / "run")
    rewards = [None, score([], abstained="the judge was out of reach"), None]
    episodes = []
    for sample, reward in enumerate(rewards):
        more: dict[str, Any] = {} if reward is None else {"reward": reward}
        played = trajectory(
            episode_id=f"e000000-g0000-s0{sample}-a0", group_id="e000000-g0000", task_id="shop/a", sample=sample, **more
        )
        store.put_trajectory(played)
        episodes.append(EpisodeSummary.of(played))
    record = GroupRecord(
        group_id="e000000-g0000", task_id="shop/a", kind="a", policy_version=0, episodes=tuple(episodes)
    )
    write_json(store.group_path("e000000-g0000"), record)
    save_tasks(folder / "tasks.jsonl", [TASK])
    return store


def _regrading(folder: Path, **values: Any) -> Regrading:
    given = {"run": str(folder / "run"), "tasks": {"file": str(folder / "tasks.jsonl")}, **values}
    return Regrading(resolve(RegradeConfig, given))


def test_batches_of_what_is_asked_for(tmp_path: Path) -> None:
    _stored(tmp_path)
    (order,) = _regrading(tmp_path).orders()
    assert order.episodes == ("e000000-g0000-s01-a0",) and order.tasks == {"shop/a": TASK}
    everything = _regrading(tmp_path, which="all", batch=2, rewards={"length": 0.5}).orders()
    assert [len(each.episodes) for each in everything] == [2, 1]
    assert {each.rewards.length for each in everything} == {0.5}


def test_what_cannot_be_graded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no groups"):
        _regrading(tmp_path)
    _stored(tmp_path)
    save_tasks(tmp_path / "tasks.jsonl", [TASK.model_copy(update={"task_id": "shop/b"})])
    with pytest.raises(ConfigError, match="no task 'shop/a' among the 1"):
        _regrading(tmp_path)
    changed = TASK.model_copy(update={"rubric": RUBRIC.model_copy(update={"pass_threshold": 0.5})})
    (tmp_path / "tasks.jsonl").write_text(changed.model_dump_json(exclude_defaults=True) + "\n")
    with pytest.raises(TaskError, match=r"rubric"):
        _regrading(tmp_path)


def test_a_regrading_has_a_budget_of_its_own_for_all_of_its_batches(tmp_path: Path) -> None:
    store = _stored(tmp_path)
    Ledger(store.spent_path()).pay(77)
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}, "budget_requests": 5}
    again = _regrading(tmp_path, which="all", batch=1, judge=judge)
    orders = again.orders()
    assert len(orders) == 3 and {each.spent_path for each in orders} == {again.folder / "judge_spent.json"}
    needs = [Needs.of(each) for each in orders]
    assert needs[0] == needs[1] == needs[2], "a worker keeps its judge for the next batch"
    for order in orders:
        played = store.trajectory(order.episodes[0])
        assert Ledger(order.spent_path).claim(Limits(5, None)) is None
        result = Regraded(
            episode_id=played.episode_id, task_id=played.task_id, reward=played.reward, before=played.reward
        )
        write_json(store.regraded_path("again", played.episode_id), result)
    assert again.summary()["judge"] == {"requests": {"spent": 3, "left": 2}, "tokens": {"spent": 0, "left": None}}
    assert Ledger(store.spent_path()).read().tokens == 77, "the run's own is another"
    without = _regrading(tmp_path, which="all")
    assert "judge" not in without.summary()


def test_a_regrading_whose_ledger_is_damaged_says_so_before_it_asks_for_anything(tmp_path: Path) -> None:
    store = _stored(tmp_path)
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}}
    again = _regrading(tmp_path, which="all", judge=judge)
    again.folder.mkdir(parents=True)
    (again.folder / "judge_spent.json").write_text('{"requests": -3}')
    with pytest.raises(
        DamagedLedger, match=r"regraded/again/judge_spent\.json: expected what was spent, .*delete the file"
    ):
        again.run()  # outside of a flow: anything that is graded would be another error
    for episode in again.episodes:
        played = store.trajectory(episode)
        result = Regraded(episode_id=episode, task_id=played.task_id, reward=played.reward, before=played.reward)
        write_json(store.regraded_path("again", episode), result)
    with pytest.raises(DamagedLedger):
        again.summary()
    (again.folder / "judge_spent.json").unlink()
    assert again.summary()["judge"]["requests"]["spent"] == 0
