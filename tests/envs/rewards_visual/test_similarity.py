"""DOM similarity: the arithmetic by hand, and its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.rewards.chromiumrl import DomNode, DomSnapshot, Mode, dom_similarity
from envs.rewards.chromiumrl.pairs import (
    PROPERTIES,
    box_overlap,
    overlaps,
    property_similarity,
    style_similarity,
    word_similarities,
    word_similarity,
)
from envs.types import JudgeError
from tests.envs.rewards_visual.pages import Page, listing

MODES: tuple[Mode, ...] = ("chromiumrl", "native")
WORDS = st.lists(st.sampled_from(["red", "green", "blue", "one", "two"]), max_size=4).map(" ".join)


def test_words_are_compared_as_sets() -> None:
    assert word_similarity("a b c", "c b d") == 0.5 and word_similarity("", "") == 1 and word_similarity("a", "") == 0
    assert word_similarity("a b", "b a a") == 1


@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=5))
def test_all_pairs_at_once_are_the_single_ones(first: list[str], second: list[str]) -> None:
    expected = [[word_similarity(a, b) for b in second] for a in first]
    assert np.allclose(word_similarities(first, second), np.array(expected).reshape(len(first), len(second)))


def test_boxes_overlap_by_intersection_over_union() -> None:
    assert box_overlap((0, 0, 10, 10), (5, 0, 10, 10)) == pytest.approx(1 / 3)
    assert (
        box_overlap((0, 0, 0, 0), (0, 0, 0, 0)) == 1
        and box_overlap(None, None) == 1
        and box_overlap(None, (0, 0, 9, 9)) == 0
    )
    boxes = [None, (0.0, 0.0, 10.0, 10.0), (20.0, 0.0, 10.0, 10.0)]
    assert np.array_equal(overlaps(boxes, boxes), np.eye(3))


@pytest.mark.parametrize(
    ("name", "first", "second", "value"),
    [
        ("color", "rgb(0, 0, 0)", "rgb(255, 255, 255)", 0),
        ("color", "rgb(0, 0, 0)", "#ff0000", 1 - 1 / 3**0.5),
        ("font-size", "16px", "20px", 0.8),
        ("font-size", "16px", "0.5px", 0),
        ("padding", "1px 2px", "1px 3px", 0),
        ("width", "auto", "10px", 0),
        ("opacity", "1", "0.5", 0.5),
        ("display", "block", "flex", 0),
        ("border", "none", "none", 1),
    ],
)
def test_styles_by_property(name: str, first: str, second: str, value: float) -> None:
    assert property_similarity(name, first, second) == pytest.approx(value)


def test_the_style_mean_has_19_properties_or_those_known() -> None:
    assert len(PROPERTIES) == 19
    one, other = {"opacity": "1", "display": "block"}, {"opacity": "1", "display": "flex"}
    assert style_similarity(one, other, native=False) == pytest.approx(18 / 19)
    assert style_similarity(one, other, native=True) == 0.5
    assert style_similarity({}, {}, native=True) == 1 and style_similarity(one, {}, native=True) == 0
    black, clear = {"color": "rgb(0, 0, 0)"}, {"color": "rgba(0, 0, 0, 0)"}
    assert style_similarity(black, clear, native=False) == 1 and style_similarity(black, clear, native=True) < 1e-9


def test_one_changed_text_by_hand() -> None:
    """The region is the paragraph: its own text loses half its words."""
    reference, live = listing("the red car", "stays"), listing("the red bus", "stays")
    native = dom_similarity(reference, live)
    assert native.text == pytest.approx(0.5) and native.structural == native.layout == native.style == 1
    assert native.score == pytest.approx(0.3 + 0.3 * 0.5 + 0.2 + 0.2) and native.changed == 1
    assert native.regions == ("/html[1]/body[1]/p[1]",)
    assert native.page_score == pytest.approx(1 - 0.3 * 0.5 / 2)  # one text of two
    # 0.7 * 0.5 + 0.2 + 0.1 = 0.65 is too little for ChromiumRL's third pass: the paragraph counts
    # as replaced.
    greedy = dom_similarity(reference, live, "chromiumrl")
    assert (greedy.structural, greedy.text, greedy.layout, greedy.style) == (0, 1, 1, 1)
    assert greedy.score == pytest.approx(0.7) and (greedy.inserted, greedy.deleted) == (2, 2)


def test_the_third_greedy_pass_accepts_what_is_nearly_equal() -> None:
    words = [
        "a",
        "b",
        "c",
        "d",
        "e",
        "f",
        "g",
        "h",
        "i",
        "j",
        "k",
        "l",
        "m",
        "n",
        "o",
        "p",
        "q",
        "r",
        "s",
        "t",
        "u",
        "v",
        "w",
        "x",
        "y",
        "z",
    ]
    reference, live = listing(" ".join(["0", *words])), listing(" ".join(["1", *words]))
    greedy = dom_similarity(reference, live, "chromiumrl")
    assert greedy.text == pytest.approx(26 / 28) and greedy.structural == 1 and greedy.deleted == 0


def test_nearly_equal_long_texts_get_a_bonus() -> None:
    """Far apart, 0.7 * 23/25 + 0.1 is too little, and enough with 0.7 * 0.2 more."""
    words = list("abcdefghijklmnopqrstuvw")
    reference, live = listing(" ".join(["0", *words])), listing(" ".join(["1", *words]), top=500)
    assert dom_similarity(reference, live, "chromiumrl").deleted == 0
    reference, live = listing(" ".join(["0", *words[:22]])), listing(" ".join(["1", *words]), top=500)  # 22/25
    assert dom_similarity(reference, live, "chromiumrl").deleted > 0


@pytest.mark.parametrize(("right", "changed"), [(5, 0), (10, 1)])
def test_a_box_has_changed_below_an_overlap_of_95_percent(right: float, changed: int) -> None:
    def page(left: float) -> DomSnapshot:
        made = Page()
        made.add(made.body(), "p", "words", (left, 0, 300, 20))
        return made.snapshot()

    assert dom_similarity(page(0), page(right)).changed == changed


def test_regions_count_by_their_changed_paths() -> None:
    def page(first: str, second: str) -> DomSnapshot:
        made = Page()
        section = made.add(made.add(made.body(), "main"), "section")
        for at, texts in enumerate(([f"{first} 1", f"{first} 2", f"{first} 3"], [second])):
            box = made.add(section, "div", box=(0, 200 * at, 300, 100))
            for row, text in enumerate(texts):
                made.add(box, "p", text, (0, 200 * at + 30 * row, 300, 20))
        return made.snapshot()

    found = dom_similarity(page("the red", "one two"), page("the blue", "one three"))
    assert len(found.regions) == 2 and found.changed == 4
    assert found.text == pytest.approx((3 * 2 / 4 + 1 / 3) / 4)


@pytest.mark.parametrize("mode", MODES)
def test_a_page_is_itself(mode: Mode) -> None:
    page = listing("one", "two", "two")
    same = dom_similarity(page, page, mode)
    assert same.score == same.page_score == 1 and (same.changed, same.inserted, same.deleted) == (0, 0, 0)
    assert same.part(3).value == 1 and same.part().name == "dom_similarity"


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_page_matches_nothing(mode: Mode) -> None:
    empty = dom_similarity(listing("one", "two"), DomSnapshot(), mode)
    assert empty.structural == 0 and empty.matched == 0
    assert (empty.score, empty.page_score) == ((0, 0) if mode == "native" else (pytest.approx(0.7),) * 2)
    with pytest.raises(JudgeError, match="has no nodes"):
        dom_similarity(DomSnapshot(), listing("one"), mode)


PARAGRAPHS = st.lists(WORDS, min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(PARAGRAPHS, PARAGRAPHS, st.sampled_from(MODES))
def test_scores_are_bounded_and_nodes_are_matched_once(texts: list[str], others: list[str], mode: Mode) -> None:
    first, second = listing(*texts), listing(*others)
    found = dom_similarity(first, second, mode)
    for value in (found.structural, found.text, found.layout, found.style, found.score, found.page_score):
        assert value is None or 0 <= value <= 1
    assert found.matched + found.deleted <= len(first.nodes) and found.matched + found.inserted <= len(second.nodes)
    if mode == "native" and [set(text.split()) for text in texts] != [set(text.split()) for text in others]:
        assert found.page_score < 1


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 5))
def test_on_the_whole_page_every_repair_pays(order: list[int], repaired: int) -> None:
    wanted = [f"text number {at}" for at in range(6)]
    worse = [f"other words {at}" if at in order[: repaired + 1] else text for at, text in enumerate(wanted)]
    better = [f"other words {at}" if at in order[:repaired] else text for at, text in enumerate(wanted)]
    scores = [dom_similarity(listing(*wanted), listing(*texts)).page_score for texts in (worse, better)]
    assert scores[0] < scores[1]


def test_in_the_changed_regions_a_repair_may_cost() -> None:
    """Why there is a score of the whole page: the better of two faults no longer counts once it is
    repaired."""
    wanted, worse = listing("a b c d", "e f g h"), listing("a b c x", "e y z w")
    better = listing("a b c d", "e y z w")
    both, one = dom_similarity(wanted, worse), dom_similarity(wanted, better)
    assert one.score < both.score and one.page_score > both.page_score


def test_assignment_is_optimal_where_the_nearest_is_wrong() -> None:
    """Two equal labels: the first one's nearest partner is the second one's."""

    def page(left: float, right: float, names: str) -> DomSnapshot:
        made = Page()
        body = made.body()
        for name, x in zip(names, (left, right), strict=True):
            made.add(body, "span", "Edit", (x, 0, 100, 20), id=name)
        return made.snapshot()

    reference, live = page(100, 160, "ab"), page(140, 40, "cd")
    native, greedy = dom_similarity(reference, live), dom_similarity(reference, live, "chromiumrl")
    assert native.layout == pytest.approx((40 / 160 + 80 / 120) / 2)  # a-d, b-c
    assert greedy.layout == pytest.approx((60 / 140 + 0) / 2)  # a-c, b-d


def test_tables_are_refused_by_name() -> None:
    html = DomNode(tag="html", xpath="/html[1]")
    with pytest.raises(ValidationError, match="parent 0 must come before"):
        DomSnapshot(nodes=(html.model_copy(update={"parent": 0}),))
    with pytest.raises(ValidationError, match="colour"):
        DomNode.model_validate({"tag": "html", "xpath": "/html[1]", "colour": "red"})


def test_unlaid_nodes_have_no_layout_to_compare() -> None:
    def hidden(text: str) -> DomSnapshot:
        page = Page()
        page.add(page.body(), "p", text, None, styles={})
        return page.snapshot()

    found = dom_similarity(hidden("one two"), hidden("one three"))
    assert found.layout is None and found.style is None
    assert found.score == pytest.approx((0.3 * 1 + 0.3 / 3) / 0.6)
