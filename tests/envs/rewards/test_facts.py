"""Every type of fact on a golden episode: true, false, and not available."""

from __future__ import annotations

from typing import Any

import pytest

from envs.observation.text import Page, TextPiece, fit
from envs.rewards import Download, GradingEvidence, grade, grade_by_program, record_answers
from envs.rewards.compare import compare, number_in
from envs.rewards.facts import NO_JUDGE, NO_SERVER, FactResult
from envs.types import (
    Cost,
    Element,
    FactGroup,
    Hidden,
    JudgeError,
    JudgeFact,
    Needs,
    Observation,
    PageReply,
    Recorded,
    SiteError,
    Trajectory,
    WholePage,
    needs,
)
from envs.types.evidence import DomElement
from envs.types.rubrics import Compare, FactBase
from tests.builders import make_observation, make_rubric

from .played import DIGEST, DOM, EVIDENCE, LAMP, NOTHING, STEPS, trajectory


def rubric_of(**fact: Any) -> Any:
    return make_rubric({"id": "f", **fact})


def value_of(evidence: GradingEvidence, **fact: Any) -> float | None:
    return grade_by_program(rubric_of(**fact), evidence).parts[0].value


URL = {"type": "url"}
TEXT = {"type": "text"}
ANSWER = {"type": "answer"}
ELEMENT = {"type": "element"}
STATE = {"type": "element_state"}
ATTRIBUTE = {"type": "dom_element_attribute_equals"}
STYLE = {"type": "dom_element_style_property"}
DECLARED = {"type": "page_fact"}
FILE = {"type": "download"}
SIGNAL = {"type": "signal_threshold"}

