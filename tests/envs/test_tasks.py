"""Task files: everything wrong is named, nothing is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.sites.miniwob import import_tasks
from envs.tasks import load_tasks, save_tasks
from envs.types import Split, TaskError

DATA = Path(__file__).parents[2] / "datasets" / "tasks" / "miniwob.jsonl"
GOOD = {
    "task_id": "s/k",
    "site": "s",
    "kind": "k",
    "path": "/k.html",
    "difficulty": 1,
    "horizon": 2,
    "seeds": {"train": {"start": 10, "stop": 20}, "held_out": {"start": 0, "stop": 10}},
}


def written(path: Path, *rows: object) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"difficulty": 0}, "difficulty"),
        ({"difficulty": "1"}, "difficulty"),
        ({"horizon": -1}, "horizon"),
        ({"task_id": " "}, "task_id"),
        ({"path": "k.html"}, "path"),
        ({"surprise": 1}, "surprise"),
        ({"seeds": {}}, "seeds"),
        ({"seeds": {"practice": {"start": 0, "stop": 1}}}, "seeds.practice"),
        ({"seeds": {"train": {"start": 5, "stop": 5}}}, "seeds.train"),
        ({"seeds": {"train": {"start": 0, "stop": 6}, "demo": {"start": 5, "stop": 9}}}, "seeds.demo"),
        ({"seeds": {"train": {"start": 0}}}, "seeds.train.stop"),
    ],
)
def test_a_bad_value_is_named_with_line_and_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = written(tmp_path / "t.jsonl", {**GOOD, "task_id": "s/first"}, {**GOOD, **change})
    with pytest.raises(TaskError) as caught:
        load_tasks(path)
    assert f"{path}:2: {field}: " in str(caught.value)


@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    row = {name: value for name, value in GOOD.items() if name != key}
    with pytest.raises(TaskError, match=f":1: {key}: Field required"):
        load_tasks(written(tmp_path / "t.jsonl", row))


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", GOOD, "{", "", "[1]", GOOD, {**GOOD, "task_id": "s/x", "horizon": 0})
    with pytest.raises(TaskError) as caught:
        load_tasks(path)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "3", "4", "5", "6"]
    assert "task_id: 's/k' is already used by line 1" in lines[3]


def test_no_file_and_no_lines_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be read"):
        load_tasks(tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="has no tasks"):
        load_tasks(written(tmp_path / "t.jsonl"))


@given(st.text(max_size=80))
def test_any_line_is_a_task_or_a_named_error(tmp_path_factory: pytest.TempPathFactory, line: str) -> None:
    path = tmp_path_factory.mktemp("any") / "t.jsonl"
    path.write_text(line.replace("\r", " ").replace("\n", " ") + "\n", encoding="utf-8", errors="replace")
    with pytest.raises(TaskError, match=r"t\.jsonl(:1)?: "):
        load_tasks(path)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    tasks = import_tasks()
    save_tasks(tmp_path / "t.jsonl", tasks)
    assert load_tasks(tmp_path / "t.jsonl") == tasks


def test_the_data_set_is_the_import_and_is_data_only() -> None:
    tasks = load_tasks(DATA)
    assert tasks == import_tasks()
    assert len(tasks) == 130
    assert tasks[0].seeds[Split.HELD_OUT].start == 0 and len(tasks[0].seeds[Split.TRAIN]) == 1_000_000
    assert list(DATA.parents[1].rglob("*.py")) == []
