"""Reward arithmetic."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.rewards import NO_PARTS, page_reward, score
from envs.types import Cost, PartRole, RewardBundle, RewardPart, Trajectory

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
    assert bundle.passed == (bundle.score >= threshold - 1e-9)
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


def test_penalties_are_added_after_the_mean_and_do_not_fail_an_episode() -> None:
    penalty = RewardPart(name="format", value=-0.05, weight=2, evidence="two bad turns", role=PartRole.PENALTY)
    bundle = score([part(1.0), penalty])
    assert bundle.score == pytest.approx(0.9) and bundle.passed and bundle.binary == 1
    low = score([part(0.0), penalty])
    assert low.score == pytest.approx(-0.1) and not low.passed and low.binary == 0
    heavy = penalty.model_copy(update={"weight": 100.0})
    assert score([part(1.0), heavy]).score == -1
    assert score([penalty]).abstained == NO_PARTS  # nothing says how the task went
    unknown = penalty.model_copy(update={"value": None})
    assert score([part(1.0), unknown]).score == 1 and score([part(1.0), unknown]).binary == 1


def test_a_score_is_never_below_minus_one() -> None:
    done = RewardPart(name="done", value=0.0, weight=1.0, evidence="")
    fines = [RewardPart(name=str(n), value=-1.0, weight=2.0, evidence="", role=PartRole.PENALTY) for n in range(2)]
    assert score([done, *fines]).score == -1.0


def test_gates_and_required_parts_close_or_abstain() -> None:
    def with_role(value: float | None, **more: Any) -> RewardPart:
        return RewardPart(name="x", value=value, weight=50, evidence="seen", **more)

    for more in ({"role": PartRole.GATE}, {"required": True}):
        closed = score([part(1.0), with_role(0.0, **more)])
        assert closed.score == 0 and not closed.passed and closed.failed == ("x does not hold",)
        assert score([part(1.0), with_role(1.0, **more)]).score == 1
        assert score([part(1.0), with_role(0.6, holds_at=0.5, **more)]).score != 0
        assert score([part(1.0), with_role(None, **more)]).abstained == "x is needed and not available: seen"
        zero = score([part(None), with_role(None, **more), with_role(0.0, **more)])
        assert (zero.score, zero.abstained, zero.binary, zero.passed) == (0.0, None, 0.0, False), (
            "what else was lost does not matter"
        )
        assert zero.failed == ("x does not hold",)
    assert score([part(0.4), with_role(1.0, role=PartRole.GATE)]).score == 0.4  # a gate is no part of the mean


def test_the_binary_score_is_not_guessed() -> None:
    assert score([part(1.0), part(None)]).binary is None
    assert score([part(0.9), part(None)]).binary == 0
    assert score([part(1.0), part(1.0)]).binary == 1
    assert score([part(1.0)], abstained="deadline").binary is None


@pytest.mark.parametrize(
    ("role", "value"), [("scored", 1.1), ("scored", -0.1), ("gate", -1), ("penalty", 0.1), ("penalty", -1.1)]
)
def test_values_outside_of_their_range_are_refused(role: str, value: float) -> None:
    with pytest.raises(ValidationError, match="'p' is not in"):
        RewardPart(name="p", value=value, weight=1, evidence="", role=PartRole(role))
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValidationError):
            RewardPart(name="p", value=bad, weight=1, evidence="")


def test_a_bundle_has_a_score_or_a_cause() -> None:
    for values in ({"score": None}, {"score": 1.0, "abstained": "deadline"}):
        with pytest.raises(ValidationError, match="exactly one"):
            RewardBundle.model_validate({"passed": False} | values)


def test_costs_add_up() -> None:
    parts = [
        RewardPart(name="a", value=1, weight=1, evidence="", cost=Cost(seconds=1.5, tokens=10, dollars=0.25)),
        RewardPart(name="b", value=None, weight=1, evidence="", cost=Cost(seconds=1, tokens=5)),
    ]
    assert score(parts).cost == Cost(seconds=2.5, tokens=15, dollars=0.25)
    assert score([part(1.0)]).cost == Cost()


OLD = b"""{"episode_id": "e", "group_id": "g", "task_id": "t", "kind": "k", "seed": 1, "sample": 0, "policy_version": 0, "steps": [],
"stop_reason": "done", "reward": {"parts": [{"name": "page", "value": 1.0, "weight": 1.0, "evidence": "raw_reward 1 after 2 steps"},
{"name": "judge", "value": null, "weight": 0.5, "evidence": "no judge"}], "score": 1.0, "passed": true, "abstained": null}}"""


def test_bundles_stored_before_still_load() -> None:
    reward = Trajectory.model_validate_json(OLD).reward
    assert reward.score == 1 and reward.passed and reward.binary is None and reward.failed == ()
    assert [each.role for each in reward.parts] == [PartRole.SCORED] * 2 and reward.cost == Cost()
    abstained = RewardBundle.model_validate_json(
        b'{"parts": [], "score": null, "passed": false, "abstained": "deadline"}'
    )
    assert abstained.abstained == "deadline"
    again = score([part(0.5), part(None)], threshold=0.4)
    assert RewardBundle.model_validate(orjson.loads(again.model_dump_json())) == again
