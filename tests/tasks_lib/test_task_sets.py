"""Task sets of a run: found by file, folder and glob; frozen whole or by hash."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from envs.rewards import read_rubric
from envs.tasks import TreeLayout, save_tasks, write_tree
from envs.types import ConfigError, SeedRange, Split, StorageError, TaskError, WebTask, rubric_hash
from tasks_lib.config import TasksConfig
from tasks_lib.folder.task_sets import freeze_tasks, open_tasks, task_paths
from training.ledger.store import RunStore

RUBRIC = read_rubric({"fact_groups": [{"name": "g", "facts": [{"id": "u", "type": "url", "url": "/done"}]}]})


def make_task(number: int) -> WebTask:
    return WebTask(
        task_id=f"shop/{number}",
        site="shop",
        kind=f"kind-{number % 3}",
        path="/",
        difficulty=1 + number % 8,
        horizon=3,
        seeds={Split.TRAIN: SeedRange(start=0, stop=1)},
        rubric=RUBRIC if number % 2 else None,
    )


TASKS = [make_task(number) for number in range(40)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A set as a tree of one file a task, with a file beside them that is none."""
    write_tree(tmp_path / "set", TASKS, TreeLayout.JSON)
    (tmp_path / "set" / "README.md").write_text("Tasks.")
    return tmp_path / "set"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty tasks are many."""
    monkeypatch.setattr("tasks_lib.folder.task_sets.COPIED", 39)


def test_a_file_a_folder_and_a_glob_name_tasks(tree: Path, tmp_path: Path) -> None:
    assert {task.task_id for task in open_tasks(TasksConfig(file=str(tree)))} == {task.task_id for task in TASKS}
    easy = open_tasks(TasksConfig(file=f"{tree}/difficulty/[1-3]/**/*.json"))
    assert {task.task_id for task in easy} == {task.task_id for task in TASKS if task.difficulty == 1}
    save_tasks(tmp_path / "tasks [1].jsonl", TASKS)  # a name that looks like a glob
    assert list(open_tasks(TasksConfig(file=str(tmp_path / "tasks [1].jsonl")))) == TASKS
    assert [path.name for path in task_paths("datasets/tasks/miniwob.jsonl")] == ["miniwob.jsonl"]
    chosen = open_tasks(TasksConfig(file=str(tree), kinds=["kind-2"]))
    assert chosen.kinds == ["kind-2"] and len(chosen) == 13


def test_what_names_no_tasks_is_said(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for file, message in (
        (f"{tree}/difficulty/9/*.json", "no task file matches"),
        (str(tmp_path / "empty"), "has no task files"),
        (str(tmp_path / "nothing.jsonl"), "nothing.jsonl.*cannot be read"),
    ):
        with pytest.raises(TaskError, match=message):
            open_tasks(TasksConfig(file=file))
        with pytest.raises(TaskError, match=message):
            freeze_tasks(TasksConfig(file=file), RunStore(tmp_path / "run"))
    with pytest.raises(
        TaskError, match=r"tasks\.kinds: no task of kind kind-7, kind-8 in .*; did you mean kind-1, kind-2"
    ):
        open_tasks(TasksConfig(file=str(tree), kinds=["kind-8", "kind-1", "kind-7"]))
    with pytest.raises(TaskError, match=r"no task of kind zzz in .*; there are kind-.*; tasks\.kinds=\[\] takes all"):
        open_tasks(TasksConfig(file=str(tree), kinds=["zzz"]))


def test_a_small_set_is_copied_with_the_hashes_of_its_rubrics(tree: Path, tmp_path: Path) -> None:
    store, config = RunStore(tmp_path / "run"), TasksConfig(file=str(tree))
    frozen = list(freeze_tasks(config, store))
    assert store.tasks_path.exists() and not store.task_set_path.exists()
    assert {task.rubric_hash for task in frozen} == {"", rubric_hash(RUBRIC)}
    shutil.rmtree(tree)
    assert list(freeze_tasks(config, store)) == frozen


def test_of_a_large_set_only_the_hashes_are_written(tree: Path, tmp_path: Path, large: None) -> None:
    store, config = RunStore(tmp_path / "run"), TasksConfig(file=str(tree))
    frozen = freeze_tasks(config, store)
    assert not store.tasks_path.exists()
    written = orjson.loads(store.task_set_path.read_bytes())
    assert written["tasks"] == 40 and sum(folder["files"] for folder in written["folders"].values()) == 40
    again = freeze_tasks(config, store)
    assert again.fingerprint == frozen.fingerprint and list(again) == list(frozen)


@pytest.mark.parametrize("change", ["rubric", "added", "removed", "renamed"])
def test_a_large_set_that_changed_is_refused(change: str, tree: Path, tmp_path: Path, large: None) -> None:
    store, config = RunStore(tmp_path / "run"), TasksConfig(file=str(tree))
    freeze_tasks(config, store)
    path = tree / "difficulty" / "2-3" / "shop" / "shop%2F1.json"
    match change:
        case "rubric":
            path.write_text(path.read_text().replace("/done", "/home"))
        case "added":
            save_tasks(path.with_name("more.json"), [make_task(41)])
        case "removed":
            path.unlink()
        case "renamed":
            path.rename(path.with_name("other.json"))
    with pytest.raises(ConfigError, match=r"the task files in .*/difficulty/2-3/shop are not what they were"):
        freeze_tasks(config, store)


def test_a_frozen_set_that_cannot_be_read_is_named(tree: Path, tmp_path: Path, large: None) -> None:
    store, config = RunStore(tmp_path / "run"), TasksConfig(file=str(tree))
    freeze_tasks(config, store)
    store.task_set_path.write_text("{}")
    with pytest.raises(StorageError, match=r"tasks\.json is no frozen task set"):
        freeze_tasks(config, store)
