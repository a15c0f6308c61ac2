"""The simulator against closed forms, laws of conservation and a published run."""

from __future__ import annotations

import dataclasses

import pytest

from training.pacing.concurrency import Bounds
from training.pacing.simulate import simulate
from training.pacing.station import Clock, Station
from training.pacing.workload import Distribution, Machine, Schedule, Workload

ALIKE = Workload(
    group_size=4,
    success_steps=Distribution(5),
    failure_steps=Distribution(5),
    reset_seconds=Distribution(1),
    browser_seconds=Distribution(2),
    generation_seconds=Distribution(3),
    judge_seconds=Distribution(4),
    update_seconds=Distribution(20),
    success=(1000.0, 1000.0),
)
"""Every episode takes 1 + 5 * (2 + 3) = 26 s and 4 s of judging: a rollout of 30 s."""
ROOMY = Machine(browsers=10_000, engine_turns=10_000)
VARIED = Workload(abstain=0.05, judge_seconds=Distribution(3, 0.5), publish_seconds=2, pause_seconds=0.5)
SMALL = Machine(browsers=48, engine_turns=24)


def without_variance_check(workload: Workload) -> Workload:
    """Groups so large that one without both outcomes is 1 in 2,000."""
    return dataclasses.replace(workload, group_size=12)


def test_the_period_is_the_sum_or_the_longer_of_rollout_and_update() -> None:
    workload = without_variance_check(ALIKE)
    synchronous = simulate(workload, ROOMY, Schedule(batch=2), versions=5)
    assert synchronous.period == pytest.approx(30 + 20)
    assert (synchronous.collection, synchronous.update) == pytest.approx((30, 20))
    assert synchronous.episodes_per_hour == pytest.approx(2 * 12 / 50 * 3600)
    assert simulate(workload, ROOMY, Schedule(2, staleness=4), versions=20).period == pytest.approx(20)
    assert simulate(workload, ROOMY, Schedule(2, staleness=4), versions=20).binds == "trainer"
    slow = dataclasses.replace(workload, update_seconds=Distribution(1))
    # One batch after the other through browsers that hold just one: 26 s of browser each, judging
    # does not hold it.
    machine = Machine(browsers=24, engine_turns=10_000)
    assert simulate(slow, machine, Schedule(2, staleness=4), versions=40).period == pytest.approx(26, rel=0.02)


def test_a_shared_engine_takes_the_work_divided_by_its_speed() -> None:
    """24 episodes of 15 turn-seconds, 10 at a time: an engine in full use cannot be quicker."""
    workload = dataclasses.replace(
        without_variance_check(ALIKE), update_seconds=Distribution(1), judge_seconds=Distribution(0)
    )
    result = simulate(workload, Machine(browsers=400, engine_turns=10), Schedule(2, staleness=4, depth=4), versions=20)
    assert result.period == pytest.approx(2 * 12 * 5 * 3 / 10, rel=0.02)
    assert result.binds == "engine" and result.engine_idle == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    ("capacity", "ends"),
    [
        (2, [6, 7.5, 8.5, 8.5]),  # four at speed 1/2 for 6 s, three at 2/3 for 1.5 s, two at full speed
        (9, [3, 4, 5, 5]),
    ],
)
def test_a_station_against_processor_sharing_by_hand(capacity: float, ends: list[float]) -> None:
    clock, found = Clock(), list[float]()
    station = Station(clock, capacity)
    works = [3, 4, 5, 5]
    for work in works:
        station.submit(work, lambda: found.append(clock.now))
    while clock.step():
        pass
    assert found == pytest.approx(ends)
    assert station.busy == pytest.approx(sum(works))


def test_a_paused_station_goes_on_where_it_was() -> None:
    clock, found = Clock(), list[float]()
    station = Station(clock, 1)
    station.submit(10, lambda: found.append(clock.now))
    clock.after(4, lambda: station.pause(5))
    while clock.step():
        pass
    assert found == [15]


@pytest.mark.parametrize("eta", [0, 1, 2, 4])
def test_every_episode_is_accounted_for_and_none_is_too_old(eta: int) -> None:
    result = simulate(VARIED, SMALL, Schedule(4, staleness=eta), versions=15, warmup=0)
    assert result.staleness_max <= eta
    assert sum(result.staleness_histogram.values()) == pytest.approx(
        result.episodes_per_hour * result.period * 15 / 3600
    )
    collected = result.collected_per_hour * result.period * 15 / 3600
    left_out = sum(result.drops.get(reason, 0) for reason in ("abstained", "zero_variance", "too_few"))
    unused = collected - sum(result.staleness_histogram.values()) - left_out
    assert 0 <= unused <= (eta + 1) * 4 * VARIED.group_size  # finished and not yet consumed: admission's limit


def test_the_same_seed_gives_the_same_run() -> None:
    schedule = Schedule(4, staleness=2, concurrency=Bounds(8, 48, settle=30))
    assert simulate(VARIED, SMALL, schedule, versions=8, seed=3) == simulate(
        VARIED, SMALL, schedule, versions=8, seed=3
    )
    assert simulate(VARIED, SMALL, schedule, versions=8, seed=3) != simulate(
        VARIED, SMALL, schedule, versions=8, seed=4
    )