VERDICTS: list[tuple[dict[str, Any], float]] = [
    (URL | {"url": "/orders/12"}, 1),
    (URL | {"url": "http://127.0.0.1:8080/orders/12"}, 1),
    (URL | {"url": "https://127.0.0.1:8080/orders/12"}, 0),
    (URL | {"url": "http://[bad"}, 0),
    (URL | {"url": "/orders/1"}, 0),
    (URL | {"url": "/orders/1", "match": "prefix"}, 1),
    (URL | {"url": "orders/12", "match": "contains"}, 1),
    (URL | {"url": r"/orders/\d+/$", "match": "regex"}, 1),
    (URL | {"url": r"^/orders", "match": "regex"}, 0),
    (URL | {"url": "/item/7?colour=red&size=L"}, 0),
    (URL | {"url": "/item/7?colour=red&size=L", "when": "ever"}, 1),
    (URL | {"url": "/item/7?colour=red", "when": "ever"}, 0),
    (TEXT | {"text": "order 12 confirmed"}, 1),
    (TEXT | {"text": "order 12 confirmed", "case_sensitive": True}, 0),
    (TEXT | {"text": "order 13 confirmed"}, 0),
    (TEXT | {"text": "Invoice", "match": "exact"}, 1),
    (TEXT | {"text": "Thank", "match": "exact"}, 0),
    (TEXT | {"text": r"order \d+ confirmed", "match": "regex"}, 1),
    (TEXT | {"text": "Sale today"}, 0),
    (TEXT | {"text": "Sale today", "when": "ever"}, 1),
    (TEXT | {"text": "Sale today", "negate": True}, 1),
    (TEXT | {"text": "Order confirmed", "when": "ever"}, 0),  # the policy typed it into a field
    (ANSWER | {"expected": "the total  is $1,234.50"}, 1),
    (ANSWER | {"expected": "1234.5"}, 0),
    (ANSWER | {"expected": ["no", "1,234.50"], "match": "contains"}, 1),
    (ANSWER | {"expected": r"\$[\d,.]+$", "match": "regex"}, 1),
    (ANSWER | {"expected": "1234.5", "match": "number"}, 1),
    (ANSWER | {"expected": "1234", "match": "number"}, 0),
    (ANSWER | {"expected": "1234", "match": "number", "tolerance": 0.5}, 1),
    (ANSWER | {"expected": "1200", "match": "number", "relative_tolerance": 0.03}, 1),
    (ELEMENT | {"element": {"id": "invoice"}}, 1),
    (ELEMENT | {"element": {"tag": "link", "text": "INVOICE"}}, 1),
    (ELEMENT | {"element": {"tag": "button", "text": "Invoice"}}, 0),
    (ELEMENT | {"element": {"id": "nav.lamps"}, "when": "ever"}, 1),
    (STATE | {"element": {"id": "country"}, "property": "value", "equals": "Peru"}, 1),
    (STATE | {"element": {"id": "country"}, "property": "value", "equals": "Chile"}, 0),
    (STATE | {"element": {"id": "gift"}, "property": "checked", "equals": True}, 0),
    (STATE | {"element": {"id": "gift"}, "property": "checked", "equals": True, "when": "ever"}, 1),
    (STATE | {"element": {"id": "gift"}, "property": "focused", "equals": True, "when": "ever"}, 0),
    (STATE | {"element": {"text": "Buy now"}, "property": "disabled", "equals": True, "when": "ever"}, 1),
    ({"type": "dom_element_present", "selector": "body.shop > div#total a[href^='/inv']"}, 1),
    ({"type": "dom_element_present", "selector": "html > div"}, 0),
    (ATTRIBUTE | {"selector": "#total", "attribute": "DATA-SUM", "expected_value": "1234.5"}, 1),
    (ATTRIBUTE | {"selector": "#total", "attribute": "data-sum", "expected_value": "12"}, 0),
    (ATTRIBUTE | {"selector": "#none", "attribute": "data-sum", "expected_value": "12"}, 0),
    (STYLE | {"selector": "div", "property": "color", "expected_value": "rgb(255, 0, 0)"}, 1),
    (STYLE | {"selector": "div", "property": "color", "expected_value": "red"}, 0),
    (STYLE | {"selector": "p", "property": "color", "expected_value": "red"}, 0),
    ({"type": "js", "expression": "$$('a').length === 2"}, 1),
    ({"type": "js", "expression": "$('#total') === null"}, 0),
    ({"type": "js", "expression": "$('#gone').id === 'x'"}, 0),
    (DECLARED | {"name": "done", "value": True}, 1),
    (DECLARED | {"name": "done", "value": 1}, 0),
    (DECLARED | {"name": "raw_reward", "op": "gt", "value": 0}, 1),
    (DECLARED | {"name": "raw_reward", "op": "gte", "value": 0.6}, 0),
    (DECLARED | {"name": "reason", "op": "ne", "value": "bad"}, 1),
    (FILE | {"name": "invoice-12.pdf"}, 1),
    (FILE | {"name": r"invoice-\d+\.pdf", "match": "regex", "min_bytes": 1000}, 1),
    (FILE | {"name": "invoice-12.pdf", "min_bytes": 3000}, 0),
    (FILE | {"name": "invoice-12.pdf", "sha256": DIGEST}, 1),
    (FILE | {"name": "invoice-12.pdf", "sha256": "b" * 64}, 0),
    (FILE | {"name": "empty.csv"}, 0),
    (FILE | {"name": "empty.csv", "min_bytes": 0}, 1),
    (SIGNAL | {"metric": "layout_shift", "comparison": "lte", "threshold": 0.1}, 1),
    (SIGNAL | {"metric": "total_cls", "comparison": "lte", "threshold": 0.04}, 0),
    (SIGNAL | {"metric": "layout_duration_ms", "comparison": "gte", "threshold": 30}, 1),
    (SIGNAL | {"metric": "compositor_layer_count", "comparison": "lte", "threshold": 4}, 1),
    (SIGNAL | {"metric": "gpu_memory_mb", "comparison": "lte", "threshold": 3}, 1),
    (SIGNAL | {"metric": "gpu_memory_mb", "comparison": "lte", "threshold": 2.9}, 0),
    (SIGNAL | {"metric": "counts.console_error", "comparison": "lte", "threshold": 1}, 0),
    (SIGNAL | {"metric": "counts.exception", "comparison": "lte", "threshold": 0}, 1),
    (SIGNAL | {"metric": "speed", "comparison": "gte", "threshold": 2}, 1),
    ({"type": "domdiff_subscore", "key": "structuralSimilarity"}, 0.9),
    ({"type": "domdiff_subscore", "key": "textSimilarity"}, 0.4),
    ({"type": "domdiff_subscore", "key": "textSimilarity", "negate": True}, 0.6),
]


