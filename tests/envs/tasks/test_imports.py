"""Sets of others: samples of their true form, written by us, go in and come back the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.rewards import from_webgym
from envs.rewards.formats import asks_only_reference
from envs.tasks import TaskProblem, load_tasks, save_tasks
from envs.tasks.assembly.finish import read_reference_answer
from envs.tasks.imports import (
    FORMATS,
    ImportedTask,
    export_tasks,
    import_tasks,
    split_address,
)
from envs.tasks.rows import read_row
from envs.types import Split, TaskError, rubric_hash

from .foreign_rows import MIND2WEB, SAMPLES, WEBARENA, WEBGYM


def written(path: Path, rows: list[Any]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(rows))
    return path


def read_back(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line] if path.suffix == ".jsonl" else json.loads(text)


@pytest.mark.parametrize("ending", ["json", "jsonl"])
@pytest.mark.parametrize("source", SAMPLES)
def test_what_is_imported_is_exported_as_it_was(tmp_path: Path, source: str, ending: str) -> None:
    items = list(import_tasks(source, written(tmp_path / f"in.{ending}", SAMPLES[source])))
    assert [item.task.task_id.partition("/")[0] for item in items] == [source] * len(SAMPLES[source])
    export_tasks(tmp_path / f"out.{ending}", items)
    assert read_back(tmp_path / f"out.{ending}") == SAMPLES[source]
    # The tasks are good rows of our own files.
    save_tasks(tmp_path / "ours.jsonl", [item.task for item in items])
    assert load_tasks(tmp_path / "ours.jsonl") == [item.task for item in items]


def places(source: str, tmp_path: Path) -> list[tuple[Any, ...]]:
    items = import_tasks(source, written(tmp_path / "in.json", SAMPLES[source]))
    return [
        (one.task_id, one.site, one.path, one.kind, one.difficulty, one.horizon, *one.seeds)
        for one in (item.task for item in items)
    ]


def test_the_fields_of_webarena(tmp_path: Path) -> None:
    assert places("webarena", tmp_path) == [
        ("webarena/7", "shopping_admin", "/", "template-279", 2, 30, "held_out"),
        ("webarena/12", "gitlab", "/explore?sort=stars", "template-101", 4, 30, "held_out"),  # address + 2 contents + 1
        ("webarena/3", "localhost:3000", "/search?q=a#map=5/1/2", "template-5", 1, 30, "held_out"),
    ]


def test_the_fields_of_webarena_verified(tmp_path: Path) -> None:
    assert places("webarena-verified", tmp_path) == [
        ("webarena-verified/9001", "gitlab", "/explore", "webarena-verified-77", 2, 30, "held_out"),
        ("webarena-verified/9002", "shopping", "/", "webarena-verified-78", 1, 30, "held_out"),
    ]
    first, second = (item.task.instruction for item in import_tasks("webarena-verified", tmp_path / "in.json"))
    assert first is not None and first.startswith("Open the page of my notes. Answer with a JSON object: task_type")
    assert "retrieved_data (null)" in first
    assert second is not None and second.startswith("Get the names of the lamps. Answer")
    assert 'retrieved_data ({"items": {"type": "string"}, "type": "array"})' in second


def test_the_fields_of_live_sets(tmp_path: Path) -> None:
    webgym = places("webgym", tmp_path)
    assert webgym[0] == ("webgym/t-0001", "www.trails.example", "/", "Hiking", 4, 20, "train")
    assert webgym[1][1:] == ("cafe.example", "/menu?lang=en", "Food", 2, 10, "train")
    assert len(webgym[1][0]) == len("webgym/") + 16  # named by a digest
    assert webgym[2] == ("webgym/12", "cafe.example", "/", "Cafés", 5, 20, "train")
    assert places("mind2web", tmp_path) == [
        (f"mind2web/{MIND2WEB[0]['annotation_id']}", "traveller", "/", "Car rental", 4, 20, "train")
    ]
    assert places("online-mind2web", tmp_path) == [
        ("online-mind2web/id-easy", "www.shop.example", "/", "easy", 1, 10, "held_out"),
        ("online-mind2web/id-medium", "www.shop.example", "/", "medium", 4, 20, "held_out"),
        ("online-mind2web/id-hard", "www.shop.example", "/", "hard", 7, 30, "held_out"),
    ]
    assert places("webvoyager", tmp_path) == [
        ("webvoyager/Recipes--0", "www.recipes.example", "/", "Recipes", 1, 15, "held_out"),
        ("webvoyager/Flights--3", "www.search.example", "/travel/flights/", "Flights", 1, 15, "held_out"),
    ]


def test_single_files_of_webarena(tmp_path: Path) -> None:
    items = list(import_tasks("webarena", written(tmp_path / "all.json", WEBARENA)))
    export_tasks(tmp_path / "configs", items)
    assert sorted(path.name for path in (tmp_path / "configs").iterdir()) == ["12.json", "3.json", "7.json"]
    assert json.loads((tmp_path / "configs" / "12.json").read_text()) == WEBARENA[1]
    again = list(import_tasks("webarena", tmp_path / "configs"))
    assert [item.task.task_id for item in again] == ["webarena/3", "webarena/7", "webarena/12"]
    assert list(import_tasks("webarena", tmp_path / "configs" / "12.json")) == [items[1]]


def changed(item: ImportedTask, **changes: Any) -> ImportedTask:
    return item.model_copy(update={"task": item.task.model_copy(update=changes)})


def test_what_was_changed_in_the_task_is_changed_in_the_row(tmp_path: Path) -> None:
    items = list(import_tasks("webarena", written(tmp_path / "in.json", WEBARENA)))
    assert list(import_tasks("webarena", tmp_path / "in.json", judged=True)) == items, "they keep their evaluators"
    items[1] = changed(items[1], path="/other", instruction="Do another thing")
    items[2] = changed(items[2], site="map.example", path="/")
    export_tasks(tmp_path / "out.json", items)
    rows = read_back(tmp_path / "out.json")
    assert rows[0] == WEBARENA[0]
    other = {"start_url": "__GITLAB__/other |AND| __REDDIT__/f/tools", "intent": "Do another thing"}
    assert rows[1] == {**WEBARENA[1], **other}
    assert rows[2] == {**WEBARENA[2], "start_url": "https://map.example/"}


def test_a_split_may_be_named(tmp_path: Path) -> None:
    items = list(import_tasks("webgym", written(tmp_path / "test.jsonl", WEBGYM), split=Split.VALIDATION))
    assert {split for item in items for split in item.task.seeds} == {Split.VALIDATION}


@pytest.mark.parametrize(
    ("source", "change", "field"),
    [
        ("webarena", {"task_id": "7"}, "task_id"),
        ("webarena", {"sites": []}, "sites"),
        ("webarena", {"intent": ""}, "intent"),
        ("webarena", {"start_url": "ftp://x.example"}, "start_url"),
        ("webarena", {"eval": {"eval_types": []}}, "eval.eval_types"),
        ("webgym", {"website": ""}, "website"),
        ("webgym", {"website": "https://exa mple/"}, "website"),
        ("webgym", {"website": "https://x.example:99999/"}, "website"),
        ("webgym", {"difficulty": 0}, "difficulty"),
        ("webgym", {"difficulty": "extreme"}, "difficulty"),
        ("webgym", {"difficulty": 0.5}, "difficulty"),
        ("webgym", {"difficulty": True}, "difficulty"),
        ("webgym", {"evaluator_reference": [{"facts": "one"}]}, "evaluator_reference.0.WebGymFactGroup.facts"),
        ("webgym", {"definite_answer": ["a", "b"]}, "definite_answer"),
        ("webgym", {"definite_answer": True, "reference_answer": None}, "definite_answer"),
        ("webgym", {"definite_answer": "a", "reference_answer": "b"}, "definite_answer"),
        ("mind2web", {"confirmed_task": None}, "confirmed_task"),
        ("mind2web", {"website": " "}, "site"),
        ("online-mind2web", {"level": "extreme"}, "level"),
        ("online-mind2web", {"reference_length": "3"}, "reference_length"),
        ("webvoyager", {"ques": 4}, "ques"),
        ("webvoyager", {"web": "about:blank"}, "web"),
    ],
)
@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_bad_rows_are_named_and_the_good_ones_kept(
    tmp_path: Path, source: str, change: dict[str, Any], field: str, ending: str
) -> None:
    rows = SAMPLES[source]
    path = written(tmp_path / f"in.{ending}", [{**rows[0], **change}, *rows, rows[0]])
    problems: list[TaskProblem] = []
    items = list(import_tasks(source, path, on_problem=problems.append))
    assert len(items) == len(rows)
    assert {problem.row for problem in problems} == {1, len(rows) + 2}
    assert field in {problem.field for problem in problems if problem.row == 1}
    assert problems[-1].field == "task_id" and "is already used by line 2" in problems[-1].reason
    with pytest.raises(TaskError, match=f":1: {problems[0].field}: "):
        list(import_tasks(source, path))


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(TaskError, match="cannot be read"):
            list(import_tasks("webgym", path))
    with pytest.raises(TaskError, match=r"no task format 'gaia'; there are miniwob, webarena"):
        import_tasks("gaia", tmp_path)
    with pytest.raises(TaskError, match="these are of none"):
        export_tasks(tmp_path / "x.json", [])


def pages(folder: Path) -> Path:
    folder.mkdir()
    for number in (2, 10, 1):
        (folder / f"{number}.html").write_text(f"<h1>{number}</h1>")
        (folder / f"{number}.png").write_bytes(bytes([137, number]))
    (folder / "rick.jpg").write_bytes(b"asset")
    return folder


def test_design2code_folders(tmp_path: Path) -> None:
    folder = pages(tmp_path / "set")
    items = list(import_tasks("design2code", folder))
    assert [(item.task.task_id, item.task.path) for item in items] == [
        ("design2code/1", "/1.png"),
        ("design2code/2", "/2.png"),
        ("design2code/10", "/10.png"),
    ]
    assert list(import_tasks("design2code", folder, judged=True)) == items, "graded by what they look like"
    export_tasks(tmp_path / "out", items)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name != "rick.jpg"
    }
    (folder / "2.html").write_text("<h1>changed</h1>")
    with pytest.raises(TaskError, match=r"2\.html is gone or has changed since design2code/2 was imported"):
        export_tasks(tmp_path / "out", items)


def test_a_page_without_a_screenshot_is_a_problem(tmp_path: Path) -> None:
    folder = pages(tmp_path / "set")
    (folder / "2.png").unlink()
    (folder / "10.html").unlink()
    problems: list[TaskProblem] = []
    assert [item.task.task_id for item in import_tasks("design2code", folder, on_problem=problems.append)] == [
        "design2code/1"
    ]
    assert [problem.field for problem in problems] == ["2.png", "10.html"]
    with pytest.raises(TaskError, match="has no tasks"):
        list(import_tasks("design2code", tmp_path / "nothing"))


def test_all_pages_of_miniwob(tmp_path: Path) -> None:
    from envs.sites.miniwob import html_folder

    items = list(import_tasks("miniwob", html_folder()))
    assert len(items) == 130
    export_tasks(tmp_path / "pages.txt", items)
    listed = (tmp_path / "pages.txt").read_text().splitlines()
    assert sorted(listed) == sorted(f"miniwob/{path.name}" for path in (html_folder() / "miniwob").glob("*.html"))
    with pytest.raises(TaskError, match="leave the split demo out"):
        list(import_tasks("miniwob", html_folder(), split=Split.DEMO))


@settings(max_examples=40)
@given(
    scheme=st.sampled_from(["http://", "https://", ""]),
    login=st.sampled_from(["", "me:secret@"]),
    host=st.from_regex(r"[a-z]{1,8}(\.[a-z]{2,5}){0,2}", fullmatch=True),
    port=st.one_of(st.none(), st.integers(1, 65535)),
    path=st.from_regex(r"(/[a-z0-9%.]{0,6}){0,3}", fullmatch=True),
    rest=st.sampled_from(["", "?q=a/b&c=http://x", "#part?x", "?a=1#b"]),
)
def test_the_place_of_an_address(scheme: str, login: str, host: str, port: int | None, path: str, rest: str) -> None:
    site = host if port is None else f"{host}:{port}"
    expected = path + rest if path else f"/{rest}"
    assert split_address(f"{scheme}{login}{site}{path}{rest}") == (site, expected)


def test_all_formats_of_the_list() -> None:
    assert set(FORMATS) == {*SAMPLES, "miniwob", "design2code", "w8"}


def test_tasks_of_webgym_are_graded_by_their_facts(tmp_path: Path) -> None:
    trails, menu, answer = (item.task for item in import_tasks("webgym", written(tmp_path / "rows.jsonl", WEBGYM)))
    assert trails.rubric == from_webgym(WEBGYM[0]) and trails.rubric_hash == rubric_hash(trails.rubric)
    assert [fact.id for fact in trails.rubric.facts()] == ["1.1", "1.2", "2.1", "2.2", "grounded"]
    assert menu.rubric is not None and [group.name for group in menu.rubric.fact_groups] == ["1", "reference"]
    assert "menu" in [*menu.rubric.facts()][1].description and menu.difficulty == 2
    # "No facts here" has a right answer: it is graded by that, and nothing may be made up.
    assert answer.rubric is not None and [group.name for group in answer.rubric.fact_groups] == ["reference"]
    assert [fact.id for fact in answer.rubric.facts()] == ["reference.1", "grounded"] and answer.difficulty == 5
    assert answer.rubric.pass_threshold == 1.0 and answer.rubric_hash == rubric_hash(answer.rubric)
    assert asks_only_reference(answer.rubric) and not asks_only_reference(menu.rubric), (
        "a writer may still say what else"
    )
    (tmp_path / "rows.jsonl").write_text(json.dumps(WEBGYM[2] | {"reference_answer": None}) + "\n")
    (none,) = (item.task for item in import_tasks("webgym", tmp_path / "rows.jsonl"))
    assert (none.rubric, none.rubric_hash, none.difficulty) == (None, "", 5)
    assert all(read_row(task.model_dump_json())[0] == task for task in (trails, menu, answer, none))


@pytest.mark.parametrize("column", ["definite_answer", "reference_answer"])
@pytest.mark.parametrize("answer", [" 4.50 ", 4.5, 7, None, "", float("nan")])
def test_the_right_answer_of_webgym_is_graded_whatever_its_reader_calls_it(
    tmp_path: Path, column: str, answer: Any
) -> None:
    """Counted in the rows: each that has an answer is graded by it, and no other."""
    plain = {name: value for name, value in WEBGYM[0].items() if name != "reference_answer"}
    rows = [plain | {"task_id": 1, column: answer}, plain | {"task_id": 2, "evaluator_reference": [], column: answer}]
    found = [item.task for item in import_tasks("webgym", written(tmp_path / "rows.jsonl", rows))]
    said = "" if answer is None or answer != answer else str(answer).strip()
    for task, facts in zip(found, (4, 0), strict=True):
        texts = (
            []
            if task.rubric is None
            else [fact.description for group in task.rubric.fact_groups for fact in group.facts]
        )
        assert len(texts) == facts + bool(said) and sum(text.endswith(f": {said}") for text in texts) == bool(said)
        assert task.difficulty == (len(texts) if facts else 4) and read_reference_answer("webgym", rows[0]) == (
            said or None
        )
    both = plain | {"definite_answer": "x", "reference_answer": " x"}
    assert read_reference_answer("webgym", both) == "x"


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ("The menu is shown", ["The menu is shown"]),
        (["a", "b"], ["a", "b"]),
        ([{"description": "a", "difficulty": 1}, {"description": "b", "difficulty": 1}], ["a", "b"]),
        ([{"id": 7, "description": "a"}, {"id": 8, "description": "g", "facts": ["b", "c"]}], ["a", "b", "c"]),
        ([{"facts": ["a"]}, "b"], ["a", "b"]),
        ('[{"id": 7, "description": "g", "facts": ["a", "b"]}]', ["a", "b"]),  # as tables keep it
        ('\n[{"description": "a"}, {"description": "b"}]\n', ["a", "b"]),
        ('{"id": 7, "description": "g", "facts": ["a", "b"]}', ["a", "b"]),
        ('["a", "b"]', ["a", "b"]),
        (['{"id": 1, "description": "", "facts": ["a"]}', '{"id": 2, "description": "b"}'], ["a", "b"]),
        ("[Menu] is shown", ["[Menu] is shown"]),
        ("{} is shown", ["{} is shown"]),
        ("[]", []),
        ("", []),
        (None, []),
    ],
)
def test_all_forms_of_facts_that_webgyms_reader_takes(tmp_path: Path, given: Any, facts: list[str]) -> None:
    row = {"task_name": "t", "website": "cafe.example", "difficulty": 5, "evaluator_reference": given}
    (item,) = import_tasks("webgym", written(tmp_path / "rows.jsonl", [row]))
    rubric = item.task.rubric
    assert [each.description for group in (rubric.fact_groups if rubric else ()) for each in group.facts] == facts
    assert item.task.difficulty == (len(facts) or 5)
    export_tasks(tmp_path / "out.jsonl", [item])
    assert read_back(tmp_path / "out.jsonl") == [row]


@pytest.mark.parametrize(
    ("given", "difficulty"), [("easy", 1), ("Medium", 4), ("hard", 7), (3.0, 3), (3.9, 3), ("6", 6), (None, 1)]
)
def test_difficulties_of_webgym_may_be_words_and_floats(tmp_path: Path, given: Any, difficulty: int) -> None:
    row = {"task_name": "t", "website": "cafe.example", "difficulty": given}
    (item,) = import_tasks("webgym", written(tmp_path / "rows.jsonl", [row]))
    assert item.task.difficulty == difficulty


def test_levels_of_mind2web_by_the_number_of_actions(tmp_path: Path) -> None:
    """Online-Mind2Web's: up to 5 easy, up to 10 medium, more hard."""
    counts = (0, 5, 6, 10, 11)
    rows = [MIND2WEB[0] | {"annotation_id": str(count), "action_reprs": ["x"] * count} for count in counts]
    found = import_tasks("mind2web", written(tmp_path / "rows.json", rows))
    assert [item.task.difficulty for item in found] == [1, 1, 4, 4, 7]


