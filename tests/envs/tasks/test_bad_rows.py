"""A thousand bad rows among good ones: each refused with file, line, field and reason; the good
ones kept and counted."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from envs.tasks import load_tasks, read_tasks, save_parquet
from envs.types import TaskError
from tests.envs.tasks.making import MUTATIONS, good_row, task

BAD = 1_000


def test_a_thousand_bad_rows_are_each_named_and_the_good_ones_kept(tmp_path: Path) -> None:
    random = Random(20)
    path = tmp_path / "t.jsonl"
    expected: dict[int, tuple[str, str, bytes]] = {}
    lines, good = [], []
    for number in range(BAD):
        lines.append(json.dumps(good_row(number), ensure_ascii=False).encode())
        good.append(task(number))
        mutation = MUTATIONS[number % len(MUTATIONS)]
        line, field = mutation(random, good_row(10_000 + number))
        lines.append(line)
        expected[len(lines)] = (mutation.__name__, field, line)
    path.write_bytes(b"\n".join(lines) + b"\n")

    read = read_tasks(path)

    assert read.tasks == good
    assert read.bad_rows == BAD
    fields: dict[int, set[str]] = {}
    for problem in read.problems:
        assert problem.path == str(path) and problem.reason.strip()
        assert str(problem).startswith(f"{path}:{problem.row}: {problem.field}: ")
        fields.setdefault(problem.row, set()).add(problem.field)
    assert set(fields) == set(expected)
    wrong = {row: (*expected[row], fields[row]) for row in expected if fields[row] != {expected[row][1]}}
    assert wrong == {}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_one_bad_row_fails_the_whole_file_in_the_strict_way(tmp_path: Path, mutation: object) -> None:
    assert callable(mutation)
    line, field = mutation(Random(1), good_row(1))
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(good_row(0)).encode() + b"\n" + line + b"\n")
    with pytest.raises(TaskError, match=f":2: {field}: "):
        load_tasks(path)


def test_a_row_of_version_1_may_say_so_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"schema_version": 1, **good_row(0)}) + "\n")
    assert load_tasks(path) == [task(0)]
    path.write_text(json.dumps({"schema_version": 7, **good_row(0)}) + "\n")
    with pytest.raises(TaskError, match=r"t\.jsonl:1: schema_version: 7 is not known here; known are 1"):
        load_tasks(path)


def test_bad_rows_of_a_parquet_file_are_named_too(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    save_parquet(path, [task(number) for number in range(6)])
    rows = pq.read_table(path).to_pylist()
    rows[1]["difficulty"] = 0
    rows[2]["seeds"] = '{"train": '
    rows[3]["site"] = None
    rows[4]["schema_version"] = 9
    rows[5]["task_id"] = rows[0]["task_id"]
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(path)), path)

    read = read_tasks(path)

    assert read.tasks == [task(0)]
    assert [(problem.row, problem.field) for problem in read.problems] == [
        (2, "difficulty"),
        (3, "seeds"),
        (4, "site"),
        (5, "schema_version"),
        (6, "task_id"),
    ]
    assert read.problems[2].reason == "Field required"


def test_a_parquet_file_with_other_columns_or_types_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    row = {**good_row(0), "seeds": json.dumps(good_row(0)["seeds"]), "difficulty": "1", "colour": "red", "raw": b"\xff"}
    pq.write_table(pa.Table.from_pylist([row]), path)
    assert {problem.field for problem in read_tasks(path).problems} == {"difficulty", "colour", "raw"}


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl", "t.json"])
def test_files_that_cannot_be_read_are_problems_of_the_file(tmp_path: Path, name: str) -> None:
    gone = read_tasks(tmp_path / name)
    assert [str(problem).startswith(f"{tmp_path / name}: cannot be read: ") for problem in gone.problems] == [True]
    (tmp_path / name).write_bytes(b"")
    empty = read_tasks(tmp_path / name)
    assert len(empty.problems) == 1 and not empty.tasks


@pytest.mark.parametrize("name", ["ArrowNotImplementedError", "ArrowCapacityError", "ArrowKeyError", "ArrowException"])
def test_whatever_pyarrow_raises_is_a_problem_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Not all of its errors are a ValueError or an OSError: a codec that it was built without is
    neither."""
    path = tmp_path / "t.parquet"
    save_parquet(path, [task(0)])

    def refuse(*_: object, **__: object) -> None:
        raise getattr(pa, name)("no such codec")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", refuse)
    with pytest.raises(TaskError, match=rf"t\.parquet.*cannot be read: {name}: .*no such codec"):
        load_tasks(path)


def test_a_torn_parquet_file_does_not_hide_the_others(tmp_path: Path) -> None:
    save_parquet(tmp_path / "a.parquet", [task(0)])
    save_parquet(tmp_path / "b.parquet", [task(1)])
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    read = read_tasks(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert read.tasks == [task(1)] and read.bad_rows == 0
    assert [problem.row for problem in read.problems] == [0]


def test_a_torn_json_list_is_named_with_its_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([good_row(0), good_row(1)], indent=1)[:-30])
    read = read_tasks(path)
    assert not read.tasks and [(problem.row, problem.field) for problem in read.problems] == [(1, "line")]
    assert "is no JSON (line " in read.problems[0].reason
