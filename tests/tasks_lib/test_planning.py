"""Which groups, which slots: pure, repeatable, complete."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.ends import BucketedHorizon, ScheduledHorizon
from envs.rewards import read_rubric
from envs.sites import LiveOptions
from envs.tasks import TaskIndex
from envs.types import ConfigError, SeedRange, Split, TaskError, WebTask, rubric_hash
from tasks_lib.config import TasksConfig
from tasks_lib.folder.task_sets import freeze_tasks, open_tasks
from tasks_lib.rollouts.evaluation import equal_shares, evaluation_groups
from tasks_lib.rollouts.sampling import FEW_SEEDS, training_groups, with_horizon
from tasks_lib.rollouts.shards import share_groups
from tasks_lib.worker.slots import plan_slots
from training.ledger.store import RunStore
from training.records.groups import GroupSpec


def make_task(kind: str, horizon: int = 1) -> WebTask:
    seeds = {Split.TRAIN: SeedRange(start=1000, stop=2000), Split.HELD_OUT: SeedRange(start=0, stop=50)}
    return WebTask(task_id=f"site/{kind}", site="site", kind=kind, path="/", difficulty=1, horizon=horizon, seeds=seeds)


TASKS = [make_task("easy"), make_task("middling"), make_task("hopeless")]


def test_a_group_shares_one_training_seed() -> None:
    for group in training_groups(TASKS * 10, random.Random(1), phase="i000000", group_size=4):
        assert len(set(group.seeds)) == 1 and len(group.seeds) == 4
        assert 1000 <= group.seeds[0] < 2000 and group.enough == 0


def test_a_group_starts_its_extra_episodes_with_the_others() -> None:
    (group,) = training_groups(TASKS[:1], random.Random(1), phase="i000000", group_size=4, extra_episodes=2)
    assert len(set(group.seeds)) == 1 and len(group.seeds) == 6 and group.enough == 4


@given(st.integers(1, 5), st.integers(1, 17))
def test_a_task_of_few_seeds_comes_with_another_one_each_time(seeds: int, times: int) -> None:
    task = make_task("few").model_copy(update={"seeds": {Split.TRAIN: SeedRange(start=7, stop=7 + seeds)}})
    groups = training_groups([task] * times, random.Random(0), phase="i000000", group_size=1)
    for start in range(0, times, seeds):
        part = [group.seeds[0] for group in groups[start : start + seeds]]
        assert len(set(part)) == len(part) and set(part) <= set(range(7, 7 + seeds))
    assert len(TASKS[0].seeds[Split.TRAIN]) <= FEW_SEEDS


def test_a_rubric_that_was_changed_is_never_rolled_out() -> None:
    rubric = read_rubric({"fact_groups": [{"name": "g", "facts": [{"id": "u", "type": "url", "url": "/done"}]}]})
    task = make_task("graded").model_copy(update={"rubric": rubric})
    (group,) = training_groups([task], random.Random(0), phase="i000000", group_size=1)
    assert group.task.rubric_hash == rubric_hash(rubric)
    (evaluated,) = evaluation_groups([task], phase="e000000", episodes=1)
    assert evaluated.task == group.task
    changed = task.model_copy(update={"rubric_hash": "0" * 64})
    for draw in (
        lambda: training_groups([changed], random.Random(0), phase="i000000", group_size=1),
        lambda: evaluation_groups([changed], phase="e000000", episodes=1),
    ):
        with pytest.raises(TaskError, match=r"the rubric of site/graded has the hash .* changed after it was frozen"):
            draw()


def test_evaluation_takes_the_first_held_out_seeds_each_time():
    groups = evaluation_groups(TASKS, phase="e000003", episodes=10)
    assert [group.seeds for group in groups] == [(0, 1, 2, 3), (0, 1, 2), (0, 1, 2)]
    assert all(group.greedy for group in groups)
    with pytest.raises(
        ConfigError, match=r"200 held_out episodes are wanted, and of 3 tasks there are 150 held_out seeds"
    ):
        evaluation_groups(TASKS, phase="e000003", episodes=200)


def test_tasks_without_seeds_of_the_split_are_refused_by_name() -> None:
    tasks = [one_page(number, split=Split.TRAIN) for number in range(3)]
    with pytest.raises(
        ConfigError, match=r"3 tasks, none with held_out seeds; they have train: .*flows.evaluate --set split=train"
    ):
        evaluation_groups(tasks, phase="e000000", episodes=2)


def one_page(number: int, *, site: str = "shop", difficulty: int = 1, split: Split = Split.HELD_OUT) -> WebTask:
    """A task with one instance, as those of live sites have."""
    seeds = {split: SeedRange(start=3, stop=4)}
    return make_task(f"{site}-{number}").model_copy(
        update={"task_id": f"{site}/{number}", "site": site, "difficulty": difficulty, "seeds": seeds}
    )


def test_evaluation_takes_all_of_the_tasks_with_few_seeds() -> None:
    tasks = [one_page(0), TASKS[0], one_page(1, split=Split.TRAIN), one_page(2), TASKS[1]]
    groups = evaluation_groups(tasks, phase="e000000", episodes=11)
    assert [(group.task.task_id, group.seeds) for group in groups] == [
        ("shop/0", (3,)),
        ("site/easy", (0, 1, 2, 3, 4)),
        ("shop/2", (3,)),
        ("site/middling", (0, 1, 2, 3)),
    ]
    with pytest.raises(ConfigError, match=r"4 held_out episodes are wanted, and of 3 tasks there are 3 held_out seeds"):
        evaluation_groups([one_page(number) for number in range(3)], phase="e000000", episodes=4)
    with pytest.raises(ConfigError, match="5 tasks, none with demo seeds"):
        evaluation_groups(tasks, phase="e000000", episodes=1, split=Split.DEMO)


def test_an_evaluation_plays_the_pages_of_a_task_file_and_of_a_run(tmp_path: Path) -> None:
    pages = tmp_path / "pages.jsonl"
    row = next(iter(open_tasks(TasksConfig(kinds=["click-tab"]))))
    chosen = [
        row.model_copy(
            update={"task_id": f"page-{seed}", "seeds": {Split.HELD_OUT: SeedRange(start=seed, stop=seed + 1)}}
        )
        for seed in (7, 4711)
    ]
    pages.write_text("".join(f"{task.model_dump_json()}\n" for task in chosen))
    groups = evaluation_groups(open_tasks(TasksConfig(file=str(pages))), phase="e", episodes=2)
    assert [(group.task.kind, group.seeds) for group in groups] == [("click-tab", (7,)), ("click-tab", (4711,))]

    store = RunStore(tmp_path / "run")
    frozen = freeze_tasks(TasksConfig(kinds=["click-tab", "click-link"]), store)
    again = open_tasks(TasksConfig(file=str(store.tasks_path)))
    assert set(again.kinds) == {"click-tab", "click-link"}
    assert evaluation_groups(again, phase="e", episodes=4) == evaluation_groups(frozen, phase="e", episodes=4)


def test_of_more_tasks_than_episodes_every_site_and_bucket_has_its_share() -> None:
    sizes = {("shop", 1): 60, ("shop", 5): 30, ("wiki", 2): 30}
    tasks = [
        one_page(number + 100 * place, site=site, difficulty=difficulty)
        for place, ((site, difficulty), size) in enumerate(sizes.items())
        for number in range(size)
    ]
    groups = evaluation_groups(tasks, phase="e000002", episodes=40)
    drawn = Counter((group.task.site, group.task.difficulty) for group in groups)
    assert drawn == {("shop", 1): 20, ("shop", 5): 10, ("wiki", 2): 10}
    assert all(group.seeds == (3,) for group in groups)
    assert len({group.task.task_id for group in groups}) == 40
    again = evaluation_groups(TaskIndex.build(tasks), phase="e000009", episodes=40)
    assert [group.task for group in again] == [group.task for group in groups]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_equal_shares_are_as_equal_as_they_can_be(most: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(most)))
    shares = equal_shares(total, most)
    assert sum(shares) == total and all(0 <= share <= limit for share, limit in zip(shares, most, strict=True))
    free = [share for share, limit in zip(shares, most, strict=True) if share < limit]
    assert not free or max(shares) - min(free) <= 1


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=20), st.integers(1, 16))
def test_every_episode_is_planned_once(shapes, slots):
    groups = [
        GroupSpec(group_id=f"i000000-g{n:04d}", task=make_task(f"k{n % 3}", horizon), seeds=(1,) * size)
        for n, (horizon, size) in enumerate(shapes)
    ]
    plans = plan_slots(groups, slots)
    planned = sorted(item for plan in plans for item in plan)
    assert planned == [(index, sample) for index, group in enumerate(groups) for sample in range(len(group.seeds))]
    assert len(plans) <= slots
    assert plans == plan_slots(groups, slots)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 12))
def test_shards_hold_every_group_once(count, workers, groups_per_task):
    groups = [GroupSpec(group_id=f"i000000-g{n:04d}", task=TASKS[0], seeds=(1,)) for n in range(count)]
    shards = share_groups(groups, workers=workers, groups_per_task=groups_per_task, live=LiveOptions())
    assert [group for shard in shards for group in shard] == groups
    assert groups_per_task or len(shards) <= workers
    *whole, last = [len(shard) for shard in shards]
    most = groups_per_task or math.ceil(count / workers)
    assert set(whole) <= {most} and 1 <= last <= most


def test_horizons_are_the_policy_s_by_difficulty_split_and_iteration():
    tasks = [make_task("one", horizon=2).model_copy(update={"difficulty": difficulty}) for difficulty in (1, 5)]
    assert with_horizon(tasks[0], None, Split.TRAIN) == tasks[0]
    bucketed = BucketedHorizon(test_factor=2)
    assert [with_horizon(task, bucketed, Split.TRAIN).horizon for task in tasks] == [10, 20]
    assert [with_horizon(task, bucketed, Split.HELD_OUT).horizon for task in tasks] == [20, 40]
    scheduled = ScheduledHorizon(first=4, last=30, step=4, every=2)
    assert [with_horizon(tasks[1], scheduled, Split.TRAIN, i).horizon for i in (0, 1, 2, 50)] == [4, 4, 8, 20]