@pytest.mark.parametrize("source", SAMPLES)
def test_no_column_is_dropped_without_a_word(tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each unknown column is named once; one that may say what is right in a line of its own, with
    what to do."""
    known = written(tmp_path / "known.json", SAMPLES[source])
    list(import_tasks(source, known))
    assert caplog.messages == []
    more = {"colour": "red", "Final answer": "42", "empty": None}
    rows = [row | more for row in SAMPLES[source]]
    if source == "webarena":
        rows = [row | {"eval": row["eval"] | {"trace": 1}} for row in rows]
        rows[1]["eval"]["program_html"][0]["colour"] = "red"
    list(import_tasks(source, written(tmp_path / "more.json", rows)))
    said = "\n".join(caplog.messages)
    assert said.count("colour") == (2 if source == "webarena" else 1) and "empty" not in said
    assert said.count("Final answer") == 1 and "Final answer may say what is right, and no task is graded by it" in said
    assert ("eval.trace" in said and "eval.program_html.colour" in said) == (source == "webarena")


def test_facts_of_webgym_that_nobody_can_judge_are_a_problem(tmp_path: Path) -> None:
    for facts, field in (
        ([{"id": 1, "description": "x", "facts": [3]}], "evaluator_reference.0.facts.0"),
        ([{"id": 1, "description": "x", "facts": []}], "evaluator_reference.0.facts"),
        ([""], "evaluator_reference.0"),
        ("[{'id': 1, 'facts': ['a']}]", "begins as JSON and is none"),
        ('[{"id": 1, "facts": ["a"]', "begins as JSON and is none"),
        ("['a', 'b']", "begins as JSON and is none"),
    ):
        path, problems = tmp_path / "rows.jsonl", list[TaskProblem]()
        path.write_text(json.dumps(WEBGYM[0] | {"evaluator_reference": facts}) + "\n")
        assert not list(import_tasks("webgym", path, on_problem=problems.append))
        assert field in f"{problems[0].field}: {problems[0].reason}", problems


def test_a_task_without_facts_may_be_given_to_the_judge_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(SAMPLES["webvoyager"][0]) + "\n")
    (plain,), (judged,) = import_tasks("webvoyager", path), import_tasks("webvoyager", path, judged=True)
    assert plain.task.rubric is None and judged.task.rubric is not None
    assert judged.task.instruction and judged.task.instruction in next(judged.task.rubric.facts()).description
    assert judged.task.rubric_hash == rubric_hash(judged.task.rubric)
    assert judged.task.difficulty == plain.task.difficulty and judged.task.horizon == plain.task.horizon
    (kept,) = import_tasks("webvoyager", path, judged=True)
    export_tasks(tmp_path / "out.jsonl", [kept])
    assert json.loads((tmp_path / "out.jsonl").read_text()) == SAMPLES["webvoyager"][0]


@pytest.mark.parametrize("source", sorted(SAMPLES))
@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_files_of_windows_editors_are_read(tmp_path: Path, source: str, ending: str) -> None:
    """They begin with a byte order mark, and JSON lines may end with a blank one."""
    plain = written(tmp_path / f"plain.{ending}", SAMPLES[source])
    marked = tmp_path / f"marked.{ending}"
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    tasks = [item.task for item in import_tasks(source, plain)]
    assert [item.task for item in import_tasks(source, marked)] == tasks and tasks
