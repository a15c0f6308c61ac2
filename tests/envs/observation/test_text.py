"""The text rendering keeps its budget and says what it cut."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from envs.observation.text import Page, TextPiece, describe, fit
from envs.types import Element, Hidden

words = st.text(alphabet="ab c", min_size=1, max_size=600).filter(lambda text: bool(text.strip()))
counts = st.integers(0, 2000)


@st.composite
def pages(draw: st.DrawFn) -> Page:
    number = 0
    lines = []
    for line in draw(st.lists(st.lists(st.tuples(st.booleans(), words), min_size=1, max_size=4), max_size=30)):
        pieces = []
        for is_element, text in line:
            number += is_element
            pieces.append(TextPiece(f'[{number}] link "{text[:80]}"', number) if is_element else TextPiece(text))
        lines.append(pieces)
    return Page(lines, draw(counts))


hiddens = st.builds(Hidden, above=counts, below=counts, beside=counts, covered=counts, over_limit=counts)


@given(pages(), hiddens, st.integers(0, 3000))
def test_the_budget_is_never_exceeded(page: Page, hidden: Hidden, budget: int) -> None:
    assert len(fit(page, hidden, budget)[0]) <= budget


@given(pages(), hiddens)
def test_with_room_nothing_is_cut(page: Page, hidden: Hidden) -> None:
    text = fit(page, hidden, 1_000_000)[0]
    for line in page.lines:
        assert " ".join(piece.words for piece in line) in text
    assert "cut" not in text.split("\n")[-1] or not text.split("\n")[-1].startswith("…")


@given(pages(), st.integers(300, 3000))
def test_elements_are_kept_before_words_and_every_loss_is_counted(page: Page, budget: int) -> None:
    text = fit(page, Hidden(), budget)[0]
    elements = [piece.element for line in page.lines for piece in line if piece.element]
    kept = [number for number in elements if f"[{number}] " in text]
    assert kept == elements[: len(kept)]
    lost = re.search(r"(\d+) (?:more elements? )?left out", text)
    assert (int(lost[1]) if lost else 0) == len(elements) - len(kept)
    if len(kept) < len(elements):
        prose = [piece.words for line in page.lines for piece in line if not piece.element]
        assert not any(passage in text.split("\n") for passage in prose)


def test_the_last_line_says_what_was_cut() -> None:
    page = Page([[TextPiece('[1] link "a"', 1)], [TextPiece("x" * 2_400)], [TextPiece('[2] button "b"', 2)]], 0)
    text = fit(page, Hidden(below=14), 160)[0]
    lines = text.split("\n")
    assert lines[0] == '[1] link "a"' and lines[1] == "x" * 40 + "…" and lines[2] == '[2] button "b"'
    assert lines[3] == "… 14 more elements below, 2,360 characters of text cut"
    assert fit(Page([], 5), Hidden(above=1, covered=2), 200)[0] == (
        "… 1 more element above, 2 covered, 5 characters of text out of view"
    )


def test_an_element_is_written_with_its_state() -> None:
    element = Element(
        index=3, tag="select", text="Size", value="M", box=(0, 0, 1, 1), id="form.size", options=tuple("SMLABCDEF")
    )
    assert describe(element) == '[3] select "Size" value "M" (S, M, L, A, B, C and 3 more)'
    away = Element(index=1, tag="checkbox", text="", checked=True, disabled=True, in_viewport=False, box=(0, 0, 1, 1))
    assert describe(away) == "[1] checkbox checked disabled offscreen"
