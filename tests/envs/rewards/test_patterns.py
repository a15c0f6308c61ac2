"""Regular expressions of rubrics: they find what Python's `re` finds in texts of any length, or are
refused when a rubric is read."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.rewards import GradingEvidence, grade_by_program
from envs.rewards.compare import find_text, same_page
from envs.types.patterns import Undecided, check_pattern, search
from envs.types.rubrics import AnswerFact, DownloadFact, ElementQuery, Match, TextFact, UrlFact
from tests.builders import make_observation, make_rubric

REFUSED = {
    r"(.)\1+": "not supported",
    r"(?P<a>x)(?P=a)": "not supported",
    r"total(?= paid)": "lookarounds",
    r"(?<!not )paid": "lookarounds",
    r"(a)?(?(1)b|c)": "not supported",
    r"a*+b": "possessive",
    r"(?>a)b": "not supported",
    r"(?x)a b": "not supported",
    "a{1001}": "repetition size",
    "[[:alpha:]]": "within",  # not the same in `re` and RE2
    r"[\W]": "within",
    r"\pL": "no regular expression",
    "(": "no regular expression",
    "x" * 1001: "1001 characters",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_patterns_without_a_linear_bound_are_refused_on_reading(pattern: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[pattern]):
        check_pattern(pattern)
    if len(pattern) > 500:
        return
    for make in (
        lambda: TextFact(id="f", text=pattern, match=Match.REGEX),
        lambda: UrlFact(id="f", url=pattern, match="regex"),
        lambda: AnswerFact(id="f", expected=(pattern,), match="regex"),
        lambda: ElementQuery(text=pattern, match=Match.REGEX),
        lambda: DownloadFact(id="f", name=pattern, match=Match.REGEX),
    ):
        with pytest.raises(ValidationError) as refused:
            make()
        assert len(refused.value.errors()) == 1 and REFUSED[pattern] in str(refused.value)


HARD = (r"(a+)+b", r"(a*)*b", r"(a|aa)+$b", r"(\w+\s?)+:$", "a?" * 30 + "a" * 30 + "b", r".*.*.*.*b", r"(.*a){12}b")
"""Exponential or of a high power in `re`; each is true of a text only at its very end."""


@pytest.mark.parametrize("pattern", [*HARD, r"order \d+ confirmed"])
@pytest.mark.parametrize("when", ["end", "ever"])
def test_a_pattern_is_found_at_the_end_of_the_longest_page(pattern: str, when: str) -> None:
    """The text is found wherever it stands: after 3 pages of 24 lines, each as long as an
    observation may be."""
    filler = "\n".join(["a" * 8_000] * 24)
    last = {r"(\w+\s?)+:$": "aa:", r"order \d+ confirmed": "order 12 confirmed", r"(a|aa)+$b": "never"}.get(
        pattern, "a" * 40 + "b"
    )
    pages = [make_observation(text) for text in (filler, f"{filler}\n{last}")]
    rubric = make_rubric({"type": "text", "match": "regex", "text": pattern, "when": when})
    (part,) = grade_by_program(rubric, GradingEvidence(final=pages[1])).parts
    assert part.value == (last != "never")
    assert grade_by_program(rubric, GradingEvidence(final=pages[0])).parts[0].value == 0


def test_what_is_found_is_what_python_finds() -> None:
    assert search(r"order (\d+)", ["nothing", "your Order 12 is"], ignore_case=True) == "Order 12"
    assert search(r"order \d+", ["your Order 12 is"]) is None
    assert find_text(r"to\w+", Match.REGEX, ["grand total"]) == "total"
    assert same_page(r"/item/\d+$", "regex", "http://shop/item/7")
    assert search("b", ["\ud800b"]) == "b"  # half a pair, as a page may have it
    # Case is folded by the pattern, not in the text: "ß" would be "ss", which the pattern is not.
    rubric = make_rubric({"type": "answer", "match": "regex", "expected": r"^hauptstraße \d+"})
    assert grade_by_program(rubric, GradingEvidence(answer="HAUPTSTRAßE 7")).parts[0].value == 1


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"\bnoir\b", "un café noir", "noir"),
        (r"\bété\b", "L'été dernier", "été"),
        (r"\bt\b", "l'été", None),  # RE2 by itself finds one
        (r"\bcaf\w+\b", "deux cafés.", "cafés"),
        (r"\Bnoir", "énoir", "noir"),
        (r"\bшт\b", "3 шт.", "шт"),
        (r"(?i)\bÉTÉ\b", "un été", "été"),
        (r"total\s+\d+", "total\u00a0 12", "total\u00a0 12"),  # as an address may have it
    ],
)
def test_boundaries_and_spaces_beside_other_letters_are_decided(pattern: str, text: str, found: str | None) -> None:
    check_pattern(pattern)
    long = "ñandú " * 2_000 + text
    assert search(pattern, ["", text]) == found == search(pattern, [long])
    rubric = make_rubric({"type": "answer", "match": "regex", "expected": pattern})
    bundle = grade_by_program(rubric, GradingEvidence(answer=text))
    assert bundle.parts[0].value == float(found is not None) and not bundle.abstained


def test_only_a_flag_within_the_pattern_and_a_turkish_letter_are_undecided() -> None:
    with pytest.raises(Undecided, match="ignores case in a part"):
        search("(?i:i)d", ["ıd"])
    assert search("(?i:i)d", ["ıd", "x Id"]) == "Id"
    assert search(r"(?:i)d", ["ıd"]) is None and search(r"\(?i:d", ["ıi:d"]) == "i:d"


CLASSES = [
    *("[aé]", "[^a]", r"[\w-]", r"[\s\S]", r"[^\d]", "[]a]", "[-i]", "[^]i]", "[h-j]", r"[\S]", r"[^\s]"),
    *(".", r"\d", r"\w", r"\D", r"\W", r"\s", r"\S", r"\b", r"\B", r"\b", "{", "]"),
]
OTHERS = [
    "a",
    "B",
    "é",
    "ß",
    "7",
    "_",
    r"\.",
    r"\x41",
    r"\u00e9",
    "$",
    "^",
    r"\A",
    r"\Z",
    "|",
    "i",
    "ı",
    r"\u0130",
    r"\101",
]
GROUPS = ["(a|b)", "(?:ab|c)", "(?P<n>a)", "(?i:b)", r"(?:\ba|\Bé)", r"(\b)"]
ATOMS = st.sampled_from([*CLASSES, *OTHERS, *GROUPS])
REPEATED = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{,2}", "{,}", "*?", "+?"])
PATTERNS = st.builds(
    lambda pieces, flag: flag + "".join(pieces),
    st.lists(st.builds(lambda atom, times: atom + times, ATOMS, REPEATED), min_size=1, max_size=6),
    st.sampled_from(["", "", "(?i)", "(?s)", "(?m)", "(?s)(?i)"]),
)


@given(PATTERNS, st.text("abAB éÉßẞ7٣_.-²iıİсд中\xa0\x1f", max_size=12), st.booleans())
@example("a{,2}é", "aaé", False)
@example("[{,2}]", "0", False)
@example(r"[]\w]+", "]é", False)
@example("[]a]+b", "]ab", False)
@example("[^]a]b", "]b", False)
@example(r"\B", "", False)
@example(r"\bab\b", "éab ab", False)
@settings(deadline=None)
def test_what_is_allowed_matches_what_python_matches(pattern: str, text: str, ignore_case: bool) -> None:
    try:
        check_pattern(pattern)
    except ValueError:
        return
    found = re.search(pattern, text, re.IGNORECASE if ignore_case else 0)
    try:
        assert search(pattern, [text], ignore_case=ignore_case) == (found[0] if found else None)
    except Undecided:
        assert "(?i:" in pattern and ("ı" in text or "İ" in text)


def test_the_shared_syntax_is_allowed() -> None:
    for pattern in (
        r"\bthanks?\b",
        r"^\s*\$[\d,.]+$",
        "(?i)paid",
        r"(foo|bar)+",
        r"(\w+\s?)+$",
        r"[\s\S]*x",
        r"a{,3}",
        "",
        r"\Aa\Z",
    ):
        check_pattern(pattern)