@pytest.mark.parametrize(("fact", "value"), VERDICTS, ids=lambda each: str(each)[:60])
def test_a_golden_episode_has_known_verdicts(fact: dict[str, Any], value: float) -> None:
    part = grade_by_program(rubric_of(**fact), EVIDENCE).parts[0]
    assert part.value == pytest.approx(value) and part.evidence


def test_every_type_has_a_verdict_of_each_kind() -> None:
    by_program = {kind.model_fields["type"].default for kind in all_kinds()} - {"judge", "server_sql", "server_http"}
    for kind in by_program:
        values = {value for fact, value in VERDICTS if fact["type"] == kind}
        assert len(values) >= 2, kind


def all_kinds(base: type[FactBase] = FactBase) -> set[type[FactBase]]:
    below = base.__subclasses__()
    return {kind for kind in below if "type" in kind.model_fields} | {
        each for kind in below for each in all_kinds(kind)
    }


@pytest.mark.parametrize(
    "fact", [fact for fact, _ in VERDICTS if fact["type"] != "answer"], ids=lambda fact: str(fact)[:60]
)
def test_what_was_not_recorded_is_not_available(fact: dict[str, Any]) -> None:
    bundle = grade_by_program(rubric_of(**fact), NOTHING)
    assert bundle.parts[0].value is None and bundle.parts[0].evidence and bundle.abstained


@pytest.mark.parametrize(
    ("fact", "cause"),
    [
        (STYLE | {"selector": "a", "property": "color", "expected_value": "red"}, "was not recorded"),
        (SIGNAL | {"metric": "layout_shfit", "threshold": 1}, "no signal of that name"),
        (SIGNAL | {"metric": "counts.nothing", "threshold": 0}, "no signal of that name"),
        (SIGNAL | {"metric": "peak_nodes", "threshold": 1}, "not measured"),
        ({"type": "domdiff_subscore", "key": "styleSimilarity"}, "not computed"),
        (FILE | {"name": "empty.csv", "min_bytes": 0, "sha256": DIGEST}, "were not recorded"),
        (DECLARED | {"name": "score", "value": 1}, "declares no score"),
        ({"type": "js", "expression": "$('#total').textContent"}, "is '1234.5'; expected true or false"),
        ({"type": "js", "expression": "null.x"}, "Cannot read properties of null"),
        ({"type": "judge", "description": "It is blue."}, NO_JUDGE),
        ({"type": "server_sql", "query": "select 1", "rows": [[1]]}, NO_SERVER),
    ],
    ids=str,
)
def test_a_cause_is_given_for_what_is_missing(fact: dict[str, Any], cause: str) -> None:
    bundle = grade_by_program(rubric_of(**fact), EVIDENCE)
    assert bundle.parts[0].value is None and cause in bundle.parts[0].evidence


def test_no_answer_is_a_wrong_answer() -> None:
    for match in ("exact", "contains", "number"):
        assert value_of(NOTHING, type="answer", expected="5", match=match) == 0


def test_a_stored_episode_keeps_its_last_page() -> None:
    answered = GradingEvidence.of(trajectory())
    assert value_of(answered, type="url", url="/orders/12") == 1
    cut = GradingEvidence.of(trajectory(steps=STEPS[:2], final=None))
    assert cut.final is None and value_of(cut, type="url", url=LAMP.url) is None
    assert GradingEvidence.of(trajectory(stop_reason="terminated", answer="success")).answer == ""


