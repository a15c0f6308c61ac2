"""A thousand task rows with a broken rubric among good ones: each refused with file, line, field
and reason; the good ones kept and counted."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from envs.tasks import load_tasks, read_tasks
from envs.types import Rubric, TaskError, WebTask, rubric_hash
from tests.envs.tasks.making import task

BAD = 1_000

RUBRIC: dict[str, Any] = {
    "fact_groups": [
        {
            "name": "order",
            "description": "Order the lamp",
            "weight": 2.0,
            "facts": [
                {"id": "at", "type": "url", "url": "/orders/12", "match": "prefix"},
                {"id": "thanks", "type": "text", "text": "Thank you", "when": "ever", "weight": 0.5},
                {"id": "row", "type": "server_sql", "query": "select n from orders", "rows": [[1]], "after": ["at"]},
            ],
        },
        {
            "name": "answer",
            "after": ["order"],
            "facts": [
                {"id": "total", "type": "answer", "expected": ["42.5"], "match": "number", "tolerance": 0.01},
                {"id": "said", "type": "judge", "description": "The total was read from the order."},
            ],
        },
    ],
    "gates": [{"id": "honest", "type": "judge", "description": "Nothing is made up.", "criterion": "grounded"}],
    "pass_threshold": 0.9,
    "pass_requirements": {
        "required_fact_ids": ["at"],
        "required_group_ids": ["order"],
        "floors": {"textSimilarity": 0.5},
    },
}


def graded(number: int) -> WebTask:
    """A good task with a rubric that is frozen."""
    rubric = Rubric.model_validate_json(json.dumps(RUBRIC), strict=True)
    return task(number, difficulty=5, rubric=rubric, rubric_hash=rubric_hash(rubric))


def places(value: Any, path: str = "rubric") -> list[tuple[Any, Any, str]]:
    """Every place in the rubric: what holds it, its key, and its name as a problem names it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, inner in items:
        found += [(value, key, f"{path}.{key}"), *places(inner, f"{path}.{key}")]
    return found


def refused(random: Random) -> tuple[dict[str, Any], str]:
    """A rubric with one thing wrong, and the beginning of the field's name."""
    rubric = json.loads(json.dumps(RUBRIC))
    holder, key, name = random.choice(places(rubric))
    ways = ["type", "unknown"] + (["missing"] if key in ("name", "id", "type", "facts", "fact_groups", "url") else [])
    way = random.choice(ways)
    if way == "missing":
        del holder[key]
    elif way == "unknown":
        inner = holder[key]
        target, place = (inner, name) if isinstance(inner, dict) else (rubric, "rubric")
        target["wieght"] = 1
        name = f"{place}.wieght" if "floors" not in place else place
    else:
        old = holder[key]
        wrong: list[Any] = [{"x": []}, [[["y"]]]]
        if isinstance(old, str):
            wrong += [3, None, True, 1.5]
        elif isinstance(old, list):
            wrong += ["x", 3, None]
        elif isinstance(old, dict):
            wrong += ["x", 3, None, []]
        else:
            wrong += ["x", None, -1.0, float("inf")] if not isinstance(old, int) else []
        holder[key] = random.choice(wrong)
    return rubric, ".".join(name.split(".")[:2])


def test_a_thousand_rows_with_broken_rubrics_are_each_named(tmp_path: Path) -> None:
    random = Random(4)
    path = tmp_path / "graded.jsonl"
    lines, good, expected = [], [], {}
    for number in range(BAD):
        good.append(graded(number))
        lines.append(good[-1].model_dump_json(exclude_none=True))
        row = graded(10_000 + number).model_dump(mode="json", exclude_none=True)
        row["rubric"], field = refused(random)
        lines.append(json.dumps(row))
        expected[len(lines)] = field
    path.write_text("\n".join(lines) + "\n")

    read = read_tasks(path)

    assert read.tasks == good and read.bad_rows == BAD
    fields: dict[int, list[str]] = {}
    for problem in read.problems:
        assert problem.path == str(path) and problem.reason.strip()
        assert str(problem).startswith(f"{path}:{problem.row}: {problem.field}: ")
        fields.setdefault(problem.row, []).append(problem.field)
    assert fields.keys() == expected.keys()
    unnamed = {row: (expected[row], found) for row, found in fields.items() if not _names(found, expected[row])}
    assert unnamed == {}


def _names(found: list[str], expected: str) -> bool:
    return any(field == "rubric" or field.startswith(expected) for field in found)


@pytest.mark.parametrize(
    "change",
    [
        ("fact_groups", 0, "facts", 0, "url", "/orders/13"),
        ("pass_threshold", 0.1),
        ("gates", []),
        ("fact_groups", 1, "after", []),
    ],
)
def test_a_rubric_that_was_changed_after_it_was_frozen_is_refused(tmp_path: Path, change: tuple[Any, ...]) -> None:
    row = graded(0).model_dump(mode="json", exclude_none=True)
    *way, key, value = change
    inner = row["rubric"]
    for each in way:
        inner = inner[each]
    inner[key] = value
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(TaskError, match=r"t\.jsonl:1: rubric_hash: the rubric was changed after it was frozen"):
        load_tasks(path)


def test_a_hash_without_a_rubric_is_refused(tmp_path: Path) -> None:
    row = graded(0).model_dump(mode="json", exclude_none=True)
    del row["rubric"]
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(TaskError, match=r"t\.jsonl:1: rubric_hash: there is no rubric"):
        load_tasks(path)
