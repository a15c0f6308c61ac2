"""The score of a rubric: by hand, as properties, and refused when the rubric was changed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards import FactResult, GradingEvidence, combine, grade_by_program, read_rubric
from envs.types import Fact, JudgeError, PartRole, RewardBundle, Rubric, rubric_hash

from .played import EVIDENCE, NOTHING


def judged(name: str, weight: float = 1.0) -> dict[str, Any]:
    return {"id": name, "type": "judge", "description": name, "weight": weight}


def two_groups(**more: Any) -> Rubric:
    """Group a of weight 3 with facts of weights 1 and 3, group b of weight 1 with one fact."""
    groups = [
        {"name": "a", "weight": 3, "facts": [judged("a1", 1), judged("a2", 3)]},
        {"name": "b", "facts": [judged("b1", 7)]},
    ]
    return read_rubric({"fact_groups": groups, "gates": []} | more)


def graded(rubric: Rubric, evidence: GradingEvidence = NOTHING, **values: float | None) -> RewardBundle:
    return combine(rubric, {name: FactResult(value=value, evidence="said") for name, value in values.items()}, evidence)


@pytest.mark.parametrize(
    ("a1", "a2", "b1", "score", "binary"),
    [
        (1, 1, 1, 1.0, 1.0),
        (0, 0, 0, 0.0, 0.0),
        (1, 0, 0, 3 * 0.25 / 4, 0.0),
        (0, 1, 0, 3 * 0.75 / 4, 0.0),
        (0, 0, 1, 1 / 4, 0.0),
        (0.5, 0.6, 1, (3 * (0.5 + 1.8) / 4 + 1) / 4, 1.0),  # a judge's fact holds from .5
        (None, 1, 1, 1.0, None),  # left out of its group
        (None, 0, 1, 1 / 4, 0.0),
        (None, None, 1, 1.0, None),  # the group is left out
        (1, 0, None, 0.25, 0.0),
    ],
)
def test_the_score_is_what_it_is_by_hand(
    a1: float | None, a2: float | None, b1: float | None, score: float, binary: float | None
) -> None:
    bundle = graded(two_groups(), a1=a1, a2=a2, b1=b1)
    assert bundle.score == pytest.approx(score, abs=1e-12) and bundle.binary == binary
    assert bundle.passed == (score >= 0.85) and bundle.abstained is None and len(bundle.parts) == 3


def test_nothing_available_abstains() -> None:
    bundle = graded(two_groups(), a1=None)
    assert bundle.score is None and bundle.abstained and not bundle.passed and bundle.binary is None


def test_a_required_fact_that_fails_makes_the_score_zero() -> None:
    rubric = two_groups(pass_requirements={"required_fact_ids": ["b1"]})
    failed = graded(rubric, a1=1, a2=1, b1=0.4)
    assert failed.score == 0 and not failed.passed and failed.failed == ("b/b1 does not hold",)
    assert graded(rubric, a1=0, a2=1, b1=0.5).score == pytest.approx((3 * 0.75 + 0.5) / 4)
    unknown = graded(rubric, a1=1, a2=1, b1=None)
    assert unknown.score is None and unknown.abstained == "b/b1 is needed and not available: b1: said"


def test_a_gate_that_fails_makes_the_score_zero_and_adds_nothing_otherwise() -> None:
    rubric = two_groups(gates=[judged("honest", 100)])
    assert graded(rubric, a1=1, a2=0, b1=1, honest=0.9).score == pytest.approx((3 * 0.25 + 1) / 4)
    closed = graded(rubric, a1=1, a2=1, b1=1, honest=0.1)
    assert (
        closed.score == 0
        and not closed.passed
        and closed.binary == 0
        and closed.failed == ("gate/honest does not hold",)
    )
    assert closed.parts[-1].role is PartRole.GATE
    assert (
        graded(rubric, a1=1, a2=1, b1=1, honest=None).abstained
        == "gate/honest is needed and not available: honest: said"
    )


def test_what_already_fails_is_zero_whatever_else_is_not_available() -> None:
    needs = {"required_fact_ids": ["a1", "b1"], "required_group_ids": ["b"], "floors": {"structuralSimilarity": 0.9}}
    rubric = two_groups(pass_requirements=needs, gates=[judged("honest", 1)])
    failed = graded(rubric, NOTHING, a1=0, a2=1, b1=None, honest=None)
    assert failed.score == 0 and failed.abstained is None and failed.binary == 0 and not failed.passed
    assert failed.failed == ("a/a1 does not hold",)
    assert graded(rubric, NOTHING, a1=None, a2=1, b1=None, honest=0).score == 0
    assert graded(rubric, NOTHING, a1=1, a2=1, b1=1, honest=1).score is None, (
        "the floor is not known, and nothing fails"
    )


def test_a_required_group_must_be_above_zero_to_pass() -> None:
    rubric = two_groups(pass_requirements={"required_group_ids": ["b"]}, pass_threshold=0.7)
    bundle = graded(rubric, a1=1, a2=1, b1=0)
    assert bundle.score == 0.75 and not bundle.passed and bundle.failed == ("required group b",)
    assert graded(rubric, a1=1, a2=1, b1=0.01).passed
    assert "required group b is not available" in (graded(rubric, a1=1, a2=1).abstained or "")


def test_a_required_group_is_reached_by_one_of_its_facts() -> None:
    rubric = two_groups(pass_requirements={"required_group_ids": ["a"]}, pass_threshold=0.1)
    assert graded(rubric, a1=1, a2=0, b1=0).failed == () and graded(rubric, a1=1, a2=0, b1=0).passed


def test_floors_must_be_reached_to_pass() -> None:
    rubric = two_groups(pass_requirements={"floors": {"structuralSimilarity": 0.9, "textSimilarity": 0.5}})
    bundle = graded(rubric, EVIDENCE, a1=1, a2=1, b1=1)
    assert bundle.score == 1 and not bundle.passed
    assert bundle.failed == ("floor textSimilarity: 0.4 is below 0.5",)
    better = EVIDENCE.model_copy(update={"domdiff": {"structural": 0.9, "text": 0.5}})
    assert graded(rubric, better, a1=1, a2=1, b1=1).passed
    assert "structuralSimilarity is not available" in (graded(rubric, NOTHING, a1=1, a2=1, b1=1).abstained or "")


def test_the_threshold_forgives_rounding_only() -> None:
    rubric = two_groups(pass_threshold=0.85)
    assert graded(rubric, a1=0.85, a2=0.85, b1=0.85).passed
    assert not graded(rubric, a1=0.8499, a2=0.85, b1=0.85).passed


WEIGHTS = st.floats(0.01, 100)
SURE = st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, float | None]]:
    """A rubric as JSON and what was found of each fact."""
    groups, values = [], {}
    for number in range(draw(st.integers(1, 4))):
        facts = [judged(f"{number}.{at}", draw(WEIGHTS)) for at in range(draw(st.integers(1, 4)))]
        groups.append({"name": f"g{number}", "weight": draw(WEIGHTS), "facts": facts})
        values |= {fact["id"]: draw(SURE) for fact in facts}
    needs: dict[str, Any] = {}
    if draw(st.booleans()):
        needs["required_fact_ids"] = draw(st.lists(st.sampled_from(sorted(values)), max_size=2, unique=True))
    if draw(st.booleans()):
        needs["required_group_ids"] = [draw(st.sampled_from(groups))["name"]]
    gates = [judged("gate")] if draw(st.booleans()) else []
    values |= {gate["id"]: draw(SURE) for gate in gates}
    return {"fact_groups": groups, "gates": gates, "pass_requirements": needs}, values


def by_formula(data: Mapping[str, Any], values: Mapping[str, float | None]) -> float:
    """R as it is written in docs/rubrics.md."""
    needed = [*data["pass_requirements"].get("required_fact_ids", []), *[gate["id"] for gate in data["gates"]]]
    if any((values[name] or 0) < 0.5 for name in needed):
        return 0.0
    above = below = 0.0
    for group in data["fact_groups"]:
        known = [(fact["weight"], values[fact["id"]]) for fact in group["facts"] if values[fact["id"]] is not None]
        if known:
            above += group["weight"] * sum(w * (c or 0) for w, c in known) / sum(w for w, _ in known)
            below += group["weight"]
    return above / below


@given(cases())
def test_bounds_and_the_formula(case: tuple[dict[str, Any], dict[str, float | None]]) -> None:
    data, values = case
    bundle = graded(read_rubric(data), **values)
    if bundle.score is None:
        assert bundle.abstained and not bundle.passed and bundle.binary is None
        return
    assert 0 <= bundle.score <= 1 and bundle.score == pytest.approx(by_formula(data, values), abs=1e-9)
    assert not bundle.passed or (bundle.score >= 0.85 - 1e-9 and not bundle.failed)
    assert bundle.binary in (None, 0.0, 1.0)


@given(cases(), st.data())
def test_one_more_true_fact_never_lowers(
    case: tuple[dict[str, Any], dict[str, float | None]], data: st.DataObject
) -> None:
    rubric, values = read_rubric(case[0]), case[1]
    name = data.draw(st.sampled_from(sorted(values)))
    before, after = graded(rubric, **values), graded(rubric, **(values | {name: 1.0}))
    if before.score == 0 and after.score is None:
        return  # what failed no longer decides, and what is unknown does
    if before.score is not None:
        assert after.score is not None and after.score >= before.score - 1e-12
        assert after.passed >= before.passed and (after.binary is None or after.binary >= (before.binary or 0))


@given(cases(), st.floats(0.1, 10), st.floats(0.1, 10))
def test_only_ratios_of_weights_count(
    case: tuple[dict[str, Any], dict[str, float | None]], groups_by: float, facts_by: float
) -> None:
    data, values = case
    scaled = orjson.loads(orjson.dumps(data))
    for group in scaled["fact_groups"]:
        group["weight"] *= groups_by
        for fact in group["facts"]:
            fact["weight"] *= facts_by
    one, other = graded(read_rubric(data), **values), graded(read_rubric(scaled), **values)
    assert (one.abstained is None) == (other.abstained is None)
    assert one.score is None or one.score == pytest.approx(other.score, abs=1e-9)


def shuffled(value: Any) -> Any:
    """The same JSON with the keys of objects in reverse."""
    if isinstance(value, dict):
        return {name: shuffled(value[name]) for name in reversed(value)}
    return [shuffled(each) for each in value] if isinstance(value, list) else value


@given(cases())
def test_the_hash_depends_on_what_a_rubric_says_alone(case: tuple[dict[str, Any], dict[str, float | None]]) -> None:
    data, _ = case
    rubric = read_rubric(data)
    spelled_out = read_rubric(orjson.loads(rubric.model_dump_json()))
    assert rubric_hash(read_rubric(shuffled(data))) == rubric_hash(spelled_out) == rubric_hash(rubric)
    data["fact_groups"][0]["facts"][0]["weight"] += 1
    assert rubric_hash(read_rubric(data)) != rubric_hash(rubric)


def test_hashes_that_were_written_down_stay_valid() -> None:
    """The canonical form is fixed: sorted keys, no defaults, types always."""
    facts = [{"weight": 2, "type": "url", "id": "u", "match": "exact", "url": "/x"}]
    rubric = read_rubric(
        {"pass_threshold": 0.85, "fact_groups": [{"facts": facts, "name": "g", "weight": 1}], "gates": []}
    )
    canonical = b'{"fact_groups":[{"facts":[{"id":"u","type":"url","url":"/x","weight":2.0}],"name":"g"}]}'
    assert rubric_hash(rubric) == hashlib.sha256(canonical).hexdigest()


def test_a_changed_rubric_refuses_to_grade() -> None:
    frozen, changed = two_groups(), two_groups(pass_threshold=0.5)
    expected = rubric_hash(frozen)
    assert grade_by_program(frozen, EVIDENCE, expected_hash=expected).rubric_hash == expected
    with pytest.raises(JudgeError) as refused:
        grade_by_program(changed, EVIDENCE, expected_hash=expected)
    assert expected in str(refused.value) and rubric_hash(changed) in str(refused.value)


PAGE = (Path(__file__).parents[3] / "docs" / "rubrics.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_is_as_it_says() -> None:
    example = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    data = orjson.loads(example[1])
    needs = {"required_fact_ids": ["at"], "required_group_ids": ["order"]}
    assert read_rubric(data).pass_requirements.floors == {"textSimilarity": 0.5}
    rubric = read_rubric(data | {"gates": [], "pass_requirements": needs})
    assert graded(rubric, at=1, confirmed=0, total=1).score == pytest.approx(2 / 3)
    assert graded(rubric, at=0, confirmed=1, total=1).score == 0


def test_the_page_lists_every_type_of_fact() -> None:
    kinds = {kind.model_fields["type"].default for kind in get_args(get_args(Fact)[0])}
    assert kinds == set(re.findall(r"^\| ?`(\w+)` ?\|.*\|.*\|$", PAGE, re.MULTILINE))
