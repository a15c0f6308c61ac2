"""WebArena's evaluators: pages through a scripted page, helpers, the product and the partial
score."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards.judge import Judgement
from envs.rewards.webarena import (
    HELPERS,
    EvalType,
    EvaluatorResult,
    PageScriptError,
    Part,
    WebArenaEval,
    evaluate,
    read_pages,
)
from envs.rewards.webarena.evaluate import partial, product
from envs.rewards.webarena.helpers import PAGE, UnknownHelper, call, read_helper_call, reddit_get_post_url
from envs.rewards.webarena.program import MAX_TEXT, as_needed, compare_page
from envs.types import BrowserError
from envs.types.evidence import PageText
from envs.types.webarena import PageCheck

from .configs import Config, broken, config


class Page:
    """Pages by address: HTML, and values by expression. What is no value is raised."""

    def __init__(self, at: str, pages: dict[str, dict[str, Any]]) -> None:
        self.at = at
        self.pages = pages
        self.visits: list[str] = []
        self.ran: list[str] = []

    async def url(self) -> str:
        return self.at

    async def goto(self, url: str) -> None:
        self.visits.append(url)
        if url not in self.pages:
            raise BrowserError(f"{url} does not answer")
        self.at = url

    async def content(self) -> str:
        return str(self.pages[self.at]["html"])

    async def evaluate(self, expression: str) -> object:
        self.ran.append(expression)
        if expression not in self.pages[self.at]:
            raise PageScriptError("null has no outerText")
        value = self.pages[self.at][expression]
        if isinstance(value, Exception):
            raise value
        return value


class Says:
    """A judge of answers that always says the same."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.asked: list[tuple[str, str, str, bool]] = []

    async def compare(self, question: str, reference: str, answer: str, *, unachievable: bool = False) -> Judgement:
        self.asked.append((question, reference, answer, unachievable))
        return Judgement.model_validate({"state": self.state, "score": None, "reason": f"judge: {self.state}"})


async def grade(
    task: Config,
    answer: str | None = None,
    at: str = "http://x/",
    page: Any = None,
    helpers: Any = None,
    judge: Any = None,
) -> EvaluatorResult:
    seen = await read_pages(task.eval, page, at, helpers) if page is not None else ()
    return await evaluate(task.eval, question=task.intent, answer=answer, last_url=at, seen=seen, judge=judge)


# --- comparisons


async def test_an_exact_answer(tasks: dict[int, Config]) -> None:
    assert (await grade(tasks[9001], "blue willow")).score == 1.0
    wrong = await grade(tasks[9001], "blue")
    assert wrong.score == 0.0 == wrong.partial and "'blue' for 'Blue Willow'" in wrong.parts[0].evidence
    assert (await grade(tasks[9001], None)).score == 0.0


async def test_parts_of_an_answer_and_a_judge_for_the_rest(tasks: dict[int, Config]) -> None:
    judge = Says("passed")
    good = await grade(tasks[9002], "12 min from pier 4 at 12:00", judge=judge)
    assert good.score == 1.0 == good.partial and len(good.parts) == 3
    assert judge.asked == [("How far is the ferry, and when?", "leaves at noon", "12 min from pier 4 at 12:00", False)]
    half = await grade(tasks[9002], "12 min", judge=Says("passed"))
    assert half.score == 0.0 and half.partial == pytest.approx(2 / 3)


async def test_a_judge_that_abstains_is_no_zero(tasks: dict[int, Config]) -> None:
    for judge, why in ((Says("abstained"), "judge: abstained"), (None, "needs a judge")):
        found = await grade(tasks[9002], "12 min from pier 4", judge=judge)
        assert found.score is None and found.partial == 1.0 and found.abstained and why in found.abstained
        assert (await grade(tasks[9002], "nothing", judge=judge)).score == 0.0  # it fails whatever the judge would say


async def test_no_answer_is_no_answer_in_other_words(tasks: dict[int, Config]) -> None:
    judge = Says("passed")
    for answer in (None, "", "  "):
        found = await grade(tasks[9002], answer, judge=judge)
        assert not judge.asked and found.parts[-1].value == 0 and found.partial == 0


async def test_what_cannot_be_done(tasks: dict[int, Config]) -> None:
    judge = Says("failed")
    assert (await grade(tasks[9003], "N/A", judge=judge)).score == 1.0 and not judge.asked
    assert (await grade(tasks[9003], "555-1234", judge=judge)).score == 0.0
    assert judge.asked == [("Tell me the fax number of the shop.", "The shop names no fax number", "555-1234", True)]
    assert (await grade(tasks[9003], "there is no fax", judge=Says("passed"))).score == 1.0
    silent = replace(tasks[9003], eval=tasks[9003].eval.model_copy(update={"string_note": ""}))
    assert (await grade(silent, "there is no fax", judge=judge)).score == 0.0


async def test_must_exclude() -> None:
    raw = broken(
        lambda raw: raw["eval"].update(reference_answers={"must_include": ["tea"], "must_exclude": ["milk"]}), 0
    )
    assert (await grade(config(raw), "tea")).score == 1.0
    assert (await grade(config(raw), "tea with milk")).score == 0.0


