"""Reward arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards import NO_PARTS, page_reward, score
from envs.types import RewardPart

PARTS = st.builds(
    RewardPart,
    name=st.just("p"),
    value=st.none() | st.floats(0, 1),
    weight=st.floats(0.01, 100),
    evidence=st.just("seen"),
)


def part(value: float | None, weight: float = 1.0) -> RewardPart:
    return RewardPart(name="p", value=value, weight=weight, evidence="seen")


def test_the_score_is_the_weighted_mean_of_what_is_available() -> None:
    bundle = score([part(1.0, 3), part(0.0, 1), part(None, 100)], threshold=0.7)
    assert bundle.score == 0.75 and bundle.passed and bundle.abstained is None and len(bundle.parts) == 3
    assert not score([part(1.0, 3), part(0.0, 1)]).passed  # by default all must hold


def test_nothing_available_abstains_and_is_not_zero() -> None:
    for parts in ([], [part(None)]):
        bundle = score(parts)
        assert bundle.score is None and not bundle.passed and bundle.abstained == NO_PARTS


def test_a_given_cause_beats_a_good_reward() -> None:
    bundle = score([part(1.0)], abstained="browser_error")
    assert bundle.score is None and not bundle.passed and bundle.abstained == "browser_error"


@given(st.lists(PARTS, max_size=6), st.floats(0.01, 1))
def test_score_stays_between_its_parts(parts: list[RewardPart], threshold: float) -> None:
    bundle = score(parts, threshold=threshold)
    values = [each.value for each in parts if each.value is not None]
    if not values:
        assert bundle.score is None
        return
    assert bundle.score is not None
    assert min(values) - 1e-9 <= bundle.score <= max(values) + 1e-9
    assert bundle.passed == (bundle.score >= threshold)
    assert all(value == 1 for value in values) <= bundle.passed


@pytest.mark.parametrize(
    ("facts", "value", "evidence"),
    [
        ({"done": True, "raw_reward": 1, "reason": ""}, 1.0, "raw_reward 1 after 2 steps"),
        ({"done": True, "raw_reward": 0.3, "reason": "ok"}, 1.0, "raw_reward 0.3 after 2 steps: ok"),
        ({"done": True, "raw_reward": -1, "reason": "bad"}, 0.0, "raw_reward -1 after 2 steps: bad"),
        ({"done": True, "raw_reward": 0, "reason": ""}, 0.0, "raw_reward 0 after 2 steps"),
        ({"done": False, "raw_reward": 0, "reason": ""}, 0.0, "page not done after 2 steps"),
        ({}, None, "the page declares no end and no reward"),
        ({"done": True}, None, "the page declares no end and no reward"),
    ],
)
def test_what_the_page_says(facts: dict[str, float | bool | str], value: float | None, evidence: str) -> None:
    said = page_reward(facts, steps=2)
    assert (said.value, said.evidence) == (value, evidence)
