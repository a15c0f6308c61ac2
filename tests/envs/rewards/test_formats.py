"""Rubrics of three forms are read as they are, and bad ones are refused with field and reason."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from envs.rewards import from_w8, from_webgym, grade_by_program, load_rubric, read_rubric
from envs.types import Rubric, SeedRange, Split, TaskError, WebTask, rubric_hash
from envs.types.rubrics import JudgeFact, SubscoreFact

from .played import EVIDENCE

W8: dict[str, Any] = {
    "name": "Login page",
    "fact_groups": [
        {
            "name": "look",
            "weight": 2.0,
            "facts": [
                {"id": "structure", "type": "domdiff_subscore", "key": "structuralSimilarity", "weight": 3},
                {"id": "text", "type": "domdiff_subscore", "key": "textSimilarity"},
            ],
        },
        {
            "name": "required_assertions",
            "facts": [
                {"id": "total", "type": "dom_element_present", "selector": "#total"},
                {
                    "id": "sum",
                    "type": "dom_element_attribute_equals",
                    "selector": "#total",
                    "attribute": "data-sum",
                    "expected_value": "1234.5",
                },
                {
                    "id": "red",
                    "type": "dom_element_style_property",
                    "selector": "#total",
                    "property": "color",
                    "expected_value": "rgb(255, 0, 0)",
                },
                {
                    "id": "still",
                    "type": "signal_threshold",
                    "metric": "total_cls",
                    "comparison": "lte",
                    "threshold": 0.1,
                },
                {"id": "layers", "type": "signal_threshold", "metric": "compositor_layer_count"},
            ],
        },
    ],
    "pass_threshold": 0.8,
    "pass_requirements": {
        "required_fact_ids": ["total", "text"],
        "required_group_ids": ["required_assertions"],
        "domdiff_floors": {"structuralSimilarity": 0.85},
    },
}

WEBGYM: dict[str, Any] = {
    "task_name": "Find two lamps",
    "evaluator_reference": [
        {"id": 1, "description": "The lamp", "facts": ["It is red.", "It costs less than $20."]},
        {"id": 2, "description": "The vase", "facts": ["It is blue."]},
    ],
}

OURS: dict[str, Any] = {
    "fact_groups": [
        {
            "name": "order",
            "weight": 2,
            "facts": [
                {"id": "at", "type": "url", "url": "/orders/12"},
                {"id": "says", "type": "text", "text": "order \\d+ confirmed", "match": "regex"},
                {"id": "sum", "type": "answer", "expected": ["1234.5"], "match": "number", "tolerance": 0.1},
                {"id": "invoice", "type": "element", "element": {"id": "invoice"}},
                {
                    "id": "peru",
                    "type": "element_state",
                    "element": {"tag": "select"},
                    "property": "value",
                    "equals": "Peru",
                },
            ],
        },
        {
            "name": "rest",
            "facts": [
                {"id": "done", "type": "page_fact", "name": "raw_reward", "op": "gt", "value": 0},
                {"id": "file", "type": "download", "name": "invoice-12.pdf"},
                {"id": "rows", "type": "server_sql", "query": "select 1", "rows": [[1, "a", None, True]]},
                {"id": "api", "type": "server_http", "path": "/api", "at": ["orders", 0], "value": 3},
                {"id": "nodes", "type": "dom_element_present", "selector": "body > div#total"},
                {
                    "id": "calm",
                    "type": "signal_threshold",
                    "metric": "layout_shift",
                    "comparison": "lte",
                    "threshold": 0.1,
                },
                {"id": "alike", "type": "domdiff_subscore", "key": "textSimilarity"},
                {"id": "nice", "type": "judge", "description": "It is nice."},
            ],
        },
    ],
    "gates": [{"id": "honest", "type": "judge", "description": "Nothing is made up.", "criterion": "grounded"}],
    "pass_threshold": 0.9,
    "pass_requirements": {
        "required_fact_ids": ["at"],
        "required_group_ids": ["order"],
        "floors": {"textSimilarity": 0.2},
    },
}


def test_w8s_rubric_loads_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "rubric.json"
    path.write_bytes(orjson.dumps(W8))
    rubric = load_rubric(path)
    assert rubric == from_w8(W8) and rubric.fact_count == 7 and rubric.pass_threshold == 0.8
    assert rubric.pass_requirements.floors == {"structuralSimilarity": 0.85}
    bundle = grade_by_program(rubric, EVIDENCE)
    # look: (3 * .9 + .4) / 4 = .775; the assertions hold: (2 * .775 + 1) / 3
    assert bundle.score == pytest.approx(0.85) and bundle.passed and bundle.binary == 1


def test_w8_defaults_and_no_requirements() -> None:
    rubric = read_rubric({"fact_groups": W8["fact_groups"]})
    assert rubric.pass_threshold == 0.85
    fact = rubric.fact_groups[0].facts[0]
    assert isinstance(fact, SubscoreFact) and 0 < fact.holds_at < 1e-6


def test_webgyms_list_loads_unchanged() -> None:
    for data in (WEBGYM, WEBGYM["evaluator_reference"]):
        rubric = read_rubric(data)
        assert rubric == from_webgym(data) and rubric.fact_count == 3 and rubric.pass_threshold == 1
        assert [fact.id for fact in rubric.facts()] == ["1.1", "1.2", "2.1", "grounded"]
        assert all(isinstance(fact, JudgeFact) for fact in rubric.facts())
        assert [group.description for group in rubric.fact_groups] == ["The lamp", "The vase"]


def test_our_own_form_comes_back_from_what_is_written() -> None:
    rubric = read_rubric(OURS)
    again = read_rubric(orjson.loads(rubric.model_dump_json()))
    assert again == rubric and rubric_hash(again) == rubric_hash(rubric)
    w8 = from_w8(W8)
    assert read_rubric(orjson.loads(w8.model_dump_json())) == w8


def test_a_task_carries_its_rubric() -> None:
    plain = {
        "task_id": "shop/lamp",
        "site": "shop",
        "kind": "lamp",
        "path": "/",
        "difficulty": 1,
        "horizon": 10,
        "seeds": {"train": {"start": 0, "stop": 5}},
    }
    old = WebTask.model_validate_json(orjson.dumps(plain), strict=True)
    assert old.rubric is None and old.rubric_hash == "" and old.seeds == {Split.TRAIN: SeedRange(start=0, stop=5)}
    task = WebTask.model_validate_json(orjson.dumps(plain | {"rubric": OURS}), strict=True)
    assert task.rubric == read_rubric(OURS)
    assert WebTask.model_validate_json(task.model_dump_json(), strict=True) == task


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '"x"', "null", "{}", "[3]", '{"fact_groups": NaN}'])
def test_what_is_no_rubric_is_refused_with_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rubric.json"
    path.write_text(content)
    with pytest.raises(TaskError, match=r"rubric\.json: "):
        load_rubric(path)
    with pytest.raises(TaskError, match=r"missing\.json: cannot be read"):
        load_rubric(tmp_path / "missing.json")


Place = tuple[Any, str | int]
"""An object or list inside a rubric, and a key of it."""


def _places(value: Any, path: str = "") -> Iterator[tuple[str, Place]]:
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        here = f"{path}.{key}".removeprefix(".")
        yield here, (value, key)
        yield from _places(each, here)


MISSING_IS_FINE = {"weight", "gates", "pass_threshold", "pass_requirements", "match", "op", "tolerance", "comparison"}
MISSING_IS_FINE |= {"required_fact_ids", "required_group_ids", "floors", "criterion", "at", "textSimilarity"}


def _drop(place: Place, path: str) -> bool:
    holder, key = place
    if not isinstance(key, str) or key in MISSING_IS_FINE or path.endswith(("element.id", "element.tag")):
        return False
    del holder[key]
    return True


def _wrong_type(place: Place, path: str) -> bool:
    holder, key = place
    if "rows" in path or path.endswith((".at.0", ".at.1", "value", "equals")):
        return False  # any scalar will do
    holder[key] = {"not": ["this"]}
    return True


def _out_of_range(place: Place, path: str) -> bool:
    holder, key = place
    bad = {"weight": -1, "pass_threshold": 1.5, "tolerance": -0.1, "textSimilarity": 2, "min_bytes": -1}
    if key not in bad:
        return False
    holder[key] = bad[str(key)]
    return True


def _unknown_word(place: Place, path: str) -> bool:
    holder, key = place
    if key not in ("type", "match", "op", "comparison", "criterion", "key", "property"):
        return False
    holder[key] = "sideways"
    return True


def _blank(place: Place, path: str) -> bool:
    holder, key = place
    if key not in ("name", "url", "text", "query", "selector", "metric", "description", "path") and not (
        key == "id" and "element" not in path
    ):
        return False
    holder[key] = "  "
    return True


def _unknown_key(place: Place, path: str) -> bool:
    holder, _ = place
    if not isinstance(holder, dict):
        return False
    holder["wieght"] = 1
    return True


def _empty(place: Place, path: str) -> bool:
    holder, key = place
    if key not in ("facts", "fact_groups", "expected"):
        return False
    holder[key] = []
    return True


def _null(place: Place, path: str) -> bool:
    holder, key = place
    if "rows" in path or path.endswith("api.value") or (key == "value"):
        return False
    holder[key] = None
    return True


MUTATORS: list[Callable[[Place, str], bool]] = [
    _drop,
    _wrong_type,
    _out_of_range,
    _unknown_word,
    _blank,
    _unknown_key,
    _empty,
    _null,
]


def mutants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Our rubric with one thing wrong, at every place and in every way that applies."""
    for mutate in MUTATORS:
        for path, _ in _places(OURS):
            data = copy.deepcopy(OURS)
            place = dict(_places(data))[path]
            if mutate(place, path):
                yield f"{mutate.__name__} {path}", data