def test_recorded_evidence_is_graded_from_the_stored_episode_alone() -> None:
    recorded = Recorded(
        dom=DOM,
        downloads=(Download(name="a.txt", size=3),),
        scripts={"true": PageReply(value=True)},
        absent={"x": "y"},
    )
    stored = Trajectory.model_validate_json(trajectory(recorded=recorded).model_dump_json(), strict=True)
    evidence = GradingEvidence.of(stored)
    assert stored.recorded == recorded and evidence.dom == DOM
    assert value_of(evidence, type="dom_element_present", selector="#total > a") == 1
    assert value_of(evidence, type="download", name="a.txt") == 1
    assert value_of(evidence, type="js", expression="true") == 1
    assert value_of(evidence, type="js", expression="false") is None
    failed = GradingEvidence.of(trajectory(recorded=Recorded(absent={"dom": "20,001 nodes", "downloads": "no folder"})))
    bundle = grade_by_program(rubric_of(type="dom_element_present", selector="a"), failed)
    assert bundle.parts[0].value is None and bundle.parts[0].evidence == "20,001 nodes"
    assert grade_by_program(rubric_of(type="download", name="a"), failed).parts[0].evidence == "no folder"


def page(text: str = "", *elements: Element, **more: Any) -> Observation:
    return make_observation(text, elements=elements, **more)


def listed(label: str, **more: Any) -> Element:
    return Element(index=1, tag="link", text=label, box=(0, 0, 1, 1), **more)


LINES = [[TextPiece(f"line {number} of a long page, told at length")] for number in range(40)]
CUT_TEXT = fit(Page([*LINES, [TextPiece("Order confirmed")]], 0), Hidden(), 300)[0]
OUT_OF_VIEW = fit(Page(LINES[:2], 5_000), Hidden(below=3), 8_000)[0]
LONG = "a label of which no more than the first eighty characters are in an observation, so it en"

