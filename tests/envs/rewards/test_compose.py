"""The whole bundle: what says whether the task was done, and what is beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards import Component, GradingEvidence, compose, grade_by_program, page_reward, read_rubric, score
from envs.rewards.behaviour import ActionErrors, Length, Performance, TurnForm
from envs.rewards.chromiumrl.quality import episode_quality
from envs.types import ErrorCode, PartRole, RewardBundle, RewardPart
from tests.builders import make_task

from .played import EVIDENCE, NOTHING, STEPS, signals

ONE = dict.fromkeys(Component, 1.0)
TASK = make_task(horizon=10)
PAGE = page_reward({"done": True, "raw_reward": 1.0}, steps=2)
FAILED_PAGE = page_reward({"done": True, "raw_reward": -1.0}, steps=2)
RUBRIC = read_rubric(
    {
        "fact_groups": [
            {"name": "order", "weight": 2, "facts": [
                {"id": "at", "type": "url", "url": "/orders/12"},
                {"id": "told", "type": "text", "text": "free of charge"},
            ]},
            {"name": "answer", "facts": [
                {"id": "total", "type": "answer", "expected": "1234.50", "match": "number"}]},
        ],
        "pass_threshold": 0.6,
        "pass_requirements": {"required_fact_ids": ["at"]},
    }
)  # fmt: skip


def part(value: float | None, weight: float = 1.0, **more: Any) -> RewardPart:
    return RewardPart(**{"name": "p", "evidence": "seen", "value": value, "weight": weight} | more)


def weights(**changed: float) -> dict[Component, float]:
    """The defaults of the configuration, changed."""
    return {Component.TASK: 1.0, Component.VISUAL: 1.0, Component.SEMANTIC: 1.0} | {
        Component(name): value for name, value in changed.items()
    }


def bundle(
    found: Mapping[Component, Sequence[RewardPart]], weigh: Mapping[Component, float] = ONE, **more: Any
) -> RewardBundle:
    made = compose(found, weigh, **more)
    return RewardBundle.model_validate(made.model_dump())  # as it is when it is read back


def test_without_anything_beside_it_a_bundle_is_what_it_was() -> None:
    graded = grade_by_program(RUBRIC, EVIDENCE)
    assert compose({}, weights(), rubric=graded, page=PAGE) is graded
    assert compose({}, weights(), page=FAILED_PAGE) == score([FAILED_PAGE])
    beside = {Component.PERFORMANCE: [part(0.5)]}
    assert compose(beside, weights(), rubric=graded) is graded, "a component without a weight counts for nothing"


def test_the_example_of_the_page_by_hand() -> None:
    beside = {
        Component.PERFORMANCE: [part(0.9, 7.0)],
        Component.LENGTH: [part(-0.3, role=PartRole.PENALTY)],
    }
    graded = grade_by_program(RUBRIC, EVIDENCE)
    assert graded.score == pytest.approx(2 / 3) and graded.passed
    made = bundle(beside, weights(performance=0.5, length=0.1), rubric=graded)
    assert made.score == pytest.approx((2 / 3 + 0.5 * 0.9) / 1.5 - 0.03)
    assert (made.passed, made.binary, made.failed, made.rubric_hash) == (True, 0.0, (), graded.rubric_hash)
    assert [(each.role, each.weight) for each in made.parts[-2:]] == [
        (PartRole.SHAPING, 0.5),
        (PartRole.PENALTY, 0.1),
    ]
    facts = [each.weight for each in made.parts[:3]]
    assert facts == pytest.approx([1 / 3] * 3), "the facts together weigh what the task weighs"


def test_what_is_beside_it_decides_nothing() -> None:
    slow = {Component.PERFORMANCE: [part(0.0)], Component.FORMAT: [part(0.5)]}
    done = bundle(slow, page=PAGE)
    assert done.passed and done.binary == 1 and done.score == pytest.approx((1 + 0 + 0.5) / 3)
    fast = bundle({Component.PERFORMANCE: [part(1.0)]}, page=FAILED_PAGE)
    assert not fast.passed and fast.binary == 0 and fast.score == 0.5


def test_what_is_not_available_is_left_out_and_never_zero() -> None:
    missing = bundle({Component.PERFORMANCE: [part(None)], Component.FORMAT: [part(0.5)]}, page=PAGE)
    assert missing.score == pytest.approx(1.5 / 2) and missing.parts[1].value is None
    half = bundle({Component.PERFORMANCE: [part(0.2, 3), part(None, 5)]}, page=PAGE)
    assert half.score == pytest.approx((1 + 0.2) / 2), "the available parts of a component have all of its weight"


def test_a_task_of_which_nothing_is_known_is_not_graded_by_the_rest() -> None:
    unknown = bundle({Component.PERFORMANCE: [part(1.0)], Component.LENGTH: [part(-1.0, role=PartRole.PENALTY)]})
    assert unknown.score is None and unknown.abstained and len(unknown.parts) == 2


def test_a_gate_that_does_not_hold_closes_all_of_the_mean() -> None:
    elsewhere = EVIDENCE.model_copy(update={"final": STEPS[0].observation})
    graded = grade_by_program(RUBRIC, elsewhere)
    assert graded.failed == ("order/at does not hold",)
    made = bundle(
        {Component.PERFORMANCE: [part(1.0)], Component.LENGTH: [part(-0.5, role=PartRole.PENALTY)]}, rubric=graded
    )
    assert made.score == -0.5 and made.failed == graded.failed and not made.passed


def test_who_says_whether_the_task_was_done() -> None:
    evaluators, look, like = [part(1.0), part(0.0)], [part(0.8, holds_at=0.7)], [part(0.4, holds_at=0.9)]
    all_of_them = {Component.TASK: evaluators, Component.VISUAL: look, Component.SEMANTIC: like}
    by_rubric = bundle(all_of_them, rubric=grade_by_program(RUBRIC, EVIDENCE), page=PAGE)
    assert by_rubric.passed and by_rubric.score == pytest.approx((2 / 3 + 0.5 + 0.8 + 0.4) / 4)
    by_evaluators = bundle(all_of_them, page=PAGE)
    assert not by_evaluators.passed and by_evaluators.binary == 0
    assert by_evaluators.score == pytest.approx((0.5 + 0.8 + 0.4) / 3)
    by_looks = bundle({Component.VISUAL: look, Component.SEMANTIC: like}, weights(visual=3), page=PAGE)
    assert by_looks.score == pytest.approx((3 * 0.8 + 0.4) / 4) and not by_looks.passed
    assert bundle({Component.VISUAL: look}, page=FAILED_PAGE).passed, "the page is not asked"
    assert [each.name for each in bundle({}, page=PAGE).parts] == ["page"]


def test_evaluators_of_which_one_is_not_known() -> None:
    known = bundle({Component.TASK: [part(1.0), part(None)]})
    assert known.score == 1.0 and known.binary is None and not known.passed
    needed = bundle({Component.TASK: [part(1.0), part(None, required=True)]})
    assert needed.score is None and needed.abstained and "needed and not available" in needed.abstained


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.dictionaries(
        st.sampled_from([Component.PERFORMANCE, Component.FORMAT]), st.lists(st.none() | st.floats(0, 1), min_size=1)
    ),
    st.floats(0.01, 10),
)
def test_the_mean_of_components(done: list[float], beside: dict[Component, list[float | None]], weight: float) -> None:
    found = {Component.TASK: [part(value, 1 + at) for at, value in enumerate(done)]}
    found |= {component: [part(value) for value in values] for component, values in beside.items()}
    made = bundle(found, ONE | dict.fromkeys(beside, weight))
    assert made.score is not None
    means = [(1.0, sum(value * (1 + at) for at, value in enumerate(done)) / sum(range(1, len(done) + 1)))]
    for values in beside.values():
        if known := [value for value in values if value is not None]:
            means.append((weight, sum(known) / len(known)))
    assert made.score == pytest.approx(sum(w * v for w, v in means) / sum(w for w, _ in means), abs=1e-9)
    assert made.passed == all(value == 1 for value in done)


async def test_the_parts_about_how_an_episode_went() -> None:
    forms = ("brackets", "prose", "json")
    steps = tuple(
        each.model_copy(update={"form": form, "error": ErrorCode.UNKNOWN_ELEMENT if form == "prose" else None})
        for each, form in zip(STEPS, forms, strict=True)
    )
    evidence = GradingEvidence(steps=steps, signals=signals())

    async def one(source: Any, seen: GradingEvidence = evidence) -> RewardPart:
        (found,) = await source.parts(TASK, seen)
        assert isinstance(found, RewardPart)
        return found

    strict = await one(TurnForm({"brackets", "json"}))
    assert strict.value == pytest.approx(2 / 3) and strict.evidence == "2 of 3 turns in a strict form; others: prose"
    length = await one(Length())
    assert length.value == -0.3 and length.role is PartRole.PENALTY
    errors = await one(ActionErrors())
    assert errors.value == pytest.approx(-1 / 3) and "unknown_element" in errors.evidence
    assert (await one(Performance())).value == episode_quality(signals()).value
    assert (await one(TurnForm({"json"}), NOTHING)).value is None and (await one(Performance(), NOTHING)).value is None
    assert (await one(Length(), NOTHING)).value == 0 and (await one(ActionErrors(), NOTHING)).value == 0