SPECIAL: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("used 2 times", lambda data: data["fact_groups"][0]["facts"][1].update(id="at")),
    ("used 2 times", lambda data: data["fact_groups"][1].update(name="order")),
    ("used 2 times", lambda data: data["gates"][0].update(id="at")),
    ("required_fact_ids", lambda data: data["pass_requirements"].update(required_fact_ids=["gone"])),
    ("required_fact_ids", lambda data: data["pass_requirements"].update(required_fact_ids=["honest"])),
    ("required_group_ids", lambda data: data["pass_requirements"].update(required_group_ids=["gone"])),
    ("floors", lambda data: data["pass_requirements"].update(floors={"smellSimilarity": 0.5})),
    ("regular expression", lambda data: data["fact_groups"][0]["facts"][1].update(text="(")),
    ("no number", lambda data: data["fact_groups"][0]["facts"][2].update(expected=["twelve"])),
    ("at least one of", lambda data: data["fact_groups"][0]["facts"][3].update(element={})),
    ("needs a text", lambda data: data["fact_groups"][0]["facts"][4].update(equals=True)),
    ("true or false", lambda data: data["fact_groups"][0]["facts"][4].update(property="checked")),
    ("needs a number", lambda data: data["fact_groups"][1]["facts"][0].update(value="much")),
    ("path", lambda data: data["fact_groups"][1]["facts"][3].update(path="http://elsewhere/")),
    ("path", lambda data: data["fact_groups"][1]["facts"][3].update(path="//elsewhere/")),
    ("sha256", lambda data: data["fact_groups"][1]["facts"][1].update(sha256="abc")),
    ("selector", lambda data: data["fact_groups"][1]["facts"][4].update(selector="div >")),
    ("selector", lambda data: data["fact_groups"][1]["facts"][4].update(selector="a:hover")),
    ("weight", lambda data: data["fact_groups"][0].update(weight=0)),
    ("weight", lambda data: data["fact_groups"][0].update(weight="1")),
    ("weight", lambda data: data["fact_groups"][0].update(weight=True)),
]