# --- url_match and program_html

LAST = "http://git.test/me/plants/-/issues/?label=garden"
STAR = "document.querySelector('.star').outerText"


def git(star: Any = 1, text: str = "Issues: Garten") -> Page:
    return Page(LAST, {LAST: {"html": f"<p>{text}</p>"}, "http://git.test/me/plants": {"html": "", STAR: star}})


async def test_address_and_pages_together(tasks: dict[int, Config]) -> None:
    page = git()
    found = await grade(tasks[9004], at=LAST, page=page)
    assert found.score == 1.0 == found.partial and found.abstained is None
    assert page.visits == ["http://git.test/me/plants"]  # the last page was looked at before
    assert [part.name for part in found.parts] == ["url_match", "program_html 0", "program_html 1"]


async def test_a_text_of_a_page_may_be_judged() -> None:
    check = {"url": "last", "locator": "document.title", "required_contents": {"fuzzy_match": ["a refund", "12.99"]}}
    rules = WebArenaEval.model_validate({"eval_types": ["program_html"], "program_html": [check]})
    seen, judge = (PageText(address="http://x/", text="Refund of 12.99, please"),), Says("passed")
    found = await evaluate(rules, question="Ask for it", answer="", last_url="http://x/", seen=seen, judge=judge)
    assert found.score == 1.0
    assert judge.asked == [("Ask for it", "a refund, 12.99", "Refund of 12.99, please", False)]
    alone = await evaluate(rules, question="Ask for it", answer="", last_url="http://x/", seen=seen)
    assert alone.score is None and alone.abstained and "needs a judge" in alone.abstained


async def test_text_of_a_selector() -> None:
    asked = "document.querySelector(\".price\")?.textContent ?? ''"
    page = Page("http://x/", {"http://x/": {asked: "$ 12"}})
    for selector, text in ((".price", "$ 12"), ("][", "")):
        program = f"func:get_query_text(__page__, '{selector}')"
        assert await call(program, HELPERS, page=page, last_url="http://x/") == text


async def test_the_page_is_reloaded_and_the_last_page_is_not() -> None:
    page = Page("http://git.test/x", {"http://git.test/x": {"html": "saved"}})
    checks = [PageCheck(url=url, required_contents={"must_include": ["saved"]}) for url in (page.at, "last", page.at)]  # type: ignore[arg-type]
    rules = WebArenaEval(eval_types=(EvalType.PROGRAM_HTML,), program_html=tuple(checks))
    await read_pages(rules, page, page.at)
    assert page.visits == ["http://git.test/x"] * 2


async def test_the_product_and_the_partial_score(tasks: dict[int, Config]) -> None:
    found = await grade(tasks[9004], at=LAST, page=git(text="Issues: none"))
    # url_match 1; program_html (1 + 1/2) / 2
    assert found.score == 0.0 and found.partial == pytest.approx((1 + 0.75) / 2)
    assert "lacks 'garden |OR| Garten'" in found.parts[2].evidence
    assert (await grade(tasks[9004], at="http://git.test/", page=git())).parts[0].value == 0.0


async def test_absent_content_scores_zero_and_no_answer_is_none(
    tasks: dict[int, Config],
) -> None:
    for star in (None, PageScriptError("no .star"), 2, ""):
        assert (await grade(tasks[9004], at=LAST, page=git(star))).score == 0.0
    down = await grade(tasks[9004], at=LAST, page=git(BrowserError("the page crashed")))
    assert down.score is None and down.abstained == "program_html 0: BrowserError: the page crashed"
    gone = await grade(tasks[9004], at=LAST, page=Page(LAST, {LAST: {"html": "garden issues"}}))
    assert gone.score is None and "does not answer" in str(gone.abstained)
    none = await grade(tasks[9004], at=LAST)
    assert none.score is None and none.partial == 1.0 and "no page" in str(none.abstained)


async def test_entities_are_read_as_what_they_stand_for(tasks: dict[int, Config]) -> None:
    assert (await grade(tasks[9004], at=LAST, page=git(text="issues in the g&#97;rden"))).score == 1.0


POST = "http://reddit.test/f/books/77/"
LAST_COMMENT = "http://reddit.test/f/books/77/title/-/comment/5"
BOLD = "[...document.querySelectorAll('b')].at(-1).outerText"


def reddit() -> Page:
    return Page(LAST_COMMENT, {POST: {"html": "", BOLD: "Upvoted"}, LAST_COMMENT: {"html": ""}})


