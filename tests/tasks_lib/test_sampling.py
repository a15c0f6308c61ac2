"""What a run draws, iteration after iteration."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from envs.tasks import TreeLayout, save_tasks, write_tree
from envs.types import ConfigError, MemoryChange, SeedRange, Split, StopReason, StorageError, TaskError, WebTask
from tasks_lib.config import RolloutConfig, TrainConfig, resolve
from tasks_lib.loops.run import TrainingRun, open_run
from tasks_lib.rollouts.evaluation import evaluation_groups
from training.ledger.journal import read_group
from training.ledger.store import RunStore, read_json, write_json
from training.records.groups import EpisodeSummary, GroupRecord, GroupSpec, StepShape

QUICKSTART = {
    "i000000": "ac0ce20747825d5f",
    "i000001": "9d5ac9797c4f1d3d",
    "i000001-r1": "c9903282a1b2ff7f",
    "i000002": "88cbcffde0e9e0b2",
}
"""Draws of the quickstart before there were samplers to choose from (commit 01475eb)."""
QUICKSTART_EVALUATION = "cb063dba40698519"


def digest(groups: Sequence[GroupSpec]) -> str:
    """Of everything that a draw decides."""
    told = [[g.group_id, g.task.task_id, g.task.horizon, list(g.seeds), g.greedy] for g in groups]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def made_up(group: GroupSpec, number: int) -> GroupRecord:
    """What came of a group: scores and abstentions that differ from group to group."""
    episodes = []
    for sample in range(len(group.seeds)):
        lost = (number + sample) % 11 == 0
        score = None if lost else float((len(group.task.kind) * 7 + sample * number) % 5 < 2)
        episodes.append(
            EpisodeSummary(
                episode_id=group.episode_id(sample, 0),
                seed=group.seeds[sample],
                sample=sample,
                score=score,
                passed=bool(score),
                steps=1,
                response_tokens=1,
                stop_reason=StopReason.DONE,
                abstained="lost" if lost else None,
                shapes=(StepShape(1, 1, 0),),
                sha256="",
            )
        )
    return GroupRecord(
        token="",
        group_id=group.group_id,
        task_id=group.task.task_id,
        kind=group.task.kind,
        policy_version=0,
        episodes=tuple(episodes),
    )


def play(run: TrainingRun, iteration: int, draw: int = 0) -> list[GroupSpec]:
    """Draw groups and commit what came of them."""
    groups = run.sampler.groups(iteration, draw)
    for number, group in enumerate(groups):
        write_json(run.store.group_path(group.group_id), made_up(group, number))
    return groups


def test_the_quickstart_draws_what_it_always_drew(tmp_path: Path) -> None:
    config: TrainConfig = resolve(TrainConfig, {"preset": "quickstart", "root": str(tmp_path)})
    with open_run(config) as run:
        drawn = [play(run, 0), play(run, 1), play(run, 1, 1), play(run, 2)]
        evaluated = evaluation_groups(run.tasks, phase="e000000", episodes=config.evaluation.episodes)
    assert {groups[0].group_id.rpartition("-")[0]: digest(groups) for groups in drawn} == QUICKSTART
    assert digest(evaluated) == QUICKSTART_EVALUATION
    assert RunStore(config.run_dir).tasks_path.exists()


# ----------------------------------------------------------------------------
# samplers

SAMPLERS: dict[str, dict[str, Any] | None] = {
    "success": None,
    "curriculum": {"name": "curriculum"},
    "curriculum by task": {"name": "curriculum", "by": "task", "avoidance": 0.9},
    "uniform": {"name": "uniform"},
    "uniform, equal": {"name": "uniform", "balance": "equal"},
    "ratio": {"name": "ratio", "weights": {"1": 1, "4-6": 2}},
    "sequential": {"name": "sequential", "limit": 5},
    "no_repeat": {"name": "no_repeat"},
}


def make_config(root: Path, run_id: str = "run", **tasks: Any) -> TrainConfig:
    """A run of six groups of three an iteration."""
    values = {
        "run_id": run_id,
        "root": str(root),
        "tasks": tasks,
        "rollout": {"groups_per_iteration": 6},
        "algorithm": {"group_size": 3},
    }
    config: TrainConfig = resolve(TrainConfig, values)
    return config


def write_set(folder: Path, count: int = 23) -> Path:
    """A tree of tasks on three sites, some with one seed, every tenth for evaluation alone."""
    write_tree(folder, [make_task(number) for number in range(count)], TreeLayout.JSON)
    return folder


def make_task(number: int) -> WebTask:
    train, held_out = SeedRange(start=10, stop=11 + 5 * (number % 3)), SeedRange(start=0, stop=4)
    return WebTask(
        task_id=f"site-{number % 3}/{number}",
        site=f"site-{number % 3}",
        kind=f"kind-{number % 4}",
        path="/",
        difficulty=1 + number % 5,
        horizon=3,
        seeds={Split.HELD_OUT: held_out} if number % 10 == 9 else {Split.TRAIN: train, Split.HELD_OUT: held_out},
    )


MOMENTS = [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)]
"""Iterations and draws of a run; the second one had nothing to learn from."""


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_resumed_run_draws_what_an_uninterrupted_one_draws(name: str, tmp_path: Path) -> None:
    file = str(write_set(tmp_path / "set"))
    config = make_config(tmp_path, file=file, sampler=SAMPLERS[name])
    with open_run(config) as run:
        whole = [play(run, *moment) for moment in MOMENTS]
    assert len({digest(groups) for groups in whole}) == len(MOMENTS)
    assert all(len(groups) == 6 for groups in whole)

    other = make_config(tmp_path / "other", file=file, sampler=SAMPLERS[name])
    pieces = []
    for moment in MOMENTS:  # a new process for each draw
        with open_run(other) as run:
            run.sampler.groups(moment[0], 0)  # drawn again, as after a kill
            pieces.append(play(run, *moment))
    assert pieces == whole

    shutil.rmtree(config.run_dir / "starts")
    (config.run_dir / "journal.sqlite").unlink()
    with open_run(config) as run:  # made again from the groups alone
        assert run.sampler.groups(3, 0) == whole[-1]
        assert [run.sampler.groups(*moment) for moment in MOMENTS] == whole


def test_an_iteration_reads_the_groups_of_the_one_before_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(store: RunStore, group_id: str) -> GroupRecord:
        read.append(group_id)
        return read_group(store, group_id)

    monkeypatch.setattr("tasks_lib.rollouts.sampling.read_group", counted)
    with open_run(make_config(tmp_path, file=str(write_set(tmp_path / "set")))) as run:
        for iteration in range(5):
            play(run, iteration)
        assert read == [f"i{iteration:06d}-g{group:04d}" for iteration in range(4) for group in range(6)]
    read.clear()
    with open_run(make_config(tmp_path, file=str(tmp_path / "set"))) as run:
        run.sampler.groups(4, 0)
        assert read == []
        assert sorted(path.stem for path in (run.store.root / "starts").iterdir()) == ["i000003", "i000004"]


def test_kinds_of_middling_success_are_drawn_most(tmp_path: Path, synthetic_group: Callable[..., GroupRecord]) -> None:
    config = make_config(tmp_path, kinds=["click-test", "click-link", "click-tab"]).model_copy(
        update={"rollout": RolloutConfig(groups_per_iteration=300)}
    )
    with open_run(config) as run:
        for number, (kind, scores) in enumerate(
            {"click-test": [1, 1], "click-link": [0, 1], "click-tab": [0, 0]}.items()
        ):
            record = synthetic_group(f"i000000-g{number:04d}", scores, kind=kind)
            write_json(run.store.group_path(record.group_id), record)
        drawn = Counter(group.task.kind for group in run.sampler.groups(1, 0))
    assert drawn["click-link"] > 200 and drawn["click-test"] > 0 and drawn["click-tab"] > 0


def test_a_start_of_another_set_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path / "set")
    config = make_config(tmp_path, file=str(tmp_path / "set"), sampler={"name": "no_repeat"})
    with open_run(config) as run:
        play(run, 0)
        play(run, 1)
        path = run.store.sampler_state_path(1)
        value = read_json(path)
        write_json(path, value | {"sampler": value["sampler"] | {"tasks": "others"}})
    with open_run(config) as run, pytest.raises(TaskError, match="tasks is 'others'"):
        run.sampler.groups(1, 0)
    path.write_text("{}")
    with (
        open_run(config) as run,
        pytest.raises(StorageError, match=r"is no sampler state of an iteration: .*move it to i000001\.json\.damaged"),
    ):
        run.sampler.groups(1, 0)


def test_tasks_without_training_seeds_are_not_drawn(tmp_path: Path) -> None:
    config = make_config(tmp_path, file=str(write_set(tmp_path / "set")), sampler={"name": "no_repeat"})
    with open_run(config) as run:
        assert len(run.tasks) == 23
        drawn = {group.task.task_id for iteration in range(4) for group in play(run, iteration)}
    assert drawn == {make_task(number).task_id for number in range(23) if number % 10 != 9}
    save_tasks(tmp_path / "held.jsonl", [make_task(9), make_task(19)])
    with pytest.raises(ConfigError, match="none of 2 tasks has seeds of the split train"):
        TrainingRun(make_config(tmp_path, "held", file=str(tmp_path / "held.jsonl")))


# ----------------------------------------------------------------------------
# family memory


def play_with_notes(run: TrainingRun, iteration: int) -> list[GroupSpec]:
    """As `play`; every episode keeps where it was and forgets the oldest note, some without a
    reward."""
    groups = run.sampler.groups(iteration, 0)
    for number, group in enumerate(groups):
        record = made_up(group, number)
        oldest = [MemoryChange(key=entry.key, value=None) for entry in group.memory[:1]]
        episodes = [
            episode.model_copy(
                update={
                    "memory": (
                        *oldest,
                        MemoryChange(key=f"last of {episode.sample}", value=episode.episode_id),
                        MemoryChange(key="best", value=episode.episode_id),
                    )
                }
            )
            for episode in record.episodes
        ]
        write_json(run.store.group_path(group.group_id), record.model_copy(update={"episodes": tuple(episodes)}))
    return groups


def test_family_memory_lasts_over_iterations_and_a_resume(tmp_path: Path) -> None:
    file = str(write_set(tmp_path / "set"))
    config = make_config(tmp_path, file=file).model_copy(
        update={"rollout": RolloutConfig(groups_per_iteration=6, memory="family")}
    )
    with open_run(config) as run:
        whole = [play_with_notes(run, iteration) for iteration in range(4)]
        memories = [run.sampler.memories(version) for version in range(5)]
    assert not any(group.memory for group in whole[0])
    assert any(group.memory for group in whole[1]) and memories[0] == {}
    for number, groups in enumerate(whole):
        for (
            group
        ) in groups:  # all see what their family knew when the iteration began, whatever the others write meanwhile
            assert group.memory == memories[number].get(f"{group.task.site}/{group.task.kind}", ())
            assert all(entry.value < f"i{number:06d}" for entry in group.memory)
    # The best episode's note stays; those without a reward leave none.
    records = [made_up(group, number) for number, group in enumerate(whole[0])]
    for name, memory in memories[1].items():
        mine = [
            episode
            for record, group in zip(records, whole[0], strict=True)
            if f"{group.task.site}/{group.task.kind}" == name
            for episode in record.usable
        ]
        best = max(mine, key=lambda episode: (episode.score, episode.episode_id))
        assert {entry.key: entry.value for entry in memory}["best"] == best.episode_id
        assert {entry.value for entry in memory} <= {episode.episode_id for episode in mine}

    shutil.rmtree(config.run_dir / "starts")
    with open_run(config) as run:
        assert [run.sampler.groups(iteration, 0) for iteration in range(4)] == whole
        assert [run.sampler.memories(version) for version in range(5)] == memories


def test_without_a_memory_of_families_nothing_is_remembered(tmp_path: Path) -> None:
    config = make_config(tmp_path, file=str(write_set(tmp_path / "set")))
    with open_run(config) as run:
        for iteration in range(3):
            assert not any(group.memory for group in play_with_notes(run, iteration))
        assert run.sampler.memories(2) == {} and run.sampler.state(3).memories == {}