def test_mutated_rubrics_are_each_refused_with_field_and_reason() -> None:
    assert isinstance(read_rubric(OURS), Rubric)
    count = 0
    for name, data in mutants():
        with pytest.raises(TaskError) as refused:
            read_rubric(data, "tasks.jsonl:7")
            pytest.fail(f"{name} was accepted")
        for line in str(refused.value).splitlines():
            where, field, reason = line.split(": ", 2)
            assert where == "tasks.jsonl:7" and field and reason, name
        how, path = name.split()
        named = "wieght" if how == "_unknown_key" else path.split(".")[0]
        assert named in str(refused.value), (name, str(refused.value))
        count += 1
    assert count >= 300, count


@pytest.mark.parametrize(("says", "break_it"), SPECIAL, ids=[f"{n} {says}" for n, (says, _) in enumerate(SPECIAL)])
def test_what_types_do_not_say_is_refused_too(says: str, break_it: Callable[[dict[str, Any]], Any]) -> None:
    data = copy.deepcopy(OURS)
    break_it(data)
    with pytest.raises(TaskError, match=says):
        read_rubric(data)


def test_mutated_lists_of_webgym_are_refused_with_field_and_reason() -> None:
    chance = random.Random(5)
    for _ in range(200):
        data = copy.deepcopy(WEBGYM)
        group = chance.choice(data["evaluator_reference"])
        broken: Any = chance.choice([None, 3, "", [], {}, ["x", None], [" "]])
        chance.choice([lambda g, b: g.update(facts=b), lambda g, b: g.pop("id"), lambda g, b: g.pop("facts")])(
            group, broken
        )
        with pytest.raises(TaskError, match=r"rubric: evaluator_reference\.\d(\.\w+)+: expected"):
            read_rubric(data)


def test_mutated_rubrics_of_w8_are_refused_with_field_and_reason() -> None:
    for facts, says in (
        ([{"id": "x", "type": "domdiff_subscore", "key": "smell"}], "key"),
        ([{"id": "x", "type": "dom_element_present"}], "selector: Field required"),
        ([{"id": "x", "type": "nothing"}], "facts.0: "),
        ([], "facts"),
        (None, "facts"),
        (["x"], "facts.0"),
    ):
        with pytest.raises(TaskError, match=says):
            from_w8({"fact_groups": [{"name": "g", "facts": facts}]})
    for data in ({}, {"fact_groups": 3}, {"fact_groups": [3]}, W8 | {"pass_requirements": [1]}):
        with pytest.raises(TaskError):
            from_w8(data)