async def test_an_unknown_helper_is_unavailable_and_says_so(tasks: dict[int, Config]) -> None:
    page = reddit()
    found = await grade(tasks[9005], at=LAST_COMMENT, page=page)
    assert found.score is None and found.partial == 1.0 and page.visits == [POST]
    assert "no helper 'gitlab_get_project_memeber_role'; there are get_query_text, reddit_get_post_url" in str(
        found.abstained
    )
    assert page.ran == ["document.querySelector('details').open = true", BOLD]  # a failed preparation does not matter


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("func:post()", "does not take these arguments: missing a required argument"),
        ("func:post('a', 'b')", "does not take these arguments: too many"),
        ("func:post(7)", "can do nothing with these arguments"),
        ("func:post('http://[')", "can do nothing with these arguments"),
        ("func:late('x')", "can do nothing with these arguments: inside"),
    ],
)
async def test_arguments_that_a_helper_cannot_use_make_it_unavailable(program: str, cause: str) -> None:
    async def late(text: str) -> str:
        raise TypeError("inside")

    helpers = {"post": reddit_get_post_url, "late": late}
    with pytest.raises(UnknownHelper, match=cause):
        await call(program, helpers, page=None, last_url="")


async def test_helpers_are_given_the_page(tasks: dict[int, Config]) -> None:
    page, seen = reddit(), []

    async def role(shown: object, name: str) -> str:
        seen.append((shown, name))
        return "Guest"

    async def given(helper: Callable[..., Awaitable[str]]) -> EvaluatorResult:
        return await grade(
            tasks[9005],
            at=LAST_COMMENT,
            page=reddit() if seen else page,
            helpers={"gitlab_get_project_memeber_role": helper},
        )

    assert (await given(role)).score == 1.0 and seen == [(page, "me")]

    async def narrow() -> str:
        return ""

    assert "does not take these arguments" in str((await given(narrow)).abstained)


LONG = "start " + "secret " * 3000


@pytest.mark.parametrize(
    ("wanted", "text", "value", "most"),
    [
        ({"must_include": ["roses", "tulips |OR| Lilies"]}, f"{LONG} Roses and lilies {LONG}", 1, 500),
        ({"must_include": ["roses", "tulips"]}, f"{LONG} roses {LONG}", 0.5, 500),
        ({"must_include": ["roses"]}, LONG, 0, 500),
        ({"exact_match": "roses"}, f"roses{LONG}", 0, MAX_TEXT),
        ({"exact_match": LONG[:MAX_TEXT]}, LONG, 0, len(LONG)),
        ({"exact_match": LONG}, LONG, 1, len(LONG)),
        ({"must_include": ["roses"]}, "secret roses", 1, 12),
    ],
)
def test_of_a_long_page_as_much_is_kept_as_the_comparison_needs(
    wanted: dict[str, Any], text: str, value: float, most: int
) -> None:
    check = PageCheck.model_validate({"url": "last", "locator": "", "required_contents": wanted}, strict=False)
    kept = as_needed(check, text)
    assert len(kept) <= most
    for each in (kept, text):
        assert compare_page(check, PageText(address="", text=each))[0] == value


@pytest.mark.parametrize(
    "program",
    ["func:__import__('os').system('x')", "func:f(open('x'))", "func:f(x)", "func:f(a=1)", "func:f(", "func:", "func:f", "func:f(*[1])",
     "func:f('\x00')\x00", "func:" + "(" * 5000],
)  # fmt: skip
def test_programs_are_never_run_as_python(program: str) -> None:
    with pytest.raises(UnknownHelper):
        read_helper_call(program)


def test_calls_are_read() -> None:
    assert read_helper_call("func:f('a\\'b', 2, __page__, None)") == ("f", ["a'b", 2, PAGE, None])


async def test_a_last_address_with_quotes_stays_data(tasks: dict[int, Config]) -> None:
    at = "http://reddit.test/f/x')or('/77/t"
    page = Page(at, {at: {"html": ""}})
    await grade(tasks[9005], at=at, page=page)
    assert page.visits == ["http://reddit.test/f/x')or('/77/"]


async def test_addresses_that_are_not_known_are_unavailable() -> None:
    task = config(broken(lambda raw: None))
    found = await grade(task, at=LAST, page=git())
    assert found.score is None and "the address of __GITLAB__ is not known" in str(found.abstained)


async def test_post_addresses() -> None:
    assert (await reddit_get_post_url(LAST_COMMENT)) == POST
    assert (await reddit_get_post_url("http://reddit.test/u/me")) == "http://reddit.test/u/me"


# --- the scores

PARTS = st.lists(st.tuples(st.sampled_from(EvalType), st.none() | st.sampled_from([0.0, 0.5, 1.0])), min_size=1).map(
    lambda rows: tuple(Part(evaluator=evaluator, name="p", value=value, evidence="") for evaluator, value in rows)
)


@given(PARTS)
def test_scores_are_bounded_and_agree(parts: tuple[Part, ...]) -> None:
    whole, share = product(parts), partial(parts)
    assert whole in (None, 0.0, 1.0) and (share is None or 0 <= share <= 1)
    if whole == 1.0:
        assert share == pytest.approx(1.0)
    better = tuple(part.model_copy(update={"value": None if part.value is None else 1.0}) for part in parts)
    assert partial(better) is None if share is None else partial(better) >= share  # type: ignore[operator]
    assert product(better) != 0.0
