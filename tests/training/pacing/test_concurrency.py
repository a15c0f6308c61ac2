"""Adaptive concurrency: within its bounds, settled after a change of load, moved by new
measurements only."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.pacing.concurrency import Bounds, Concurrency, Load, adjust, pressure, start

bounds = st.builds(
    Bounds,
    floor=st.integers(1, 8),
    ceiling=st.integers(8, 64),
    step=st.integers(1, 8),
    cut=st.floats(0.3, 0.9),
    settle=st.floats(0, 60),
)


@settings(max_examples=200, deadline=None)
@given(
    bounds=bounds,
    loads=st.lists(st.tuples(st.floats(-5, 60), st.floats(0, 2), st.floats(0, 2), st.integers(0, 80)), max_size=40),
)
def test_it_stays_within_its_bounds_and_moves_on_new_measurements_only(
    bounds: Bounds, loads: list[tuple[float, float, float, int]]
) -> None:
    state, now = start(bounds), 0.0
    for passed, queue, browsers, running in loads:
        now += passed
        load = Load(now, queue, browsers, running)
        after = adjust(bounds, state, load)
        assert bounds.floor <= after.limit <= bounds.ceiling
        if load.at <= state.measured_at:
            assert after == state
        if after.limit != state.limit:
            assert load.at - state.moved_at >= bounds.settle
            assert (after.limit > state.limit) == (pressure(bounds, load) < bounds.low)
        assert adjust(bounds, after, load) == after  # the same measurement twice
        state = after


def plant(limit: int, seats: int) -> tuple[float, float]:
    """An engine with so many seats (further turns queue) and hosts that are full at twice of
    that."""
    return max(0, limit - seats) / seats, limit / (2 * seats)


def run(bounds: Bounds, state: Concurrency, seats: int, since: float, seconds: float) -> tuple[Concurrency, list[int]]:
    limits = []
    for at in range(int(since), int(since + seconds), 10):
        queue, browsers = plant(state.limit, seats)
        state = adjust(bounds, state, Load(float(at), queue, browsers, state.limit))
        limits.append(state.limit)
    return state, limits


@pytest.mark.parametrize(("before", "after"), [(100, 40), (40, 100), (10, 500)])
def test_it_follows_a_step_change_and_then_rests(before: int, after: int) -> None:
    bounds = Bounds(floor=4, ceiling=256, forget=600)
    state, _ = run(bounds, start(bounds), before, 0, 4000)
    state, limits = run(bounds, state, after, 4000, 8000)
    rest = limits[len(limits) // 2 :]
    top = min(1.25 * after, 256)  # a queue of max_queue
    assert all(0.6 * top <= limit <= top + bounds.step for limit in rest)
    assert sum(a != b for a, b in itertools.pairwise(rest)) <= 8000 / 2 / 600 * 8


def test_a_limit_that_was_too_much_is_not_tried_again_at_once() -> None:
    bounds = Bounds(floor=1, ceiling=100, step=10, cut=0.9, settle=0, forget=100)
    state = adjust(bounds, start(bounds, 50), Load(0, 1.0, 0, 50))
    assert (state.limit, state.refused) == (45, 50)
    state = adjust(bounds, state, Load(1, 0, 0, 45))
    assert state.limit == 49
    assert adjust(bounds, state, Load(99, 0, 0, 49)).limit == 49
    assert adjust(bounds, state, Load(100, 0, 0, 49)).limit == 59


def test_an_unused_limit_does_not_grow() -> None:
    bounds = Bounds(floor=4, ceiling=100)
    assert adjust(bounds, start(bounds, 20), Load(0, 0, 0, running=19)).limit == 20
    assert adjust(bounds, start(bounds, 20), Load(0, 0, 0, running=20)).limit == 24
    assert adjust(bounds, start(bounds, 20), Load(0, 0, math.inf, running=0)).limit == 16


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="floor <= ceiling"):
        Bounds(floor=5, ceiling=4)
