"""The index: rows come back as they were, and stratified draws have every stratum's share."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.ends import Bucket, bucket_of
from envs.tasks import TaskIndex, TaskProblem, save_tasks
from envs.types import SeedRange, Split, TaskError, WebTask
from tests.envs.tasks.making import task

TASKS = [task(number) for number in range(300)]
INDEX = TaskIndex.build(TASKS)


def strata(tasks: list[WebTask]) -> Counter[tuple[str, str]]:
    return Counter((bucket_of(one.difficulty).value, one.site) for one in tasks)


def test_rows_come_back_as_they_were() -> None:
    assert len(INDEX) == 300 and list(INDEX) == TASKS
    assert INDEX.take([299, 0, 17, 17]) == [TASKS[299], TASKS[0], TASKS[17], TASKS[17]]
    assert INDEX[150] == TASKS[150]
    assert [INDEX.row_of(one.task_id) for one in TASKS] == list(range(300))
    assert pickle.loads(pickle.dumps(INDEX))[42] == TASKS[42]
    for row in (300, -1):
        with pytest.raises(IndexError, match=f"row {row} of an index of 300"):
            INDEX[row]
    with pytest.raises(TaskError, match="no task 'nobody'"):
        INDEX.row_of("nobody")


def test_rows_are_found_by_site_bucket_and_kind() -> None:
    expected = [
        row for row, one in enumerate(TASKS) if one.site == "mail" and one.difficulty >= 7 and one.kind == "kind-2"
    ]
    assert expected and INDEX.rows(site="mail", bucket=Bucket.MANY, kind="kind-2").tolist() == expected
    assert INDEX.rows(site="nowhere").tolist() == []
    assert len(INDEX.rows()) == 300


def test_a_task_harder_than_the_column_holds_keeps_its_difficulty() -> None:
    index = TaskIndex.build([task(0, difficulty=10**12)])
    assert index[0].difficulty == 10**12 and index.rows(bucket=Bucket.MANY).tolist() == [0]


def test_files_are_opened_with_their_problems(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    save_tasks(path, TASKS[:5])
    path.write_text(path.read_text() + "{\n")
    problems: list[TaskProblem] = []
    assert len(TaskIndex.open([path], problems.append)) == 5 and [problem.row for problem in problems] == [6]
    with pytest.raises(TaskError, match=r"t\.jsonl:6: line: is no JSON"):
        TaskIndex.open([path])
    with pytest.raises(TaskError, match="same id"):
        TaskIndex.build([TASKS[0], TASKS[0]])
    assert len(TaskIndex.build([])) == 0


@settings(max_examples=60)
@given(count=st.integers(0, 300), seed=st.integers(0, 2**32))
def test_every_stratum_has_its_share_to_within_one(count: int, seed: int) -> None:
    rows = INDEX.stratified(count, seed)
    assert len(rows) == len(set(rows.tolist())) == count
    drawn, whole = strata(INDEX.take(rows)), strata(TASKS)
    assert set(drawn) <= set(whole)
    for stratum, size in whole.items():
        exact = count * size / 300
        assert math.floor(exact + 1e-9) <= drawn[stratum] <= math.ceil(exact - 1e-9)
    assert INDEX.stratified(count, seed).tolist() == rows.tolist()


def test_every_row_has_the_same_chance() -> None:
    tasks = [task(n, site="big" if n < 60 else f"small-{n}", difficulty=1) for n in range(80)]
    index = TaskIndex.build(tasks)
    counts = np.zeros(80)
    for seed in range(1_500):
        counts[index.stratified(20, seed)] += 1
    # 1,500 draws with chance 1/4: mean 375, deviation sqrt(1500 * 1/4 * 3/4) = 16.8; 5 of them.
    assert counts.sum() == 30_000
    assert np.abs(counts - 375).max() < 5 * 16.8


def test_the_first_stratum_has_no_advantage() -> None:
    index = TaskIndex.build([task(number, site=site, difficulty=1) for number, site in enumerate("aabc")])
    counts = np.bincount([index.stratified(1, seed)[0] for seed in range(1_600)])
    # Each of the four has 400 of 1,600; deviation sqrt(1600 * 1/4 * 3/4) = 17.3; 5 of them.
    assert np.abs(counts - 400).max() < 5 * 17.4


def test_too_many_are_refused() -> None:
    with pytest.raises(TaskError, match="301 distinct tasks are wanted of an index of 300"):
        INDEX.stratified(301, 0)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=80))
def test_an_index_of_some_rows_is_those_tasks(rows: list[int]) -> None:
    rows = list(dict.fromkeys(rows))
    tasks = [task(number) for number in range(100)]
    some = TaskIndex.build(tasks).only(np.array(rows))
    fresh = TaskIndex.build([tasks[row] for row in rows])
    assert list(some) == list(fresh) == some.take(range(len(rows)))
    assert some.fingerprint == fresh.fingerprint
    for name, codes in (("sites", "site_code"), ("kinds", "kind_code")):
        assert [getattr(some, name)[code] for code in getattr(some, codes)] == [
            getattr(fresh, name)[code] for code in getattr(fresh, codes)
        ]
        assert set(getattr(some, name)) == set(getattr(fresh, name))
    assert some.row_of(tasks[rows[-1]].task_id) == len(rows) - 1
    again = some.only(np.arange(len(rows))[::-1])
    assert [one.task_id for one in again] == [tasks[row].task_id for row in reversed(rows)]


def test_seeds_are_counted_by_split() -> None:
    index = TaskIndex.build([task(0), task(1, seeds={Split.DEMO: SeedRange(start=3, stop=2**40)})])
    assert index.seeds_of(Split.TRAIN).tolist() == [10, 0]
    assert index.seeds_of(Split.DEMO).tolist() == [0, 2**31 - 1]
