"""Samplers: shares, seeds, states, nodes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.ends import Bucket, bucket_of
from envs.tasks import TaskIndex
from envs.tasks.samplers import (
    CurriculumSampler,
    NoRepeatSampler,
    RatioSampler,
    Sampler,
    SamplerConfig,
    SequentialSampler,
    SuccessSampler,
    UniformSampler,
    make_sampler,
)
from envs.types import SeedRange, Split, TaskError
from tests.envs.tasks.making import task

SIZES = {"shop": 100, "mail": 40, "forum": 20}
TASKS = [task(number, site=site) for site, size in SIZES.items() for number in range(size)]
INDEX = TaskIndex.build(TASKS)
N = len(TASKS)


def curriculum(index: TaskIndex) -> Sampler:
    sampler = CurriculumSampler(index, 5, memory=0.5)
    sampler.observe("kind-1", 1.0)
    return sampler


def success(index: TaskIndex) -> Sampler:
    sampler = SuccessSampler(index, 5, memory=0.5)
    sampler.observe_group("kind-1", "", 1.0, False)
    return sampler


MAKERS: dict[str, Callable[[TaskIndex], Sampler]] = {
    "sequential": lambda index: SequentialSampler(index, limit=70, passes=9),
    "no-repeat": lambda index: NoRepeatSampler(index, 5),
    "uniform, set": lambda index: UniformSampler(index, 5),
    "uniform, equal": lambda index: UniformSampler(index, 5, balance="equal"),
    "ratio": lambda index: RatioSampler(index, {"1": 1, "2-3": 2, Bucket.MANY: 1}, 5),
    "curriculum": curriculum,
    "curriculum, repeating": lambda index: CurriculumSampler(index, 5, repeat=True, avoidance=0.5),
    "success": success,
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_sampler_goes_on_from_its_state(name: str) -> None:
    one = MAKERS[name](INDEX)
    one.draw(37)
    state = json.loads(json.dumps(one.state()))
    assert len(json.dumps(state)) < 1_000
    expected = [one.draw(count).tolist() for count in (5, 0, 100, 64)]
    other = MAKERS[name](TaskIndex.build(TASKS))
    other.resume(state)
    assert [other.draw(count).tolist() for count in (5, 0, 100, 64)] == expected


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_seed_gives_the_same_draw(name: str) -> None:
    one, other = MAKERS[name](INDEX), MAKERS[name](INDEX)
    for count in (5, 0, 60, 1):
        assert one.draw(count).tolist() == other.draw(count).tolist()


@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"sequential"}))
def test_another_seed_draws_other_rows(name: str) -> None:
    one, other = MAKERS[name](INDEX), MAKERS[name](INDEX)
    assert one.draw(50).tolist() == other.draw(50).tolist() != one.draw(50).tolist()
    if name == "no-repeat":
        assert NoRepeatSampler(INDEX, 5).draw(50).tolist() != NoRepeatSampler(INDEX, 6).draw(50).tolist()


def test_sequential_is_the_first_ones_in_order_and_ends() -> None:
    sampler = SequentialSampler(INDEX, limit=5, passes=2)
    assert sampler.draw(3).tolist() == [0, 1, 2]
    assert sampler.draw(4).tolist() == [3, 4, 0, 1]
    assert sampler.draw(9).tolist() == [2, 3, 4]
    assert sampler.draw(9).tolist() == []
    assert len(SequentialSampler(INDEX).draw(1_000)) == N


@given(st.lists(st.integers(0, 90), min_size=1, max_size=8))
def test_no_row_comes_again_before_all_have_come(counts: list[int]) -> None:
    sampler = NoRepeatSampler(INDEX, 1)
    rows = [row for count in [*counts, N] for row in sampler.draw(count).tolist()]
    for start in range(0, len(rows), N):
        part = rows[start : start + N]
        assert len(set(part)) == len(part)
    assert set(rows[:N]) == set(range(N))
    if len(rows) >= 2 * N:
        assert rows[:N] != rows[N : 2 * N]


def test_no_repeat_keeps_the_sites_shares_all_along() -> None:
    rows = NoRepeatSampler(INDEX, 2).draw(N)
    for length in range(1, N + 1):
        counts = Counter(TASKS[row].site for row in rows[:length].tolist())
        for site, size in SIZES.items():
            assert abs(counts[site] - length * size / N) < len(SIZES)


def test_uniform_keeps_the_distribution_of_the_set_or_makes_sites_equal() -> None:
    rows = UniformSampler(INDEX, 3).draw(80)
    assert Counter(TASKS[row].site for row in rows.tolist()).keys() == SIZES.keys()
    assert len(set(rows.tolist())) == 80
    for site, count in Counter(TASKS[row].site for row in rows.tolist()).items():
        assert abs(count - 80 * SIZES[site] / N) <= 4  # a bucket of a site is off by less than one, and there are four
    equal = UniformSampler(INDEX, 3, balance="equal")
    rows = equal.draw(61)
    assert sorted(Counter(TASKS[row].site for row in rows.tolist()).values()) == [20, 20, 21]
    rows = np.concatenate([rows, equal.draw(59)])
    forum = [row for row in rows.tolist() if TASKS[row].site == "forum"]
    assert len(set(forum[:20])) == 20 and len(set(forum[20:])) == 20
    shop = [row for row in rows.tolist() if TASKS[row].site == "shop"]
    assert len(set(shop)) == len(shop) == 40


@settings(max_examples=40)
@given(
    weights=st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any),
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=6),
)
def test_ratio_gives_every_bucket_its_weight(weights: list[int], counts: list[int]) -> None:
    sampler = RatioSampler(INDEX, dict(zip(Bucket, weights, strict=True)), 4)
    drawn: Counter[Bucket] = Counter()
    for count in counts:
        rows = sampler.draw(count)
        drawn.update(bucket_of(TASKS[row].difficulty) for row in rows.tolist())
        for bucket, weight in zip(Bucket, weights, strict=True):
            assert abs(drawn[bucket] - drawn.total() * weight / sum(weights)) < len(Bucket)
            assert weight or not drawn[bucket]


def test_ratio_goes_through_a_bucket_before_a_row_comes_again() -> None:
    hard = {row for row, one in enumerate(TASKS) if one.difficulty >= 7}
    rows = RatioSampler(INDEX, {"7+": 1}, 4).draw(2 * len(hard)).tolist()
    assert set(rows[: len(hard)]) == set(rows[len(hard) :]) == hard


def test_priority_is_4p_1_minus_p_above_the_floor() -> None:
    sampler = CurriculumSampler(INDEX, memory=0.5, floor=0.1)
    assert sampler.priorities().tolist() == [1.0] * N  # nothing tried: p = 1/2
    sampler.observe("kind-0", 1.0)  # p = 0.75: 0.1 + 0.9 * 4 * 0.75 * 0.25 = 0.775
    sampler.observe("kind-1", 0.0)
    sampler.observe("kind-1", 0.0)  # p = 0.125: 0.1 + 0.9 * 4 * 0.125 * 0.875 = 0.49375
    by_kind = dict(zip((one.kind for one in TASKS), sampler.priorities().tolist(), strict=True))
    assert by_kind["kind-0"] == pytest.approx(0.775)
    assert by_kind["kind-1"] == pytest.approx(0.49375)
    assert by_kind["kind-2"] == 1.0
    assert sampler.success == {"kind-0": 0.75, "kind-1": 0.125}


def test_what_is_always_solved_is_drawn_at_the_floor() -> None:
    index = TaskIndex.build([task(number, kind="old" if number < 100 else "new", site="s") for number in range(200)])
    sampler = CurriculumSampler(index, 1, memory=0.0, floor=0.25)
    sampler.observe("old", 1.0)
    drawn = np.concatenate([sampler.draw(1) for _ in range(2_000)])
    # One at a time: the share of the old is 0.25 / 1.25 = 0.2, deviation sqrt(2000 * 0.2 * 0.8) =
    # 17.9; 4 of them.
    assert abs(int((drawn < 100).sum()) - 400) < 4 * 17.9
    assert len(set(sampler.draw(200).tolist())) == 200


def test_groups_without_variance_put_a_kind_back_at_once() -> None:
    sampler = CurriculumSampler(INDEX, memory=0.5, floor=0.1, avoidance=0.8)

    def priority(kind: str) -> float:
        return {one.kind: value for one, value in zip(TASKS, sampler.priorities().tolist(), strict=True)}[kind]

    sampler.observe_group("kind-0", "", 0.0, False)  # p = .25, 4p(1-p) = .75, z = 1: .1 + .9 * .75 * .2
    assert priority("kind-0") == pytest.approx(0.235)
    sampler.observe_group("kind-0", "", 0.5, True)  # p = .375, 4p(1-p) = .9375, z = .5: .1 + .9 * .9375 * .6
    assert priority("kind-0") == pytest.approx(0.60625)
    sampler.observe_group("kind-1", "", 0.5, True)
    assert priority("kind-1") == 1.0 and sampler.flat == {"kind-0": 0.5, "kind-1": 0.0}
    assert CurriculumSampler(INDEX, avoidance=0.0).priorities().tolist() == [1.0] * N


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), data=st.data())
def test_a_repeating_curriculum_takes_every_seed_once_at_most(sizes: list[int], data: st.DataObject) -> None:
    index = TaskIndex.build(
        [task(n, seeds={Split.TRAIN: SeedRange(start=0, stop=size)}) for n, size in enumerate(sizes)]
    )
    count = data.draw(st.integers(0, sum(sizes)))
    sampler = CurriculumSampler(index, 3, repeat=True)
    drawn = Counter(sampler.draw(count).tolist())
    assert drawn.total() == count and all(times <= sizes[row] for row, times in drawn.items())
    with pytest.raises(TaskError, match=f"{sum(sizes) + 1} pages are wanted of {sum(sizes)} training seeds"):
        sampler.draw(sum(sizes) + 1)


def test_a_repeating_curriculum_draws_by_priority() -> None:
    seeds = {Split.TRAIN: SeedRange(start=0, stop=10**6)}
    index = TaskIndex.build([task(0, kind="old", seeds=seeds), task(1, kind="new", seeds=seeds)])
    sampler = CurriculumSampler(index, 1, memory=0.0, floor=0.25, repeat=True)
    sampler.observe("old", 1.0)
    rows = sampler.draw(2_000)
    assert abs(int((rows == 0).sum()) - 400) < 4 * 17.9  # as above


def test_success_is_the_first_group_s_and_then_an_exponential_mean() -> None:
    sampler = SuccessSampler(INDEX, memory=0.75)
    for mean in (1.0, 0.0):
        sampler.observe_group("kind-0", "any", mean, False)
    assert sampler.success == {"kind-0": 0.75}
    chances = Random(3)
    rows = sampler.choose(50, Random(3))
    weight = {"kind-0": 0.75 * 0.25 + 0.05}
    weights = [weight.get(one.kind, 0.3) for one in TASKS]
    assert rows.tolist() == chances.choices(range(N), weights, k=50)
    assert (sampler.drawn, sampler.draws) == (50, 1)


@pytest.mark.parametrize("name", ["success", "curriculum", "uniform", "ratio", "sequential", "no_repeat"])
def test_a_sampler_is_made_of_its_configuration(name: str) -> None:
    config = SamplerConfig.model_validate({"name": name, **({"weights": {1: 1, "2-3": 1}} if name == "ratio" else {})})
    sampler = make_sampler(config, INDEX, 3, memory=0.9, exploration=0.1)
    assert sampler.name.replace("-", "_") == name and len(sampler.draw(20)) == 20
    if name in ("success", "curriculum"):
        assert sampler.arguments()["memory"] == 0.9
    assert make_sampler(None, INDEX, 3, memory=0.9, exploration=0.1).name == "success"


def test_a_sequential_sampler_of_a_configuration_goes_round() -> None:
    sampler = make_sampler(SamplerConfig(name="sequential", limit=3), INDEX, 0, memory=0.5, exploration=0.1)
    assert sampler.draw(7).tolist() == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "ratio"}, "needs weights"),
        ({"name": "uniform", "limit": 3}, r"uniform has no limit \(sequential\)"),
        ({"name": "greedy"}, "name"),
        ({"name": "ratio", "weights": {"8": 1}}, "weights"),
    ],
)
def test_a_configuration_that_says_nothing_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplerConfig.model_validate(values)


def test_the_curriculum_may_be_of_single_tasks() -> None:
    sampler = CurriculumSampler(INDEX, by="task", memory=0.0, floor=0.01)
    sampler.observe(TASKS[3].task_id, 1.0)
    expected = np.ones(N)
    expected[3] = 0.01
    assert sampler.priorities().tolist() == pytest.approx(expected.tolist())
    with pytest.raises(TaskError, match="no task 'kind-1'"):
        sampler.observe("kind-1", 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SequentialSampler(INDEX, limit=0), "must be from 1"),
        (lambda: RatioSampler(INDEX, {"8+": 1}), r"no bucket 8\+; there are 1, 2-3, 4-6, 7\+"),
        (lambda: RatioSampler(INDEX, {"1": 0}), "not all 0"),
        (lambda: RatioSampler(INDEX, {"1": -1, "7+": 2}), "must be from 0"),
        (lambda: RatioSampler(INDEX, {"1": float("nan")}), "must be from 0"),
        (lambda: RatioSampler(TaskIndex.build([task(0, difficulty=1)]), {"7+": 1}), r"no task of bucket 7\+"),
        (lambda: CurriculumSampler(INDEX, floor=0.0), "floor 0.0"),
        (lambda: CurriculumSampler(INDEX, memory=1.0), "memory 1.0"),
        (lambda: CurriculumSampler(INDEX).observe("nothing", 1.0), "no kind 'nothing'"),
        (lambda: CurriculumSampler(INDEX).observe("kind-1", 1.5), "success 1.5 of kind-1"),
        (lambda: CurriculumSampler(INDEX).draw(N + 1), f"{N + 1} distinct tasks are wanted of {N}"),
        (lambda: NoRepeatSampler(TaskIndex.build([])), "no tasks to draw from"),
        (lambda: NoRepeatSampler(INDEX, -1), "seed -1"),
        (lambda: NoRepeatSampler(INDEX).draw(-1), "-1 tasks cannot be drawn"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make()


def test_states_that_do_not_fit_are_refused() -> None:
    state = NoRepeatSampler(INDEX, 1).state()
    for sampler in (
        NoRepeatSampler(INDEX, 2),
        NoRepeatSampler(TaskIndex.build(TASKS[1:]), 1),
        UniformSampler(INDEX, 1),
    ):
        with pytest.raises(TaskError, match="state of a sampler: "):
            sampler.resume(state)
    for progress in (
        None,
        {},
        {"drawn": 1},
        {"drawn": -1, "draws": 0},
        {"drawn": 1.0, "draws": 1},
        {"drawn": True, "draws": 1},
    ):
        with pytest.raises(TaskError, match="progress"):
            NoRepeatSampler(INDEX, 1).resume({**state, "progress": progress})
    ratio = RatioSampler(INDEX, {"1": 1})
    with pytest.raises(TaskError, match="given"):
        ratio.resume({**ratio.state(), "progress": {"drawn": 3, "draws": 1, "given": [1, 1, 0, 0]}})
    for bad in ([], {"kind-1": 2}, {"kind-1": "x"}, {"kind-1": True}, {"kind-1": float("nan")}, {"nothing": 0.5}):
        for sampler, name in (
            (CurriculumSampler(INDEX), "success"),
            (CurriculumSampler(INDEX), "flat"),
            (SuccessSampler(INDEX), "success"),
        ):
            state = sampler.state()
            with pytest.raises(TaskError, match=rf"progress\.{name}|no kind"):
                sampler.resume({**state, "progress": {**state["progress"], name: bad}})
