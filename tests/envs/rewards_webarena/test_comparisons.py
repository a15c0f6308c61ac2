"""WebArena's format and its comparisons, each by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards.webarena import (
    EvalType,
    WebArenaEval,
    evaluate,
    read_eval,
)
from envs.rewards.webarena.match import clean, exact_match, has_one_of, includes_one, must_include, url_match, within
from envs.rewards.webarena.program import as_needed, compare_page
from envs.tasks import TaskProblem
from envs.tasks.imports import import_tasks
from envs.types import TaskError
from envs.types.evidence import PageText
from envs.types.webarena import PageCheck, evaluators_hash

from .configs import Config, broken


@pytest.mark.parametrize(
    ("reference", "text", "held"),
    [("Blue", " blue ", True), ("Blue", '"BLUE"', True), ("'x'", "x", True), ("Blue", "Blue Willow", False),
     ("", "", True), ('"', '"', True), ("N/A", "n/a", True), ("5", "5.0", False)],
)  # fmt: skip
def test_exact_match(reference: str, text: str, held: bool) -> None:
    assert exact_match(reference, text) is held


@pytest.mark.parametrize(
    ("bounds", "text", "held"),
    [(">= 5", "5", True), (">= 5", "4", False), ("< 3 |OR| > 9", "12", True), ("< 3 |OR| > 9", "5", False),
     ("== 1200", " 1,200 ", True), ("== 1200", "1200 km", False), ("<= 2.5", "2", True), ("> 5", "5.5", False),
     ("< 3", "3", True)],  # the benchmark's tolerance
)  # fmt: skip
def test_bounds_of_a_number(bounds: str, text: str, held: bool) -> None:
    assert within(bounds, text) is held


def test_one_of_several_is_a_part_of_the_text() -> None:
    assert has_one_of(("Red", "blue"), "a BLUE lamp") and not has_one_of(("red", "blue"), "a green lamp")


@pytest.mark.parametrize(
    ("wanted", "text", "share"),
    [({"must_exclude": ["milk", "tea"]}, "milk and sugar", 0.5), ({"must_exclude": ["milk"]}, "milky way", 1.0),
     ({"required_values": [">= 5", "< 9"]}, "12", 0.5), ({"required_values": [">= 5"]}, "many", 0.0)],
)  # fmt: skip
def test_contents_that_visualwebarena_asks_for(wanted: dict[str, Any], text: str, share: float) -> None:
    check = PageCheck.model_validate({"url": "last", "required_contents": wanted})
    assert compare_page(check, PageText(address="x", text=text), words=True)[0] == share


@pytest.mark.parametrize(
    ("reference", "text", "alone", "held"),
    [("12 min", "It takes 12 minutes", True, True), ("0", "10 of 20", True, False), ("0", "there are 0.", True, True),
     ("0", "10 of 20", False, True), ("5", "3.5 km", True, False), ("5", "5", True, True), ("ab", "cab", True, True),
     ("é", "café é", True, True), ("x", "", True, False), ("$", "$5", True, True)],
)  # fmt: skip
def test_must_include(reference: str, text: str, alone: bool, held: bool) -> None:
    assert must_include(reference, text, alone=alone) is held


def test_alternatives() -> None:
    assert includes_one("garden |OR| Garten", "im garten") and not includes_one("a |OR| b", "xyz")


@pytest.mark.parametrize(
    ("references", "url", "held"),
    [
        ("http://g.test/a", "http://g.test/a/", True),
        ("http://g.test/a/", "https://g.test/a#top", True),  # neither scheme nor fragment counts
        ("http://g.test/a", "http://g.test/a/b?c=1", True),  # a part of the path
        ("http://g.test/a/b", "http://g.test/a", False),
        ("http://g.test/a?x=1", "http://g.test/a?y=2&x=1", True),
        ("http://g.test/a?x=1", "http://g.test/a?x=10", False),
        ("http://g.test/a?x=1", "http://g.test/a", False),
        ("http://g.test/a?x=1&x=2", "http://g.test/a?x=2", True),
        ("http://g.test/a |OR| http://g.test/b", "http://g.test/b", True),
        ("http://g.test/a?x=1 |OR| http://g.test/b?x=2", "http://g.test/a?x=2", True),  # the benchmark's own looseness
        ("http://g.test/a?x=1 |OR| http://g.test/b?x=2", "http://g.test/a?x=1", True),
        ("http://g.test/a?q=a%20b", "http://g.test/a?q=a+b", True),
        ("http://other.test/a", "http://g.test/a", False),
        ("http://g.test/a", "http://[", False),
        ("http://g.test/a", "", False),
    ],
)
def test_url_match(references: str, url: str, held: bool) -> None:
    assert url_match(references, url) is held


@given(st.text(), st.text(max_size=5))
def test_what_is_exact_is_included(text: str, around: str) -> None:
    assert exact_match(text, text) and exact_match(clean(clean(text)), clean(clean(text)))
    if not text.startswith(("'", '"')):
        assert must_include(text, f"-{text}-") or text != text.strip()
    assert url_match(around, text) in (True, False)


# --- the format


def test_configs_of_the_true_shape_are_read(tasks: dict[int, Config]) -> None:
    assert list(tasks) == [9001, 9002, 9003, 9004, 9005]
    assert tasks[9004].eval.reference_url == (
        "http://git.test/me/plants/issues/?label=garden |OR| http://git.test/me/plants/-/issues/?label=garden"
    )
    assert tasks[9005].eval.eval_types == (EvalType.PROGRAM_HTML,) and tasks[9005].eval.program_html[0].prep_actions


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw["eval"].update(eval_types=[]), "eval.eval_types: "),
        (lambda raw: raw["eval"].update(eval_types=["page_image"]), "eval.eval_types.0: "),
        (lambda raw: raw["eval"].update(url_note="EXACT"), "eval.url_note: "),
        (lambda raw: raw["eval"].update(reference_url=None), "eval: Value error, eval_types has url_match"),
        (lambda raw: raw["eval"].update(program_html=[]), "eval: Value error, eval_types has program_html"),
        (
            lambda raw: raw["eval"].update(eval_types=["string_match"]),
            "eval: Value error, eval_types has string_match",
        ),
        (
            lambda raw: raw["eval"].update(eval_types=["string_match"], reference_answers={}),
            "eval.reference_answers: Value error, has nothing",
        ),
        (
            lambda raw: raw["eval"].update(eval_types=["string_match"], reference_answers={"like": "x"}),
            "eval.reference_answers.like: Extra",
        ),
        (
            lambda raw: raw["eval"].update(eval_types=["string_match"], reference_answers={"must_include": "x"}),
            "eval.reference_answers.must_include: ",
        ),
        (lambda raw: raw["eval"]["program_html"][1].pop("url"), "eval.program_html.1.url: Field required"),
        (lambda raw: raw["eval"]["program_html"][0].update(locator="window.x"), "eval.program_html.0.locator: "),
        (
            lambda raw: raw["eval"]["program_html"][0].update(required_contents={}),
            "eval.program_html.0.required_contents: ",
        ),
    ],
)
def test_a_bad_config_names_its_field(change: Callable[[dict[str, Any]], object], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_eval(broken(change)["eval"])
    assert said in str(caught.value)


PLACEHOLDERS: list[tuple[int, dict[str, Any]]] = [
    (0, {"program_html": [{"url": "", "required_contents": []}], "reference_url": ""}),  # the benchmark's own examples
    (
        0,
        {"program_html": [{"url": "", "locator": "", "required_contents": {"exact_match": ""}}], "reference_url": None},
    ),
    (3, {"reference_answers": {}}),
    (3, {"reference_answers": {"must_include": []}}),
    (3, {"reference_answers": {"exact_match": "", "like": "x"}}),
]


@pytest.mark.parametrize(("row", "placeholders"), PLACEHOLDERS)
def test_placeholders_of_absent_evaluators_do_not_matter(
    row: int, placeholders: dict[str, Any], tmp_path: Path
) -> None:
    plain, filled = broken(lambda raw: None, row), broken(lambda raw: raw["eval"].update(placeholders), row)
    assert read_eval(filled["eval"]) == read_eval(plain["eval"])
    (tmp_path / "task.json").write_text(json.dumps(filled))
    (item,) = import_tasks("webarena", tmp_path / "task.json")
    assert item.task.evaluators == read_eval(filled["eval"]) and item.reference == filled


VISUAL_ROW = {"reasoning_difficulty": "easy", "visual_difficulty": "easy", "overall_difficulty": "easy", "image": None}


@pytest.mark.parametrize("image", ["http://shop.test/a.png", ["http://shop.test/a.png", "b.png"]])
def test_a_task_that_asks_about_a_picture_is_refused_with_its_reason(image: Any, tmp_path: Path) -> None:
    raw = broken(lambda raw: raw.update(VISUAL_ROW, image=image), 0)
    (tmp_path / "tasks.json").write_text(json.dumps([broken(lambda raw: None, 1), raw]))
    problems: list[TaskProblem] = []
    assert len(list(import_tasks("webarena", tmp_path / "tasks.json", on_problem=problems.append))) == 1
    assert [(problem.row, problem.field) for problem in problems] == [(2, "image")]


def test_an_unknown_helper_of_visualwebarena_is_refused_by_name(tmp_path: Path) -> None:
    look = {"url": "func:shopping_get_sku_stock('B1')", "locator": "", "required_contents": {"exact_match": "1"}}
    evaluation = {"eval_types": ["program_html"], "program_html": [look]}
    (tmp_path / "task.json").write_text(json.dumps(broken(lambda raw: raw.update(VISUAL_ROW, eval=evaluation), 0)))
    with pytest.raises(TaskError, match=r":1: eval.program_html: asks the helper 'shopping_get_sku_stock'"):
        list(import_tasks("webarena", tmp_path / "task.json"))


def visual(**evaluation: Any) -> WebArenaEval:
    return read_eval(evaluation, VISUAL_ROW)


async def scores(rules: WebArenaEval, answer: str = "", url: str = "", page: str = "") -> float | None:
    looked = [PageText(address="x", text=page)] if rules.program_html else []
    return (await evaluate(rules, question="", answer=answer, last_url=url, seen=looked)).score


async def test_one_of_several_answers_will_do() -> None:
    for read in (visual, read_eval_of):
        rules = read(eval_types=["string_match"], reference_answers={"must_include": ["oak |OR| elm tree", "red"]})
        said = ("a red oak", "red elm tree", "an oak", "red elm", "oak |OR| elm tree, red")
        assert [await scores(rules, answer=each) for each in said] == [1, 1, 0, 0, 1]


def read_eval_of(**evaluation: Any) -> WebArenaEval:
    return read_eval(evaluation)


async def test_rows_of_visualwebarena_are_compared_in_its_own_way() -> None:
    """Its single words are words of the text, and its addresses are compared as they are;
    WebArena's are not."""
    wanted = {"eval_types": ["string_match"], "reference_answers": {"must_include": ["red", "two words"]}}
    for answer, ours, theirs in (("bored, two wordsmiths", 0, 1), ("red, in two words", 1, 1)):
        assert (await scores(visual(**wanted), answer), await scores(read_eval_of(**wanted), answer)) == (ours, theirs)
    exact = {"eval_types": ["url_match"], "reference_url": "http://a.test/x |OR| http://a.test/y/"}
    part = exact | {"url_note": "GOLD in PRED"}
    urls = ("http://a.test/x", "http://a.test/y", "http://a.test/x?q=1", "http://b.test/http://a.test/x")
    assert [await scores(visual(**exact), url=url) for url in urls] == [1, 1, 0, 0]
    assert [await scores(visual(**part), url=url) for url in urls] == [1, 1, 1, 1]
    assert [await scores(read_eval_of(**exact), url=url) for url in urls] == [1, 1, 1, 1]
    page = {"url": "last", "locator": "", "required_contents": {"must_include": ["red |OR| blue"]}}
    looks = visual(eval_types=["program_html"], program_html=[page])
    long = "bored " * 9_000 + "red"
    assert [await scores(looks, page=text) for text in ("a bored one", "a blue one", long)] == [0, 1, 1]
    assert await scores(looks, page=as_needed(looks.program_html[0], long, words=True)) == 1
    assert visual(**wanted) != read_eval_of(**wanted) and evaluators_hash(visual(**wanted)) != evaluators_hash(
        read_eval_of(**wanted)
    )


async def test_an_address_that_is_shortened_is_not_said_to_be_another() -> None:
    rules = read_eval_of(eval_types=["url_match"], reference_url="http://a.test/x?q=long")
    assert await scores(rules, url="http://a.test/x?q=lo…") is None
    assert await scores(rules, url="http://a.test/x?q=long&b=…") == 1
    assert await scores(rules, url="http://a.test/x?q=lo") == 0


# --- string_match
