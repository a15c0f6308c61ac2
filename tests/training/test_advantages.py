from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.algorithms.advantages import group_advantages, has_signal, step_advantages

rewards = st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=16)


def test_two_successes_of_eight() -> None:
    found = group_advantages([1, 1, 0, 0, 0, 0, 0, 0], std_epsilon=1e-6)
    assert found[0] == pytest.approx(math.sqrt(3), abs=1e-4)
    assert found[7] == pytest.approx(-1 / math.sqrt(3), abs=1e-4)


def test_std_is_of_the_population() -> None:
    assert group_advantages([0, 1], std_epsilon=0) == pytest.approx([-1, 1])


def test_epsilon_damps_small_differences() -> None:
    assert abs(group_advantages([0.5, 0.5 + 1e-6], std_epsilon=1e-4)[1]) < 0.01


@pytest.mark.parametrize(
    ("normaliser", "success", "failure"),
    [("constant", 0.1732, -0.0577), ("none", 1.732, -0.577), ("trajectory", 0.866, -0.1155)],
)
def test_step_normalisers(normaliser: str, success: float, failure: float) -> None:
    good, bad = group_advantages([1, 1, 0, 0, 0, 0, 0, 0], 1e-6)[1::5]
    assert step_advantages(good, 2, normaliser, 10) == pytest.approx([success] * 2, abs=1e-3)  # type: ignore[arg-type]
    assert step_advantages(bad, 5, normaliser, 10) == pytest.approx([failure] * 5, abs=1e-3)  # type: ignore[arg-type]


@given(rewards)
def test_advantages_sum_to_zero_and_keep_the_order(values: list[float]) -> None:
    found = group_advantages(values)
    assert sum(found) == pytest.approx(0, abs=1e-6 * len(values))
    for a, b in pairwise(values):
        assert (found[values.index(a)] <= found[values.index(b)]) or a >= b


@given(st.floats(0, 1), st.integers(1, 16))
def test_equal_rewards_carry_no_signal(value: float, size: int) -> None:
    assert not has_signal([value] * size)
    assert group_advantages([value] * size) == [0.0] * size


def test_an_empty_group_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        group_advantages([])
