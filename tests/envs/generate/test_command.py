"""The command, and the set that is shipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envs.bundled.generate import GeneratorSpec, generate
from envs.bundled.generate.__main__ import main
from envs.ends import bucket_of
from envs.tasks import load_tasks, task_files
from envs.types import Split

SHIPPED = Path(__file__).parents[3] / "datasets" / "tasks" / "bundled.jsonl"


def test_the_shipped_set_is_what_the_templates_make() -> None:
    splits = {Split.TRAIN: 3, Split.VALIDATION: 1, Split.HELD_OUT: 1}
    wanted = list(generate(GeneratorSpec(count=210, per_world=1, splits=splits)))
    assert load_tasks(SHIPPED) == wanted, "generate it again: docs/generated-tasks.md"
    assert {split for task in wanted for split in task.seeds} == set(splits)
    assert SHIPPED.stat().st_size <= 500_000


def test_a_file_a_tree_and_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "some.jsonl"
    assert main([str(path), "--count", "40", "--sites", "directory", "--check", "3"]) == 0
    assert load_tasks(path) == list(generate(GeneratorSpec(count=40, sites=("directory",))))
    assert "40 tasks in" in (said := capsys.readouterr().out) and "3 of them were solved" in said
    assert main([str(tmp_path / "tree"), "--count", "60", "--buckets", "1", "7+", "--splits", "held_out=1"]) == 0
    files = task_files("difficulty/**/*.jsonl", root=tmp_path / "tree")
    assert {file.parent.name for file in files} == {"1", "7+"}
    tasks = [task for file in files for task in load_tasks(file)]
    assert len(tasks) == 60 and {bucket_of(task.difficulty) for task in tasks} == {"1", "7+"}
    assert all(set(task.seeds) == {Split.HELD_OUT} for task in tasks)


def test_a_task_set_tells_its_splits_and_the_fix_for_an_empty_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> tuple[str, str]:
        assert main([str(tmp_path / "some.jsonl"), *arguments]) == 0
        out, err = capsys.readouterr()
        return out, err

    out, err = said("--count", "12")
    assert "by split: train 12, validation 0, held_out 0" in out
    assert err.startswith("warning: no task of split validation, held_out: a world belongs to one split as a whole")
    least = int(re.search(r"with per_world 1 each split gets some from a count of (\d+) on", err)[1])  # type: ignore[index]
    out, err = said("--count", str(least), "--per-world", "1")
    assert err == "" and " 0" not in out.splitlines()[-1]
    assert said("--count", str(least - 1), "--per-world", "1")[1].startswith("warning: no task of split ")
    # where as many tasks come of more worlds, that alone is the fix
    few = ("--count", "30", "--kinds", "shop-open")
    assert said(*few)[1].rstrip().endswith("; with per_world 1 each split gets some")
    assert said(*few, "--per-world", "1")[1] == ""
    assert said("--count", "12", "--splits", "train=1", "validation=0")[1] == "", "nobody asked for a task of it"
    assert "give the splits more even shares" in said("--count", "5", "--splits", "train=1", "validation=0.0001")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.jsonl", "--kinds", "shop-fly"], "there is no 'shop-fly'"),
        (["x.jsonl", "--count", "0"], "count"),
        (["x.jsonl", "--buckets", "9"], "--buckets: got '9'; input should be '1', '2-3', '4-6' or '7+'\n"),
        (["x.jsonl", "--buckets", "4-7"], "--buckets: got '4-7'; did you mean 4-6? input should be"),
        (["x.jsonl", "--splits", "trian=1"], "--splits: got 'trian'; did you mean train? input should be"),
        (["x.jsonl", "--per-world", "0"], "--per-world: got 0; input should be greater than or equal to 1\n"),
        (["x.jsonl", "--sites", "shp"], "sites: there is no 'shp'; did you mean shop?"),
        (["x.jsonl", "--splits", "train"], "'train' is no share"),
        (["x.txt"], "expected .jsonl, .parquet or a folder"),
    ],
)
def test_what_cannot_be_is_said(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = arguments
    assert main([str(tmp_path / name), *rest]) == 1
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
