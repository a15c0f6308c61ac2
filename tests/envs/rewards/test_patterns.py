"""Regular expressions of rubrics: which are refused, and that the others end soon on the worst texts."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.rewards.compare import find_text, same_page
from envs.types.patterns import LONGEST, bounds, search
from envs.types.rubrics import AnswerFact, ElementQuery, Match, TextFact, UrlFact

USUAL = {
    r"\bthanks?\b": 100_000,
    r"order \d+ confirmed": 10_000,
    r"\$[\d,.]+$": 10_000,
    r"/orders/\d+/$": 10_000,
    r"\d{1,3}(,\d{3})+": 10_000,
    r"(foo|bar)+": 10_000,
    r"[^,]*,[^,]*,x": 10_000,
    r"^\s*\w+ \w+$": 10_000,  # ^ takes away one power, the last repetition adds one
    r".*total": 10_000,
    r"^.*total": 100_000,
    r".*total.*x": 669,  # 669**3 / 6 is 5e7
    r".*.*.*x": 186,  # 186**4 / 24
    "": 100_000,
}


@pytest.mark.parametrize("pattern", USUAL)
def test_how_much_of_a_text_is_searched(pattern: str) -> None:
    found = bounds(pattern).longest
    assert found == USUAL[pattern] or abs(found - USUAL[pattern]) <= 1


REFUSED = {
    r"(a+)+": "inside of a repetition",
    r"(a*)*b": "inside of a repetition",
    r"(\w+\s?)+$": "inside of a repetition",
    r"(a?){30}": "inside of a repetition",
    r"((a{1,9}){9})x": "inside of a repetition",
    r"(ab|abc)+d": "can begin alike",  # which Python reads as (ab(|c))+
    r"(.|ab)*c": "can begin alike",
    r"(.)\1+": "around or back",
    r"(a)b\1": "refers to one of its groups",
    r"((?=a)a)+": "around or back",
    r".*.*.*.*x": "too many repetitions",
    "a?" * 30 + "a" * 30: "too many repetitions",
    "a{0,99}" * 5 + "b": "too many repetitions",
    "(": "no regular expression",
    "x" * 1001: "1001 characters",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_has_no_bound_is_refused_when_the_rubric_is_read(pattern: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[pattern]):
        bounds(pattern)
    for make in (
        lambda: TextFact(id="f", text=pattern, match=Match.REGEX),
        lambda: UrlFact(id="f", url=pattern[:500] if len(pattern) <= 500 else "(a+)+", match="regex"),
        lambda: AnswerFact(id="f", expected=(pattern,), match="regex"),
        lambda: ElementQuery(text=pattern, match=Match.REGEX),
    ):
        with pytest.raises(ValidationError):
            make()


@pytest.mark.parametrize("pattern", [r".*.*x", r"\d+x", r"\s+\s+x", r"(?:a|b)+c", r"^.*a.*b"])
@pytest.mark.parametrize("sign", ["a", "1", " "])
def test_the_worst_texts_end_soon(pattern: str, sign: str) -> None:
    started = time.process_time()
    assert search(pattern, [sign * 1_000_000] * 1000) is None
    assert time.process_time() - started < 20  # without a bound: years


def test_what_lies_within_is_found_as_python_finds_it() -> None:
    assert search(r"order (\d+)", ["nothing", "your Order 12 is"], ignore_case=True) == "Order 12"
    assert search(r"order \d+", ["your Order 12 is"]) is None
    assert search("x$", ["a" * (LONGEST - 1) + "x"]) == "x"
    assert search("x", ["a" * LONGEST + "x"]) is None  # no further than it may
    assert find_text(r"to\w+", Match.REGEX, ["grand total"]) == "total"
    assert same_page(r"/item/\d+$", "regex", "http://shop/item/7")


PIECES = st.sampled_from(
    ["a", "b", ".", r"\d", "[ab]", "(a|b)", "(ab|c)", "a*", "b+", ".*", "a?", "(a|ab)*", "$", r"\b", "^"]
)


@given(st.lists(PIECES, min_size=1, max_size=6).map("".join), st.text("ab1 ", max_size=40))
def test_what_is_allowed_finds_what_python_finds(pattern: str, text: str) -> None:
    try:
        bounds(pattern)
    except ValueError:
        return
    found = re.search(pattern, text)
    assert search(pattern, [text]) == (found[0] if found else None)