def test_fewer_barriers_are_faster() -> None:
    rates = [
        simulate(VARIED, SMALL, schedule, versions=10).episodes_per_hour
        for schedule in (
            Schedule(4, barrier="step"),
            Schedule(4, barrier="episode"),
            Schedule(4),
            Schedule(4, staleness=2),
        )
    ]
    assert rates == sorted(rates)
    assert rates[-1] > 2 * rates[0]


def test_what_is_admitted_for_fewer_versions_ahead_is_fresher() -> None:
    ahead = [simulate(VARIED, SMALL, Schedule(4, staleness=4, depth=depth), versions=15) for depth in (1, 2, 4)]
    means = [result.staleness_mean for result in ahead]
    assert means == sorted(means) and all(result.staleness_max <= 4 for result in ahead)


def test_groups_of_one_task_wait_for_each_other() -> None:
    machine = Machine(browsers=16, engine_turns=16)
    ahead = Schedule(4, staleness=2, running=4)
    alone, together = (
        simulate(VARIED, machine, dataclasses.replace(ahead, groups_per_task=groups), versions=30) for groups in (1, 4)
    )
    assert together.period > 1.05 * alone.period and together.browser_idle > alone.browser_idle
    all_at_once = Schedule(4)
    assert simulate(ALIKE, machine, all_at_once) == simulate(
        ALIKE, machine, dataclasses.replace(all_at_once, groups_per_task=4)
    ), "a synchronous run waits for all of a batch anyway"


def test_adaptive_concurrency_stops_below_a_long_queue() -> None:
    machine = Machine(browsers=400, engine_turns=8)
    workload = dataclasses.replace(VARIED, generation_seconds=Distribution(2, 0.5))
    schedule = Schedule(4, staleness=4, concurrency=Bounds(8, 400, settle=20))
    fixed = simulate(workload, machine, Schedule(4, staleness=4), versions=12, warmup=8)
    adaptive = simulate(workload, machine, schedule, versions=12, warmup=8)
    assert adaptive.browser_idle > fixed.browser_idle
    assert adaptive.episodes_per_hour > 0.8 * fixed.episodes_per_hour


def test_a_model_that_cannot_go_on_says_so() -> None:
    with pytest.raises(ValueError, match="stands still"):
        simulate(dataclasses.replace(VARIED, group_size=1), SMALL, Schedule(2), versions=1)


def test_over_sampling_and_surplus_are_accounted_for() -> None:
    failing = dataclasses.replace(VARIED, abstain=0.2)
    plain, sampled = (
        simulate(failing, SMALL, Schedule(4, staleness=1, over_sampling=extra), versions=8, warmup=0)
        for extra in (0, 2)
    )
    assert "over_sampling" not in plain.drops and sampled.drops["over_sampling"] > 0
    consumed = [sum(result.staleness_histogram.values()) for result in (plain, sampled)]
    assert consumed[0] < consumed[1] <= 8 * 4 * VARIED.group_size
    surplus = simulate(VARIED, SMALL, Schedule(4, surplus=4), versions=8)
    assert surplus.drops["surplus"] > 0 and surplus.staleness_max == 0
    assert surplus.collection < simulate(VARIED, SMALL, Schedule(4), versions=8).collection


def replication(gpus: int, tasks: int) -> float:
    """Minutes of a collection of the open replication of OpenWebRL-4B: groups of 5, 7.3 turns an
    episode, 48 groups kept of 144.

    About 18.9 browser-seconds a turn are published (63 min, 16 browsers, 440 episodes). How they
    divide between browser and engine is fitted to two of its times, both with 16 tasks: 63 min on 2
    H200 and 40 to 49 min on 4.
    """
    workload = Workload(
        group_size=5,
        success_steps=Distribution(7.3, 0.6),
        failure_steps=Distribution(7.3, 0.6),
        reset_seconds=Distribution(0),
        browser_seconds=Distribution(10, 0.5),
        generation_seconds=Distribution(2.9, 0.5),
        success=(0.72, 0.72),
        update_seconds=Distribution(22 * 60),
    )
    machine = Machine(browsers=tasks, engine_turns=1.25 * gpus)
    return simulate(workload, machine, Schedule(48, surplus=96), versions=2, warmup=1).collection / 60


def test_the_published_times_of_the_openwebrl_replication() -> None:
    """From outside: with 4 GPUs and 32 tasks, which nothing was fitted to, 28.9 min were published
    as the mean of nine cycles.

    Out of reach: its later recipes (20.1 + 25.4 min), where the update takes longer on twice the
    GPUs (22 min before).
    """
    assert replication(2, 16) == pytest.approx(63, rel=0.05)
    assert 40 <= replication(4, 16) <= 49
    assert replication(4, 32) == pytest.approx(28.9, rel=0.15)
