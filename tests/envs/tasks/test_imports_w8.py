"""Task folders of W8: in, out, and what is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.rewards import from_w8
from envs.tasks import TaskProblem
from envs.tasks.imports import export_tasks, import_tasks
from envs.types import JudgeFact, TaskError, rubric_hash

W8_RUBRIC: dict[str, Any] = {
    "title": "Blue button",
    "fact_groups": [
        {
            "name": "dom",
            "weight": 2,
            "facts": [
                {"id": "there", "type": "dom_element_present", "selector": "#buy"},
                {"id": "blue", "type": "dom_element_style_property", "selector": "#buy", "property": "color", "expected_value": "blue"},
            ],
        },
        {"name": "like", "facts": [{"id": "text", "type": "domdiff_subscore", "key": "textSimilarity"}]},
    ],
    "pass_threshold": 0.9,
    "pass_requirements": {"required_fact_ids": ["there"], "domdiff_floors": {"textSimilarity": 0.5}},
}  # fmt: skip


def w8_tree(folder: Path) -> Path:
    for place, about, said in (
        (
            "2-3/shop/one",
            {"start_url": "https://shop.example/a?b=1", "reference": "/done?x=1", "note": "kept"},
            "Make the button blue.\n",
        ),
        (
            "7+/two",
            {
                "start_url": "http://shop.example:81/",
                "reference": "http://shop.example:81/r",
                "instruction": "Zwei — größer",
            },
            None,
        ),
        ("three", {"start_url": "https://shop.example/", "reference": "/r"}, None),
    ):
        at = folder / place
        at.mkdir(parents=True)
        (at / "rubric.json").write_text(json.dumps(W8_RUBRIC))
        (at / "task.json").write_text(json.dumps(about))
        if said:
            (at / "instruction.md").write_text(said)
    return folder


def test_folders_of_w8_there_and_back(tmp_path: Path) -> None:
    by_id = {item.task.task_id: item for item in import_tasks("w8", w8_tree(tmp_path / "in"))}
    first = by_id["w8/2-3/shop/one"].task
    assert (first.site, first.path, first.kind, first.instruction) == (
        "shop.example",
        "/a?b=1",
        "shop",
        "Make the button blue.",
    )
    assert (first.difficulty, first.horizon) == (3, 10) and first.rubric == from_w8(W8_RUBRIC)
    assert first.rubric_hash == rubric_hash(first.rubric)
    assert by_id["w8/7+/two"].task.kind == "w8" and by_id["w8/7+/two"].task.instruction == "Zwei — größer"
    assert by_id["w8/three"].task.instruction is None
    assert [by_id[f"w8/{each}"].task.reference for each in ("2-3/shop/one", "7+/two", "three")] == [
        "/done?x=1",
        "/r",
        "/r",
    ]
    export_tasks(tmp_path / "out", by_id.values())
    for file in (tmp_path / "in").rglob("*.json"):
        assert json.loads((tmp_path / "out" / file.relative_to(tmp_path / "in")).read_text()) == json.loads(
            file.read_text()
        )
    assert (tmp_path / "out/2-3/shop/one/instruction.md").read_text() == "Make the button blue.\n"

    changed = first.model_copy(
        update={
            "instruction": "Make it red.",
            "path": "/c",
            "reference": "/d",
            "rubric": first.rubric.model_copy(update={"pass_threshold": 0.5}),
        }
    )
    export_tasks(tmp_path / "changed", [by_id["w8/2-3/shop/one"].model_copy(update={"task": changed})])
    (again,) = import_tasks("w8", tmp_path / "changed")
    assert again.task.model_copy(update={"rubric_hash": ""}) == changed.model_copy(update={"rubric_hash": ""})
    judged = first.rubric.model_copy(update={"gates": (JudgeFact(id="x", description="y"),)})
    with pytest.raises(TaskError, match="gate 'x' cannot be written"):
        export_tasks(
            tmp_path / "no",
            [by_id["w8/three"].model_copy(update={"task": first.model_copy(update={"rubric": judged})})],
        )


def test_bad_folders_of_w8_are_problems_and_the_good_ones_stay(tmp_path: Path) -> None:
    tree = w8_tree(tmp_path / "in")
    (tree / "three/rubric.json").write_text("{")
    (tree / "7+/two/task.json").unlink()
    bad = tree / "bad"
    bad.mkdir()
    (bad / "task.json").write_text('{"start_url": "ftp://x"}')
    (bad / "rubric.json").write_text(json.dumps(W8_RUBRIC))
    worse = tree / "worse"
    worse.mkdir()
    (worse / "task.json").write_text('{"start_url": "https://x.example"}')
    (worse / "rubric.json").write_text(json.dumps(W8_RUBRIC | {"pass_threshold": 3}))
    problems: list[TaskProblem] = []
    (good,) = import_tasks("w8", tree, on_problem=problems.append)
    assert good.task.task_id == "w8/2-3/shop/one"
    assert sorted(problem.field for problem in problems) == [
        "pass_threshold",
        "rubric.json.line",
        "start_url",
        "start_url",
    ]
    with pytest.raises(TaskError, match="expected folders with a rubric"):
        list(import_tasks("w8", tmp_path / "nothing"))


LIKE, FLOOR = "fact_groups", "pass_requirements"


@pytest.mark.parametrize(
    ("about", "left_out", "reason"),
    [
        ({}, (), "is missing, and the rubric asks how like it the last page is"),
        ({}, (LIKE,), "is missing"),
        ({}, (FLOOR,), "is missing"),
        ({}, (LIKE, FLOOR), None),
        ({"reference": "https://other.example/r"}, (), "is not on shop.example"),
        ({"reference": "//other.example/r"}, (), "no http or https address"),
        ({"reference": "https://shop.example/r"}, (), None),
        ({"reference": 7}, (), "expected a path"),
        ({"reference": "ftp://shop.example/r"}, (), "no http or https address"),
    ],
)
def test_a_rubric_that_asks_for_a_similarity_needs_a_reference(
    tmp_path: Path, about: dict[str, Any], left_out: tuple[str, ...], reason: str | None
) -> None:
    rubric = dict(W8_RUBRIC)
    if LIKE in left_out:
        rubric[LIKE] = rubric[LIKE][:1]
    if FLOOR in left_out:
        rubric[FLOOR] = {"required_fact_ids": ["there"]}
    (tmp_path / "one").mkdir()
    (tmp_path / "one/rubric.json").write_text(json.dumps(rubric))
    (tmp_path / "one/task.json").write_text(json.dumps({"start_url": "https://shop.example/", **about}))
    problems: list[TaskProblem] = []
    found = list(import_tasks("w8", tmp_path, on_problem=problems.append))
    if reason is None:
        assert len(found) == 1 and not problems
    else:
        assert not found and [problem.field for problem in problems] == ["reference"]
        assert reason in problems[0].reason


def test_keys_that_are_not_known_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rubric = {"fact_groups": [{"name": "g", "facts": [{"id": "a", "type": "dom_element_present", "selector": "a"}]}]}
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "rubric.json").write_text(json.dumps(rubric | {"title": "x", "expected_answer": "7"}))
        (tmp_path / name / "task.json").write_text(json.dumps({"start_url": "https://x.example/"}))
    assert len(list(import_tasks("w8", tmp_path))) == 2
    assert [message.count("title") for message in caplog.messages] == [1, 0]
    assert "expected_answer may say what is right" in caplog.messages[1]


def test_a_folder_of_a_windows_editor_is_read(tmp_path: Path) -> None:
    """Its files begin with a byte order mark."""
    w8_tree(tmp_path)
    plain = [item.task for item in import_tasks("w8", tmp_path)]
    for file in tmp_path.rglob("*.*"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert [item.task for item in import_tasks("w8", tmp_path)] == plain and plain