CAPS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    # What was left out, a fact that may hang on it, and one that what was seen decides.
    ({"final": page(CUT_TEXT)}, TEXT | {"text": "Order confirmed"}, {}),
    ({"final": page(CUT_TEXT)}, TEXT | {"text": "Order confirmed", "match": "exact"}, {}),
    ({"final": page(CUT_TEXT)}, TEXT | {"text": r"order \w+", "match": "regex"}, {}),
    ({"final": page("short"), "steps": (*STEPS[:1], STEPS[0].model_copy(update={"observation": page(CUT_TEXT)}))},
     TEXT | {"text": "Order confirmed", "when": "ever"}, TEXT | {"text": "short", "when": "ever"}),
    ({"final": page("x", hidden=Hidden(over_limit=4))}, TEXT | {"text": "Order confirmed"}, TEXT | {"text": "x"}),
    ({"final": page("", dialog="confirm: Leave?")}, TEXT | {"text": "Order"}, TEXT | {"text": "leave?"}),
    ({"final": page("", dialog="confirm: Leave?")}, ELEMENT | {"element": {"tag": "link"}}, URL | {"url": "/x"}),
    ({"final": page("x", listed(LONG[:80]))}, TEXT | {"text": "so it ends"}, TEXT | {"text": "no more than the first"}),
    ({"final": page("x", listed(LONG[:80]))}, TEXT | {"text": LONG, "match": "exact"},
     TEXT | {"text": f"Not {LONG}", "match": "exact"}),
    ({"final": page("x", listed("A longer label that is cut…"))}, ELEMENT | {"element": {"text": "A longer label that is cut here"}},
     ELEMENT | {"element": {"text": "Another label"}}),
    ({"final": page("x", hidden=Hidden(over_limit=4))}, ELEMENT | {"element": {"tag": "link"}}, {}),
    ({"final": page("x", hidden=Hidden(over_limit=4))},
     STATE | {"element": {"tag": "link"}, "property": "disabled", "equals": True}, {}),
    ({"final": page("x", listed("a", value=LONG[:80]))},
     STATE | {"element": {"text": "a"}, "property": "value", "equals": LONG},
     STATE | {"element": {"text": "a"}, "property": "value", "equals": "b" + LONG}),
    ({"final": page(url="http://shop.test/?q=aaa…")}, URL | {"url": "q=aaab", "match": "contains"},
     URL | {"url": "/?q", "match": "prefix"}),
    ({"final": page(url="http://shop.test/?q=aaa…")}, URL | {"url": "b$", "match": "regex"}, {}),
    ({"dom": DOM, "dom_cut": True}, {"type": "dom_element_present", "selector": "#gone"},
     {"type": "dom_element_present", "selector": "#total"}),
    ({"dom": DOM, "dom_cut": True}, ATTRIBUTE | {"selector": "a", "attribute": "href", "expected_value": "/x"}, {}),
    ({"dom": DOM, "dom_cut": True}, STYLE | {"selector": "#total", "property": "color", "expected_value": "blue"},
     STYLE | {"selector": "#total", "property": "color", "expected_value": "rgb(255, 0, 0)"}),
    ({"downloads": (), "downloads_cut": True}, FILE | {"name": "a.pdf"}, {}),
    ({"downloads": (Download(name="b.pdf", size=9),), "downloads_cut": True}, FILE | {"name": "a.pdf"},
     FILE | {"name": "b.pdf"}),
    ({"scripts": {"slow()": PageReply(trouble="it was stopped after 1 s", stopped=True)}},
     {"type": "js", "expression": "slow()"}, {}),
    ({"final": page(OUT_OF_VIEW)}, TEXT | {"text": "Order confirmed"}, {}),
    ({"final": page("x", hidden=Hidden(above=3))}, {"type": "element", "element": {"text": "B"}}, {}),
    ({"final": page("x"), "pages": (WholePage(words=("y",), words_cut=True),)}, TEXT | {"text": "z"}, TEXT | {"text": "y"}),
    ({"domdiff_cut": True}, {"type": "domdiff_subscore", "key": "textSimilarity"}, {}),
]  # fmt: skip


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize(("left", "fact", "decided"), CAPS, ids=[str(fact)[:60] for _, fact, _ in CAPS])
def test_a_fact_that_hangs_on_what_was_left_out_is_neither_true_nor_false(
    left: dict[str, Any], fact: dict[str, Any], decided: dict[str, Any], negate: bool
) -> None:
    """The episode abstains: a policy could otherwise hide a false fact by making a page large. What
    was seen still decides."""
    evidence = GradingEvidence(answer="yes", **left)
    bundle = grade_by_program(rubric_of(**fact, negate=negate), evidence)
    assert bundle.parts[0].value is None and bundle.score is None and "cannot be decided" in (bundle.abstained or "")
    others = [{"id": "f", **fact, "negate": negate}, {"id": "other", "type": "answer", "expected": "yes"}]
    both = make_rubric(*others)
    assert grade_by_program(both, evidence).score is None, "the other fact alone would be a full score"
    required = make_rubric(
        others[0], {**others[1], "expected": "no"}, pass_requirements={"required_fact_ids": ["other"]}
    )
    assert grade_by_program(required, evidence).score == 0, "it fails whatever was left out"
    if decided:
        assert value_of(evidence, **decided) in (0, 1)


@pytest.mark.parametrize(
    "whole",
    [
        {"final": page(OUT_OF_VIEW, hidden=Hidden(below=3)), "pages": (WholePage(words=("x",)),)},
        {"final": page("x", listed("a short label"))},
        {"final": page("x", listed(LONG[:80]).model_copy(update={"tag": "item"}))},  # whose words follow it in full
        {"final": page("")},
    ],
)
def test_a_page_that_was_read_whole_makes_a_fact_false(whole: dict[str, Any]) -> None:
    assert value_of(GradingEvidence(**whole), **TEXT, text="Order confirmed") == 0
    assert value_of(GradingEvidence(**whole), **TEXT, text="Order confirmed", negate=True) == 1


def test_facts_of_both_cases_look_at_one_page_each_in_its_own_way() -> None:
    facts = [
        {"id": str(number), **TEXT, "text": text, "match": match, "case_sensitive": case}
        for number, (text, match, case) in enumerate(
            [("paid", "contains", True), ("paid", "contains", False), ("PAID", "regex", False), ("Paid", "exact", True)]
        )
    ]
    for order in (facts, facts[::-1]):
        rubric = make_rubric(*order)
        parts = grade_by_program(rubric, GradingEvidence(final=page("Paid"))).parts
        assert {part.name: part.value for part in parts} == {"g/0": 0, "g/1": 1, "g/2": 1, "g/3": 1}


