"""Sub-tasks: true subsets of their parent's rubric, closed under what comes before, the same each
time."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.ends import max_steps
from envs.tasks.content import content_key
from envs.tasks.decompose import (
    DecompositionRules,
    chosen_subsets,
    decompose,
    not_decomposed,
    part_instruction,
    prerequisites,
    sub_rubric,
)
from envs.types import Rubric, WebTask, rubric_hash
from tests.envs.tasks.making import task

ANY = DecompositionRules(large_group=1, most=4096)


def rubric(groups: dict[str, int], after: dict[str, list[str]] | None = None, **more: Any) -> Rubric:
    """Groups with so many facts each: ``a`` has a.0, a.1…"""
    after = after or {}
    return Rubric.model_validate(
        {
            "fact_groups": [
                {
                    "name": name,
                    "description": f"Do {name}",
                    "after": after.get(name, []),
                    "facts": [
                        {
                            "id": f"{name}.{number}",
                            "type": "text",
                            "text": f"{name} {number}",
                            "after": after.get(f"{name}.{number}", []),
                        }
                        for number in range(count)
                    ],
                }
                for name, count in groups.items()
            ],
            **more,
        }
    )


def parent(made: Rubric, **more: Any) -> WebTask:
    values = {"difficulty": made.fact_count, "horizon": max_steps(made.fact_count), "rubric_hash": rubric_hash(made)}
    return task(1, **{**values, "rubric": made, **more})


def subsets(made: Rubric, rules: DecompositionRules = ANY) -> set[str]:
    return {"".join(names) for names in chosen_subsets(made, rules, Random(0))}


def test_without_an_order_all_proper_subsets_are_there() -> None:
    assert subsets(rubric({"a": 3, "b": 1, "c": 2})) == {"a", "b", "c", "ab", "ac", "bc"}


def test_a_group_brings_what_it_is_after() -> None:
    made = rubric({"a": 3, "b": 1, "c": 2, "d": 1}, {"b": ["a"], "c": ["b"]})
    assert prerequisites(made)["c"] == {"a", "b", "c"}
    assert subsets(made) == {"a", "ab", "abc", "d", "ad", "abd"}


def test_a_fact_that_is_after_another_brings_its_group() -> None:
    made = rubric({"a": 3, "b": 2, "c": 1}, {"b.1": ["a.2"]})
    assert subsets(made) == {"a", "ab", "ac", "c"}


def test_groups_whose_facts_need_each_other_stay_together() -> None:
    made = rubric({"a": 2, "b": 2, "c": 1}, {"a.1": ["b.0"], "b.1": ["a.0"]})
    assert subsets(made) == {"ab", "c"}


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ({"a": 5}, "1 of at least 2"),
        ({"a": 2, "b": 2}, "the largest has 2 facts, of at least 3"),
        ({"a": 3, "b": 1}, None),
    ],
)
def test_webgyms_conditions(groups: dict[str, int], reason: str | None) -> None:
    whole = parent(rubric(groups))
    skipped = not_decomposed(whole, DecompositionRules())
    if reason is None:
        assert skipped is None and len(decompose(whole, DecompositionRules()).tasks) == 2
    else:
        assert skipped is not None and reason in skipped


def test_tasks_without_words_or_rubric_have_none() -> None:
    made = rubric({"a": 3, "b": 1})
    assert not_decomposed(task(1), ANY) == "rubric: there is none"
    assert not_decomposed(parent(made, instruction=None), ANY) == "instruction: only the page gives it"


def test_a_sub_task_by_hand() -> None:
    made = rubric(
        {"find": 3, "sort": 2, "buy": 1},
        {"buy": ["find"]},
        gates=[
            {"id": "honest", "type": "judge", "description": "Nothing is made up.", "criterion": "grounded"},
            {"id": "once", "type": "text", "text": "1 order", "after": ["buy.0"]},
        ],
        pass_threshold=0.9,
        pass_requirements={
            "required_fact_ids": ["find.0", "buy.0"],
            "required_group_ids": ["sort", "buy"],
            "floors": {"textSimilarity": 0.5},
        },
    )
    whole = parent(made, horizon=40)
    by_facts = {part.difficulty: part for part in decompose(whole, DecompositionRules(most=4096)).tasks}
    assert sorted(by_facts) == [2, 3, 4, 5]  # sort; find; find+buy; find+sort
    part = by_facts[5]
    assert part.rubric is not None
    assert part.rubric.fact_groups == made.fact_groups[:2]
    assert [gate.id for gate in part.rubric.gates] == ["honest"]
    assert part.rubric.pass_requirements.required_fact_ids == ("find.0",)
    assert part.rubric.pass_requirements.required_group_ids == ("sort",)
    assert part.rubric.pass_requirements.floors == {} and part.rubric.pass_threshold == 0.9
    assert part.rubric_hash == rubric_hash(part.rubric) != whole.rubric_hash
    assert part.task_id == f"{whole.task_id}~{part.rubric_hash[:12]}"
    assert part.horizon == 34  # 40 * 5 / 6, more than the 20 of five facts
    assert (part.site, part.path, part.kind, part.seeds) == (whole.site, whole.path, whole.kind, whole.seeds)
    assert part.instruction == (f"{whole.instruction}\n\nOnly this part of it has to be done:\n- Do find\n- Do sort")
    assert [gate.id for gate in (by_facts[4].rubric or made).gates] == ["honest", "once"]


def test_a_floor_stays_with_a_fact_about_its_similarity() -> None:
    look = {"id": "look", "type": "domdiff_subscore", "key": "textSimilarity"}
    made = rubric({"a": 3, "b": 1}).model_dump(mode="json")
    made["fact_groups"][1]["facts"] = [look]
    made["pass_requirements"] = {"floors": {"textSimilarity": 0.5, "styleSimilarity": 0.4}}
    whole = Rubric.model_validate(made)
    assert sub_rubric(whole, ["b"]).pass_requirements.floors == {"textSimilarity": 0.5}
    assert sub_rubric(whole, ["a"]).pass_requirements.floors == {}


def test_a_similarity_to_the_whole_tasks_page_is_in_no_part() -> None:
    made = rubric({"a": 3, "b": 1, "c": 1}).model_dump(mode="json")
    made["fact_groups"][2]["facts"] = [{"id": "look", "type": "domdiff_subscore", "key": "textSimilarity"}]
    whole = parent(Rubric.model_validate(made), reference="/after.html")
    parts = decompose(whole, ANY).tasks
    assert sorted(part.difficulty for part in parts) == [1, 3, 4]
    assert all(part.reference == "" and "look" not in str(part.rubric) for part in parts)


def test_a_group_without_words_is_refused_and_said() -> None:
    made = rubric({"a": 3, "b": 1}).model_dump(mode="json")
    made["fact_groups"][1]["description"] = " "
    parts = decompose(parent(Rubric.model_validate(made)), ANY)
    assert [part.difficulty for part in parts.tasks] == [3]
    assert len(parts.rejected) == 1 and "group 'b'" in parts.rejected[0][1]
    made["fact_groups"][1]["facts"][0]["description"] = "The basket is empty"
    whole = parent(Rubric.model_validate(made))
    assert any("- The basket is empty" in (part.instruction or "") for part in decompose(whole, ANY).tasks)


def test_words_that_give_away_the_answer_are_refused() -> None:
    made = rubric({"a": 3, "b": 1}).model_dump(mode="json")
    made["fact_groups"][1]["facts"] = [{"id": "price", "type": "answer", "expected": "19.99", "match": "number"}]
    made["fact_groups"][1]["description"] = "Say that it is 19.99"
    whole = parent(Rubric.model_validate(made))
    ((name, reason),) = decompose(whole, ANY).rejected
    assert name.startswith(whole.task_id) and reason == "instruction: gives away the answer '19.99'"
    said = whole.model_copy(update={"instruction": "Is 19.99 the price?"})
    assert not decompose(said, ANY).rejected
    made["fact_groups"][1]["description"] = "Say the price, not 119.99 or 19.995"
    assert not decompose(parent(Rubric.model_validate(made)), ANY).rejected


def test_few_sub_tasks_are_spread_over_sizes() -> None:
    made = rubric({name: 1 for name in "abcdefgh"})
    sizes = [len(names) for names in chosen_subsets(made, DecompositionRules(large_group=1, most=9), Random(3))]
    assert sorted(sizes) == [1, 1, 2, 2, 3, 4, 5, 6, 7]


def test_of_many_groups_subsets_are_drawn() -> None:
    names = [f"g{number:02d}" for number in range(40)]
    made = rubric(dict.fromkeys(names, 1), {names[i]: [names[i - 1]] for i in range(1, 40) if i % 5})
    found = chosen_subsets(made, DecompositionRules(large_group=1, most=30), Random(1))
    assert len(found) == len(set(found)) == 30
    needed = prerequisites(made)
    assert all(needed[name] <= set(subset) for subset in found for name in subset)


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ({"a": ["x"]}, "group 'a' is after 'x', which is no group"),
        ({"a": ["a"]}, "a group comes after itself"),
        ({"a": ["b"], "b": ["a"]}, "a group comes after itself: 'a' after 'b' after 'a'|'b' after 'a' after 'b'"),
        ({"a.0": ["gone"]}, "fact 'a.0' is after 'gone', which is no fact"),
        ({"a.0": ["b.0"], "b.0": ["a.0"]}, "a fact comes after itself"),
    ],
)
def test_an_order_that_cannot_be_is_refused(after: dict[str, list[str]], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        rubric({"a": 1, "b": 1}, after)


def test_an_order_does_not_change_the_hash_of_rubrics_without_one() -> None:
    assert "after" not in rubric({"a": 1}).model_dump_json(exclude_defaults=True)


@st.composite
def rubrics(draw: st.DrawFn) -> Rubric:
    """Up to six groups in some order, with requirements and gates."""
    names = list("abcdef")[: draw(st.integers(2, 6))]
    sizes = {name: draw(st.integers(1, 4)) for name in names}
    after: dict[str, list[str]] = {}
    for place, name in enumerate(names):
        after[name] = draw(st.lists(st.sampled_from(names[:place]), max_size=2, unique=True)) if place else []
        if place and draw(st.booleans()):
            after[f"{name}.0"] = [f"{draw(st.sampled_from(names[:place]))}.0"]
    facts = [f"{name}.{number}" for name in names for number in range(sizes[name])]
    some = st.lists(st.sampled_from(facts), max_size=3, unique=True)
    return rubric(
        sizes,
        after,
        gates=[{"id": "gate", "type": "text", "text": "x", "after": draw(some)}],
        pass_requirements={
            "required_fact_ids": draw(some),
            "required_group_ids": draw(st.lists(st.sampled_from(names), max_size=2, unique=True)),
        },
    )


@settings(max_examples=80, deadline=None)
@given(rubrics(), st.integers(1, 80), st.integers(0, 5))
def test_every_sub_rubric_is_a_true_subset(made: Rubric, most: int, seed: int) -> None:
    whole = parent(made)
    parts = decompose(whole, DecompositionRules(large_group=1, most=most), seed)
    assert parts == decompose(whole, DecompositionRules(large_group=1, most=most), seed)
    assert len(parts.tasks) <= most and not parts.rejected
    facts = {fact.id: fact for group in made.fact_groups for fact in group.facts}
    groups = {group.name: group for group in made.fact_groups}
    for part in parts.tasks:
        assert part.rubric is not None
        kept = {fact.id: fact for group in part.rubric.fact_groups for fact in group.facts}
        assert kept.items() < facts.items()
        assert all(groups[group.name] == group for group in part.rubric.fact_groups)
        assert set(part.rubric.gates) <= set(made.gates)
        assert all(set(gate.after) <= kept.keys() for gate in part.rubric.gates)
        mine, theirs = part.rubric.pass_requirements, made.pass_requirements
        assert set(mine.required_fact_ids) == set(theirs.required_fact_ids) & kept.keys()
        named = {group.name for group in part.rubric.fact_groups}
        assert set(mine.required_group_ids) == set(theirs.required_group_ids) & named
        assert all(set(group.after) <= named for group in part.rubric.fact_groups)
        assert all(set(fact.after) <= kept.keys() for fact in kept.values())
        assert part.difficulty == len(kept) < whole.difficulty and 1 <= part.horizon <= whole.horizon
        assert part.rubric_hash == rubric_hash(part.rubric)
        assert part.instruction == part_instruction(whole, part.rubric)
    ids = [part.task_id for part in parts.tasks]
    assert len(set(ids)) == len(ids) == len({content_key(part) for part in parts.tasks})


@settings(max_examples=40, deadline=None)
@given(rubrics())
def test_all_closed_subsets_are_found(made: Rubric) -> None:
    names = [group.name for group in made.fact_groups]
    needed = prerequisites(made)
    closed = {
        "".join(subset)
        for size in range(1, len(names))
        for subset in combinations(names, size)
        if set(subset) == set().union(*(needed[name] for name in subset))
    }
    assert subsets(made) == closed


def test_content_is_what_counts() -> None:
    made = rubric({"a": 2, "b": 1})
    one = parent(made)
    other = one.model_copy(
        update={"task_id": "another", "horizon": 7, "seeds": {}, "instruction": f" {one.instruction} "}
    )
    assert content_key(other) == content_key(one)
    renamed = made.model_dump(mode="json")
    renamed["fact_groups"].reverse()
    renamed["fact_groups"][0]["name"] = "z"
    renamed["fact_groups"][0]["facts"][0] |= {"id": "zz", "description": "a remark"}
    assert content_key(one.model_copy(update={"rubric": Rubric.model_validate(renamed)})) == content_key(one)
    for change in (
        {"path": "/elsewhere"},
        {"site": "other"},
        {"reference": "/after.html"},
        {"instruction": "Something else"},
        {"rubric": None},
        {"rubric": made.model_copy(update={"pass_threshold": 0.5})},
        {"rubric": sub_rubric(made, ["a"])},
    ):
        assert content_key(one.model_copy(update=change)) != content_key(one)
    renamed["fact_groups"][0]["facts"][0]["text"] = "other"
    assert content_key(one.model_copy(update={"rubric": Rubric.model_validate(renamed)})) != content_key(one)
