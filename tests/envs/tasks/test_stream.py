"""Files as a stream: forms, globs, shards, the tree."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.sites.miniwob import import_tasks
from envs.tasks import (
    TaskProblem,
    TreeLayout,
    iter_tasks,
    load_tasks,
    read_tasks,
    save_parquet,
    save_tasks,
    task_files,
    write_tree,
)
from envs.tasks.tree import file_name
from envs.types import TaskError
from tests.envs.tasks.making import good_row, task

TASKS = [task(number) for number in range(40)]


@pytest.mark.parametrize("form", TreeLayout)
def test_a_tree_holds_every_task_once_in_the_bucket_of_its_facts(tmp_path: Path, form: TreeLayout) -> None:
    written = write_tree(tmp_path / "tasks", TASKS, form, rows_per_file=4)
    assert sum(written.values()) == len(TASKS)
    assert {path.name for path in (tmp_path / "tasks" / "difficulty").iterdir()} == {"1", "2-3", "4-6", "7+"}
    for bucket, difficulties in (("1", {1}), ("2-3", {2, 3}), ("4-6", {4, 5, 6}), ("7+", {7, 8, 9})):
        files = task_files(f"tasks/difficulty/{bucket}/**/*.{form}", root=tmp_path)
        assert {one.difficulty for one in iter_tasks(files)} == difficulties
        assert len(files) == sum(path.relative_to(tmp_path).parts[2] == bucket for path in written)
    every = read_tasks(*task_files(f"tasks/difficulty/**/*.{form}", root=tmp_path))
    assert not every.problems
    assert sorted(one.task_id for one in every.tasks) == sorted(one.task_id for one in TASKS)
    assert {one.task_id: one for one in every.tasks} == {one.task_id: one for one in TASKS}


def test_the_glob_of_one_character_matches_one_bucket(tmp_path: Path) -> None:
    write_tree(tmp_path / "tasks", TASKS, TreeLayout.JSON)
    files = task_files("tasks/difficulty/[1-3]/**/*.json", root=tmp_path)
    assert {one.difficulty for one in iter_tasks(files)} == {1}
    more = task_files("tasks/difficulty/[1-3]/**/*.json", "tasks/difficulty/[1-3]-*/**/*.json", root=tmp_path)
    assert {one.difficulty for one in iter_tasks(more)} == {1, 2, 3}
    with pytest.raises(TaskError, match=r"no task file matches 'tasks/\*\.parquet'"):
        task_files("tasks/*.parquet", root=tmp_path)


def test_a_tree_is_not_written_over_another(tmp_path: Path) -> None:
    write_tree(tmp_path, TASKS[:3])
    with pytest.raises(TaskError, match="has files already"):
        write_tree(tmp_path, TASKS[:3])
    with pytest.raises(TaskError, match="two tasks have the id"):
        write_tree(tmp_path / "other", [TASKS[0], TASKS[0]], TreeLayout.JSON)


@given(
    st.text(min_size=1).filter(lambda text: text.isprintable()),
    st.text(min_size=1).filter(lambda text: text.isprintable()),
)
def test_file_names_are_one_part_of_a_path_and_differ(one: str, other: str) -> None:
    assert Path(file_name(one)).name == file_name(one) and len(file_name(one).encode()) < 200
    assert (file_name(one) == file_name(other)) == (one == other)


def test_all_forms_hold_the_same_rows(tmp_path: Path) -> None:
    tasks = import_tasks()
    save_tasks(tmp_path / "t.jsonl", tasks)
    assert save_parquet(tmp_path / "t.parquet", tasks) == 130
    (tmp_path / "t.json").write_text(json.dumps([one.model_dump(mode="json") for one in tasks]))
    for name in ("t.jsonl", "t.parquet", "t.json"):
        assert load_tasks(tmp_path / name) == tasks


@settings(max_examples=40)
@given(
    shards=st.integers(1, 9), sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5), bad=st.sets(st.integers(0, 29))
)
def test_every_row_is_in_exactly_one_shard(
    tmp_path_factory: pytest.TempPathFactory, shards: int, sizes: list[int], bad: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    numbers = iter(range(100))
    paths = []
    for place, size in enumerate(sizes):
        rows = [
            {**good_row(number), **({"horizon": 0} if number in bad else {})}
            for number in (next(numbers) for _ in range(size))
        ]
        paths.append(folder / f"{place}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = read_tasks(*paths)
    tasks, problems = [], []
    places = []
    for shard in range(shards):
        found: list[TaskProblem] = []
        mine = list(iter_tasks(reversed(paths), shard=shard, shards=shards, on_problem=found.append))
        rows = len(mine) + sum(problem.row > 0 for problem in found)
        assert sum(sizes) // shards <= rows <= -(-sum(sizes) // shards)
        tasks += mine
        problems += found
        places.append([one.task_id for one in mine])
    assert sorted(one.task_id for one in tasks) == sorted(one.task_id for one in whole.tasks)
    assert sorted(map(str, problems)) == sorted(map(str, whole.problems))
    if not bad:
        assert [one.task_id for one in whole.tasks][::shards] == places[0]


def test_a_number_that_a_column_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="does not fit the columns"):
        save_parquet(tmp_path / "t.parquet", [task(0, difficulty=10**30)])


def test_one_id_in_two_shards_is_found(tmp_path: Path) -> None:
    save_tasks(tmp_path / "a.jsonl", [task(0), task(1)])
    save_tasks(tmp_path / "b.jsonl", [task(2), task(0)])
    paths = task_files("*.jsonl", root=tmp_path)
    assert [one.task_id for one in iter_tasks(paths, shard=0, shards=2)] == [task(0).task_id, task(2).task_id]
    with pytest.raises(TaskError, match=r"b\.jsonl:2: task_id: 'shop/kind-0/0' is already used by .*a\.jsonl:1"):
        list(iter_tasks(paths, shard=1, shards=2))
    with pytest.raises(TaskError, match="shard 2 of 2"):
        iter_tasks(paths, shard=2, shards=2)


def test_reading_holds_a_few_rows_and_the_ids(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = 4_000
    save_tasks(path, (task(number, instruction="x" * 2_000) for number in range(rows)))
    tracemalloc.start()
    assert sum(1 for _ in iter_tasks([path])) == rows
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 8_000_000
    assert peak < 2_000_000


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("ending", "written", "rows"),
    [
        ("jsonl", MARK + b"A\nB\n", "AB"),
        ("jsonl", MARK + b"A\r\n" + MARK + b"B\r\n\r\n", "AB"),  # two files of Windows, one after the other
        ("jsonl", b"A\nB\n\n", "AB"),
        ("jsonl", b"A\nB\n \n\t\n" + MARK, "AB"),
        ("json", MARK + b"[A, B]\n\n", "AB"),
        ("json", MARK + b"A", "A"),
        ("json", b"\n[A]", "A"),
    ],
)
def test_a_byte_order_mark_and_blank_lines_at_the_end_are_no_rows(
    tmp_path: Path, ending: str, written: bytes, rows: str
) -> None:
    for number, name in enumerate("AB"):
        written = written.replace(name.encode(), json.dumps(good_row(number)).encode())
    path = tmp_path / f"tasks.{ending}"
    path.write_bytes(written)
    assert load_tasks(path) == [task(number) for number in range(len(rows))]


def test_a_blank_line_between_rows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join([json.dumps(good_row(0)), "", json.dumps(good_row(1)), "", ""]))
    assert [(found.row, found.reason) for found in read_tasks(path).problems] == [
        (2, "is empty; expected a JSON object")
    ]
    path.write_text("\n\n")
    assert [found.reason for found in read_tasks(path).problems] == ["has no tasks; expected one JSON object per line"]