def test_the_larger_of_two_tolerances_holds_and_they_are_not_added() -> None:
    near = ANSWER | {"expected": "100", "match": "number", "tolerance": 5, "relative_tolerance": 0.1}
    values = [value_of(GradingEvidence(answer=answer), **near) for answer in ("110", "90", "111", "114")]
    assert values == [1, 1, 0, 0]


def test_an_empty_parameter_of_an_address_is_one() -> None:
    at = GradingEvidence(final=page(url="http://shop.test/list?sale=&page=2"))
    assert [value_of(at, **URL, url=url) for url in ("/list?page=2&sale=", "/list?page=2")] == [1, 0]


def test_every_choice_of_a_list_is_on_the_page() -> None:
    choices = tuple(f"Town {number}" for number in range(10))
    shown = page("[1] select (Town 0, Town 1, Town 2 and 7 more)", listed("", options=choices))
    assert value_of(GradingEvidence(final=shown), **TEXT, text="Town 9") == 1


def test_words_that_were_never_recorded_are_not_missing() -> None:
    """Small observations have elements and no text: whether a word is on the page is not known."""
    small = GradingEvidence(final=page("", listed("Buy")))
    assert value_of(small, **TEXT, text="Buy") == 1 and value_of(small, **TEXT, text="Sold out") is None


def test_one_node_whose_style_was_not_read_may_be_the_right_one() -> None:
    nodes = (DomElement(tag="p", styles={"color": "red"}), DomElement(tag="p"))
    style = STYLE | {"selector": "p", "property": "color"}
    assert value_of(GradingEvidence(dom=nodes), **style, expected_value="red") == 1
    assert value_of(GradingEvidence(dom=nodes), **style, expected_value="blue") is None
    files = (Download(name="a.txt", size=1, sha256="b" * 64), Download(name="b.txt", size=1))
    either = FILE | {"name": ".txt", "match": "contains", "sha256": DIGEST}
    assert value_of(GradingEvidence(downloads=files), **either) is None


def test_what_a_rubric_needs_to_be_recorded() -> None:
    assert not needs(None) and needs(None) == Needs()
    assert not needs(rubric_of(**URL, url="/")) and not needs(rubric_of(**FILE, name="a")).dom
    facts = [
        STYLE | {"selector": "a", "property": "Color", "expected_value": "red"},
        STYLE | {"selector": "b", "property": "color", "expected_value": "red"},
        STYLE | {"selector": "b", "property": "width", "expected_value": "1px"},
        {"type": "js", "expression": "1 < 2"},
    ]
    gates = [{"id": "gate", "type": "js", "expression": "2 < 3"}, {"id": "again", "type": "js", "expression": "1 < 2"}]
    found = needs(make_rubric(*facts, gates=gates))
    assert found == Needs(dom=True, styles=("color", "width"), scripts=("1 < 2", "2 < 3"))
    assert needs(rubric_of(**FILE, name="a")) == Needs(downloads=True)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("It is $1,234.50.", 1234.5),
        ("-3e2", -300),
        ("−4", -4),
        (".5 of it", 0.5),
        ("5, that is 5", 5),
        ("5 or 6", None),
        ("none", None),
        ("v2", None),
        ("1.2.3", None),
        ("", None),
        ("1e999", None),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, number: float | None) -> None:
    assert number_in(text) == number


def test_a_comparison_does_not_take_true_for_one() -> None:
    assert compare(1, Compare.EQ, 1.0) and not compare(True, Compare.EQ, 1) and compare(True, Compare.NE, 1)
    assert not compare(True, Compare.GTE, 0) and not compare("5", Compare.LT, 6) and not compare(None, Compare.LTE, 6)


class Server:
    """A shop's state; a table that is not there is a failure."""

    async def sql(self, query: str, database: str) -> list[tuple[Any, ...]]:
        if "orders" not in query:
            raise SiteError(f"database {database!r}: no such table")
        return [(12, "lamp"), (13, "vase"), (12, "lamp")]

    async def get_json(self, path: str) -> Any:
        return {"orders": [{"total": 1234.5, "paid": True}]} if path == "/api" else None


