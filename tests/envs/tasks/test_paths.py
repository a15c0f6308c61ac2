"""Public functions take a path as text and as an object, and one file where several may be
given."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from envs.sites import StaticSite
from envs.tasks import TaskIndex, iter_tasks, load_tasks, read_tasks, save_parquet, save_tasks, task_files, write_tree
from envs.tasks.imports import FORMATS, export_tasks, import_tasks

from .making import task

TASKS = [task(number) for number in range(3)]


@pytest.mark.parametrize("kind", [str, Path])
def test_task_files_are_written_and_read_by_text_and_by_path(tmp_path: Path, kind: type) -> None:
    file = kind(tmp_path / "tasks.jsonl")
    save_tasks(file, TASKS)
    assert load_tasks(file) == read_tasks(file).tasks == list(iter_tasks([file])) == list(iter_tasks(file)) == TASKS
    assert len(TaskIndex.open([file])) == len(TaskIndex.open(file)) == len(TASKS)
    assert task_files("*.jsonl", root=kind(tmp_path)) == [tmp_path / "tasks.jsonl"]
    columns = kind(tmp_path / "tasks.parquet")
    assert save_parquet(columns, TASKS) == len(TASKS) and load_tasks(columns) == TASKS
    assert sum(write_tree(kind(tmp_path / "tree"), TASKS).values()) == len(TASKS)


@pytest.mark.parametrize("kind", [str, Path])
def test_sets_of_others_are_read_by_text_and_by_path(tmp_path: Path, kind: type) -> None:
    (tmp_path / "set" / "miniwob").mkdir(parents=True)
    (tmp_path / "set" / "miniwob" / "click-test.html").touch()
    found = list(import_tasks("miniwob", kind(tmp_path / "set")))
    assert len(found) == 1
    export_tasks(kind(tmp_path / "back"), found)
    assert (tmp_path / "back").read_text() and FORMATS
    assert StaticSite("mine", kind(tmp_path)).name == "mine"


@pytest.mark.parametrize(
    "name", ["envs.tasks", "envs.tasks.imports", "envs.sites", "tasks_lib.report", "training.ledger.store"]
)
def test_no_public_function_asks_for_a_path_object(name: str) -> None:
    module = importlib.import_module(name)
    public = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
    made = [getattr(module, each) for each in public]
    functions = [each for each in made if inspect.isfunction(each)] + [
        each.__init__ for each in made if inspect.isclass(each)
    ]
    strict = [
        f"{function.__qualname__}({parameter})"
        for function in functions
        if inspect.isfunction(function) and function.__module__.startswith(name)
        for parameter, asked in inspect.get_annotations(function).items()
        if parameter != "return" and ("Path" in str(asked).replace("AnyPath", ""))
    ]
    assert strict == []
