"""What is graded again, and what is refused."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from envs.chat import DamagedLedger, Ledger, SpendingLimits
from envs.rewards import read_rubric, score
from envs.tasks import save_tasks
from envs.types import BrowserError, ConfigError, SeedRange, Split, StorageError, TaskError, WebTask, rubric_hash
from flows.regrade import regrade
from tasks_lib.config import EvaluateConfig, TrainConfig, resolve
from tasks_lib.config.parameters import parameters_of
from tasks_lib.folder.regraded import Regraded, RegradingStart, read_log, write_end, write_start
from tasks_lib.preflight.flows import check_regrading
from tasks_lib.regrading.batches import Regrading, figure
from tasks_lib.regrading.config import RegradeConfig
from tasks_lib.worker.requests import WorkerNeeds
from tests.envs.rewards.played import trajectory
from training.ledger.journal import read_group
from training.ledger.store import RunStore, write_json
from training.records.groups import EpisodeSummary, GroupRecord

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
        token="", group_id="e000000-g0000", task_id="shop/a", kind="a", policy_version=0, episodes=tuple(episodes)
    )
    write_json(store.group_path("e000000-g0000"), record)
    save_tasks(folder / "tasks.jsonl", [TASK])
    write_json(store.config_path, {"config": resolve(EvaluateConfig, {"run_id": "run"}).model_dump(mode="json")})
    return store


def _regrading(folder: Path, **values: Any) -> Regrading:
    given = {"run": str(folder / "run"), "tasks": {"file": str(folder / "tasks.jsonl")}, **values}
    return Regrading(resolve(RegradeConfig, given))


def test_batches_of_what_is_asked_for(tmp_path: Path) -> None:
    _stored(tmp_path)
    (request,) = _regrading(tmp_path).requests()
    assert request.episodes == ("e000000-g0000-s01-a0",) and request.tasks == {"shop/a": TASK}
    everything = _regrading(tmp_path, which="all", batch=2, rewards={"length": 0.5}).requests()
    assert [len(each.episodes) for each in everything] == [2, 1]
    assert {each.rewards.length for each in everything} == {0.5}


def test_episodes_are_graded_by_the_horizon_that_they_had(tmp_path: Path) -> None:
    store = _stored(tmp_path)
    policy = {"kind": "scheduled", "first": 2, "last": 9, "step": 1, "every": 1}
    run = resolve(TrainConfig, {"run_id": "run", "rollout": {"horizon": policy}})
    write_json(store.config_path, {"config": run.model_dump(mode="json")})
    shutil.copy(tmp_path / "tasks.jsonl", store.tasks_path)
    record = read_group(store, "e000000-g0000")
    write_json(
        store.group_path("i000003-g0000"),
        record.model_copy(
            update={
                "group_id": "i000003-g0000",
                "episodes": (record.episodes[0].model_copy(update={"episode_id": "i000003-g0000-s00-a0"}),),
            }
        ),
    )
    (request,) = _regrading(tmp_path, which="all").requests()
    trained, evaluated = "i000003-g0000-s00-a0", "e000000-g0000-s00-a0"
    assert request.attempted(trained, "shop/a").horizon == 5, "the bound of iteration 3"
    assert request.attempted(evaluated, "shop/a").horizon == 10, "no bound in evaluations"
    own = run.model_copy(update={"rollout": run.rollout.model_copy(update={"horizon": None})})
    write_json(store.config_path, {"config": own.model_dump(mode="json")})
    (request,) = _regrading(tmp_path, which="all").requests()
    assert request.attempted(trained, "shop/a").horizon == TASK.horizon


def test_a_name_that_is_used_up_is_not_used_for_other_values(tmp_path: Path) -> None:
    store = _stored(tmp_path)
    again = _regrading(tmp_path, which="all", rewards={"length": 0.5})
    again.begin()
    other = _regrading(tmp_path, which="all", rewards={"length": 0.2})
    other.begin()  # something is left: a judge may have moved
    again.begin()
    for name in again.episodes:
        reward = store.trajectory(name).reward
        result = Regraded(episode_id=name, task_id="shop/a", reward=reward, before=reward)
        write_json(store.regraded_path("again", name), result)
    again.begin()
    for use in (other.begin, lambda: check_regrading(other.config)):
        with pytest.raises(
            ConfigError,
            match=r"graded as 'again' already.*; give another name\n  rewards\.length: 0\.5 then, 0\.2 now$",
        ):
            use()


def test_what_cannot_be_graded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run is not there"):
        _regrading(tmp_path)
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="has no groups"):
        _regrading(tmp_path)
    _stored(tmp_path)
    with pytest.raises(ConfigError, match=r"rewards\.performance: 1 needs rollout\.signals=true.* of the run"):
        _regrading(tmp_path, rewards={"performance": 1})
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
    requests = again.requests()
    assert len(requests) == 3 and {each.spent_path for each in requests} == {again.folder / "judge_spent.sqlite"}
    needs = [WorkerNeeds.of(each) for each in requests]
    assert needs[0] == needs[1] == needs[2], "a worker keeps its judge for the next batch"
    for request in requests:
        played = store.trajectory(request.episodes[0])
        assert Ledger(request.spent_path).claim(SpendingLimits(5, None)) is None
        result = Regraded(
            episode_id=played.episode_id, task_id=played.task_id, reward=played.reward, before=played.reward
        )
        write_json(store.regraded_path("again", played.episode_id), result)
    assert again.summary()["judge"] == {"requests": {"spent": 3, "left": 2}, "tokens": {"spent": 0, "left": None}}
    assert Ledger(store.spent_path()).read().tokens == 77, "the run's own is another"
    without = _regrading(tmp_path, which="all")
    assert "judge" not in without.summary()


def test_what_it_was_started_with_is_kept_while_something_is_left(tmp_path: Path) -> None:
    store = _stored(tmp_path)
    again = _regrading(tmp_path, which="all", rewards={"length": 0.5})
    again.begin()
    (start,) = read_log(store, "again").starts
    assert (start.which, start.episodes, start.ended) == ("all", 3, None)
    assert start.settings["judge"] is None and start.settings["rewards"]["length"] == 0.5
    assert start.settings["tasks"]["file"] == str(tmp_path / "tasks.jsonl")
    assert store.rubric(rubric_hash(RUBRIC)) == RUBRIC, "the report shows what it was graded by"
    again.begin()
    assert len(read_log(store, "again").starts) == 2, "it was stopped, and went on"
    for name in again.episodes:
        reward = store.trajectory(name).reward
        result = Regraded(episode_id=name, task_id="shop/a", reward=reward, before=reward)
        write_json(store.regraded_path("again", name), result)
    again.begin()
    assert len(read_log(store, "again").starts) == 2, "nothing is left"
    write_end(store, "again", 7.0)
    write_end(store, "again", 9.0)
    assert [each.ended for each in read_log(store, "again").starts] == [None, 7.0]
    write_end(store, "never", 1.0)
    assert not store.regrading_path("never").exists()


def test_a_damaged_reward_or_log_is_named_with_what_to_do(tmp_path: Path) -> None:
    store = _stored(tmp_path)
    again = _regrading(tmp_path)
    (name,) = again.episodes
    with pytest.raises(StorageError, match=rf"{name}\.json does not exist; start that regrading again"):
        again.summary()
    write_json(store.regraded_path("again", name), {"episode_id": name})
    with pytest.raises(
        StorageError, match=rf"{name}\.json .*task_id: .*move it to {name}\.json\.damaged and start that regrading"
    ):
        again.summary()
    store.regraded_path("again", name).unlink()
    store.regrading_path("again").write_text("{")
    with pytest.raises(
        StorageError,
        match=r"regrading\.json is damaged: .*from a backup, or start a regrading of another",
    ):
        again.begin()
    store.regrading_path("again").unlink()
    write_start(store, "again", RegradingStart(at=1.0, which="all", episodes=1, settings={}))
    assert len(read_log(store, "again").starts) == 1


def test_the_report_is_written_also_when_a_batch_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _stored(tmp_path)

    def stopped(regrading: Regrading) -> None:
        regrading.begin()
        raise BrowserError("no worker is left")

    monkeypatch.setattr("flows.regrade.use_cluster", lambda *_, **__: nullcontext())
    monkeypatch.setattr(Regrading, "run", stopped)
    given = {"run": str(store.root), "tasks": {"file": str(tmp_path / "tasks.jsonl")}}
    with pytest.raises(BrowserError, match="no worker is left"):
        regrade.fn(**parameters_of(resolve(RegradeConfig, given)))
    assert "0 of 1 episodes are graded" in (store.report_path / "index.html").read_text()


def test_a_regrading_refuses_a_damaged_ledger_before_any_request(tmp_path: Path) -> None:
    store = _stored(tmp_path)
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}}
    again = _regrading(tmp_path, which="all", judge=judge)
    again.folder.mkdir(parents=True)
    (again.folder / "judge_spent.sqlite").write_text('{"requests": -3}')
    with pytest.raises(DamagedLedger, match=r"regraded/again/judge_spent\.sqlite: this is no ledger .*delete the file"):
        again.run()  # outside of a flow: anything that is graded would be another error
    for episode in again.episodes:
        played = store.trajectory(episode)
        result = Regraded(episode_id=episode, task_id=played.task_id, reward=played.reward, before=played.reward)
        write_json(store.regraded_path("again", episode), result)
    with pytest.raises(DamagedLedger):
        again.summary()
    (again.folder / "judge_spent.sqlite").unlink()
    assert again.summary()["judge"]["requests"]["spent"] == 0


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "a/b", ""])
def test_a_name_that_is_no_folder_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        resolve(RegradeConfig, {"run": "runs/mine", "name": name})


def test_it_is_looked_at_before_a_cluster_starts_and_nothing_is_written(tmp_path: Path) -> None:
    def look(**values: Any) -> list[str]:
        return check_regrading(_regrading(tmp_path, **values).config)

    store = _stored(tmp_path)
    assert look(which="all") == ["3 of 3 episodes are to be graded"] and look() == ["1 of 1 episodes are to be graded"]
    (tmp_path / "empty").mkdir()
    for run, said in (("nowhere", "is not there"), ("empty", "has no groups")):
        with pytest.raises(ConfigError, match=f"{run} {said}; name the folder of a run"):
            look(run=str(tmp_path / run))
    spent = store.spent_path("again")
    assert not spent.parent.exists()
    spent.parent.mkdir(parents=True)
    spent.write_text("[7")
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}, "budget_requests": 9}
    with pytest.raises(DamagedLedger, match=r"judge_spent\.sqlite: this is no ledger of what was spent"):
        look(judge=judge)


def test_figures_are_told_as_they_are_read() -> None:
    assert [figure(value) for value in (-0.14999999999999994, None, 3, "no limit")] == [
        "-0.15",
        "unknown",
        "3",
        "no limit",
    ]