SERVER_VERDICTS: list[tuple[dict[str, Any], float | None]] = [
    ({"type": "server_sql", "query": "from orders", "rows": [[12, "lamp"], [12, "lamp"], [13, "vase"]]}, 1),
    ({"type": "server_sql", "query": "from orders", "rows": [[12, "lamp"], [13, "vase"], [13, "vase"]]}, 0),
    ({"type": "server_sql", "query": "from orders", "rows": [[13, "vase"]]}, 0),
    (
        {
            "type": "server_sql",
            "query": "from orders",
            "rows": [[12, "lamp"], [12, "lamp"], [13, "vase"]],
            "ordered": True,
        },
        0,
    ),
    ({"type": "server_sql", "query": "from nothing", "rows": [], "database": "shop"}, None),
    ({"type": "server_http", "path": "/api", "at": ["orders", 0, "total"], "op": "gt", "value": 1000}, 1),
    ({"type": "server_http", "path": "/api", "at": ["orders", 0, "paid"], "value": True}, 1),
    ({"type": "server_http", "path": "/api", "at": ["orders", 5, "paid"], "value": True}, 0),
    ({"type": "server_http", "path": "/gone", "at": ["orders"], "value": 1}, 0),
]


@pytest.mark.parametrize(("fact", "value"), SERVER_VERDICTS, ids=str)
async def test_what_the_server_says_is_checked(fact: dict[str, Any], value: float | None) -> None:
    rubric = rubric_of(**fact)
    said = await record_answers(rubric, Server())
    part = grade_by_program(rubric, EVIDENCE.model_copy(update={"server": said})).parts[0]
    assert part.value == value
    assert (value is not None) or "no such table" in part.evidence


class Juror:
    """Says yes to what is red, fails at what is hard."""

    async def judge(self, fact: JudgeFact, group: FactGroup | None, evidence: GradingEvidence) -> FactResult:
        if "hard" in fact.description:
            raise JudgeError("the judge answered 500 three times")
        sure = 0.75 if "red" in fact.description and evidence.steps else 0.25
        return FactResult(
            value=sure, evidence=f"{group and group.name}", cost=Cost(seconds=2, tokens=100, dollars=0.01)
        )


async def test_a_judge_is_asked_and_its_cost_recorded() -> None:
    facts = [
        {"id": "a", "type": "judge", "description": "It is red."},
        {"id": "b", "type": "judge", "description": "It is blue."},
        {"id": "c", "type": "judge", "description": "It is hard."},
        {"id": "d", "type": "url", "url": "/orders/12"},
    ]
    rubric = make_rubric(*facts)
    bundle = await grade(rubric, EVIDENCE, judge=Juror())
    assert [part.value for part in bundle.parts] == [0.75, 0.25, None, 1.0]
    assert [part.holds for part in bundle.parts] == [True, False, None, True]
    assert "500 three times" in bundle.parts[2].evidence
    assert bundle.cost.tokens == 200 and bundle.cost.dollars == pytest.approx(0.02)
    assert bundle.score == pytest.approx(2 / 3) and bundle.binary == 0


async def test_other_errors_of_a_judge_are_not_swallowed() -> None:
    class Broken:
        async def judge(self, fact: JudgeFact, group: FactGroup | None, evidence: GradingEvidence) -> FactResult:
            raise KeyError("a bug")

    with pytest.raises(ExceptionGroup):
        await grade(rubric_of(type="judge", description="x"), EVIDENCE, judge=Broken())


def test_a_label_that_ends_in_dots_of_its_own_is_not_shortened() -> None:
    """``Search…`` is all that the field is called: a text that is not there is not there. A list
    with more choices may have it."""
    wanted = {"type": "text", "text": "Order placed"}
    assert value_of(GradingEvidence(final=page("Shop", listed("Search…"))), **wanted) == 0.0
    assert value_of(GradingEvidence(final=page("Shop", listed("Country", more_options=150))), **wanted) is None
