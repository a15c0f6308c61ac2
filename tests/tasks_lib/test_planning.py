"""Which groups, which slots: pure, repeatable, complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.ends import BucketedHorizon, ScheduledHorizon
from envs.types import ConfigError, SeedRange, Split, WebTask
from tasks_lib.planning import (
    evaluation_groups,
    plan_slots,
    running_success,
    sample_groups,
    share_groups,
    with_horizons,
)
from training.groups import GroupRecord, GroupSpec


def make_task(kind: str, horizon: int = 1) -> WebTask:
    seeds = {Split.TRAIN: SeedRange(start=1000, stop=2000), Split.HELD_OUT: SeedRange(start=0, stop=50)}
    return WebTask(task_id=f"site/{kind}", site="site", kind=kind, path="/", difficulty=1, horizon=horizon, seeds=seeds)


TASKS = [make_task("easy"), make_task("middling"), make_task("hopeless")]


def sample(success, seed=0, phase="i000000", count=400):
    return sample_groups(TASKS, success, phase=phase, count=count, group_size=4, exploration=0.05, seed=seed)


def test_the_same_arguments_draw_the_same_groups_and_others_do_not():
    assert sample({}) == sample({})
    assert sample({}) != sample({}, seed=1)
    assert sample({}) != sample({}, phase="i000001")


def test_kinds_of_middling_success_are_drawn_most():
    drawn = [group.task.kind for group in sample({"easy": 1.0, "middling": 0.5, "hopeless": 0.0})]
    assert drawn.count("middling") > 0.7 * len(drawn)
    assert drawn.count("easy") > 0 and drawn.count("hopeless") > 0


def test_a_group_shares_one_training_seed():
    for group in sample({}, count=50):
        assert len(set(group.seeds)) == 1 and len(group.seeds) == 4
        assert 1000 <= group.seeds[0] < 2000


def test_evaluation_takes_the_first_held_out_seeds_each_time():
    groups = evaluation_groups(TASKS, phase="e000003", episodes=10)
    assert [group.seeds for group in groups] == [(0, 1, 2, 3), (0, 1, 2), (0, 1, 2)]
    assert all(group.greedy for group in groups)
    with pytest.raises(ConfigError, match="has 50"):
        evaluation_groups(TASKS, phase="e000003", episodes=200)


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
def test_lots_hold_every_group_once(count, workers, groups_per_task):
    groups = [GroupSpec(group_id=f"i000000-g{n:04d}", task=TASKS[0], seeds=(1,)) for n in range(count)]
    lots = share_groups(groups, workers=workers, groups_per_task=groups_per_task)
    assert [group for lot in lots for group in lot] == groups
    assert groups_per_task or len(lots) <= workers


def test_running_success_forgets_and_skips_groups_without_a_reward(synthetic_group):
    records: list[GroupRecord] = [
        synthetic_group("i000000-g0000", [1, 1]),
        synthetic_group("i000001-g0000", [None, None]),
        synthetic_group("i000002-g0000", [0, 0]),
    ]
    assert running_success(records, memory=0.75) == {"click-test": 0.75}


def test_horizons_are_the_policy_s_by_difficulty_split_and_iteration():
    tasks = [make_task("one", horizon=2).model_copy(update={"difficulty": difficulty}) for difficulty in (1, 5)]
    assert with_horizons(tasks, None, Split.TRAIN) == tasks
    bucketed = BucketedHorizon(test_factor=2)
    assert [task.horizon for task in with_horizons(tasks, bucketed, Split.TRAIN)] == [10, 20]
    assert [task.horizon for task in with_horizons(tasks, bucketed, Split.HELD_OUT)] == [20, 40]
    scheduled = ScheduledHorizon(first=4, last=30, step=4, every=2)
    assert [with_horizons(tasks, scheduled, Split.TRAIN, i)[1].horizon for i in (0, 1, 2, 50)] == [4, 4, 8, 20]
