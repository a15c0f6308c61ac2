"""The weak points of ChromiumRL's arithmetic (facts section 2.6): reproduced in one mode, right in
the other.

(a), (b) and (c), signals that are 0 without having been measured, are in test_quality.py.
"""

from __future__ import annotations

import pytest

from envs.rewards.chromiumrl import DomSimilarity, DomSnapshot, dom_similarity
from tests.envs.rewards_visual.pages import STYLE, Page, listing


def both(reference: DomSnapshot, live: DomSnapshot) -> tuple[DomSimilarity, DomSimilarity]:
    return dom_similarity(reference, live, "chromiumrl"), dom_similarity(reference, live, "native")


@pytest.mark.parametrize(("kind", "tag"), [("frame", "iframe"), ("shadow", "pay-form")])
def test_d_e_frames_and_shadow_roots_are_compared(kind: str, tag: str) -> None:
    def page(text: str) -> DomSnapshot:
        made = Page()
        host = made.add(made.body(), tag)
        made.add(host, "p", text, enter=kind)
        return made.snapshot()

    theirs, ours = both(page("paid 10 euro"), page("paid 99 euro"))
    assert theirs.score == 1 and theirs.changed == 0
    assert ours.text == 0.5 and ours.changed == 1 and ours.regions == (f"/{kind}:/html[1]/body[1]/{tag}[1]/p[1]",)


def test_f_live_form_values_are_compared() -> None:
    """One checkbox and five fields and options that no attribute shows."""

    def page(done: bool) -> DomSnapshot:
        made = Page()
        body = made.body()
        made.add(body, "input", type="checkbox", state={"checked": str(done).lower()})
        for at in range(3):
            made.add(body, "input", name=f"n{at}", state={"value": "7" if done else ""})
        for at in range(2):
            selected = str(at == int(done)).lower()
            made.add(body, "option", f"choice {at}", state={"selected": selected})
        return made.snapshot()

    theirs, ours = both(page(True), page(False))
    assert theirs.score == 1 and theirs.changed == 0
    assert ours.changed == 6 and ours.score < 0.8 and ours.text is not None and ours.text < 1


def test_g_scrolling_changes_no_layout() -> None:
    def page(scrolled: float) -> DomSnapshot:
        made = Page()
        body = made.body((0, scrolled))
        for at in range(40):
            made.add(body, "p", f"row {at}", (0, 30 * at - scrolled, 300, 20))
        made.add(body, "nav", "menu", (0, 0, 800, 30), styles=STYLE | {"position": "fixed"})
        return made.snapshot()

    theirs, ours = both(page(0), page(400))
    assert theirs.changed == 80 and theirs.layout is not None and theirs.layout < 0.1  # 40 paragraphs, 40 texts
    assert ours.changed == 0 and ours.score == ours.page_score == 1


def test_g_scrolling_of_an_element_and_of_a_frame_changes_no_layout() -> None:
    def page(scrolled: float) -> DomSnapshot:
        made = Page()
        body = made.body()
        pane = made.add(body, "div", box=(0, 0, 300, 100), scroll=(0, scrolled))
        made.add(pane, "p", "inside", (0, 150 - scrolled, 300, 20))
        frame = made.add(body, "iframe", box=(0, 200, 300, 100))
        html = made.add(frame, "html", box=(0, 200 - scrolled, 300, 900), enter="frame", scroll=(0, scrolled))
        made.add(html, "p", "framed", (0, 250 - scrolled, 300, 20))
        return made.snapshot()

    theirs, ours = both(page(0), page(60))
    assert theirs.changed > 0 and ours.changed == 0 and ours.page_score == 1


def test_h_unrelated_pages_are_told_apart() -> None:
    def page(*texts: str) -> DomSnapshot:
        made = Page()
        body = made.body()
        for at, text in enumerate(texts):
            made.add(made.add(body, "div", box=(0, 30 * at, 800, 25)), "p", text, (0, 30 * at, 300, 20))
        return made.snapshot()

    shop = page("add to cart", "free shipping", "customer reviews", "size guide", "returns policy", "gift cards")
    news = page("election night", "markets rally", "weather warning", "opinion today", "sports desk", "crossword fun")
    theirs, ours = both(shop, news)
    assert not theirs.cross_document and theirs.matched == 8  # html, body, and six empty div as if they were the same
    assert ours.cross_document and ours.matched == 0 and ours.score == ours.page_score == 0
    assert "unrelated pages" in ours.part().evidence
    assert not dom_similarity(shop, listing("free shipping", "customer reviews", "a", "b", "c")).cross_document


def test_i_the_work_does_not_grow_with_the_square() -> None:
    def counts(size: int) -> tuple[int, int]:
        reference, live = (listing(*(f"{word} number {at}" for at in range(size))) for word in ("old", "new"))
        theirs, ours = both(reference, live)
        return theirs.comparisons, ours.comparisons

    (theirs, ours), (more, our_more) = counts(128), counts(256)
    assert more == 4 * theirs and our_more == 2 * ours
    assert dom_similarity(listing("old number 3", "y"), listing("new number 3", "y")).matched == 4


def test_j_a_region_ends_with_a_whole_segment() -> None:
    def page(colour: str) -> DomSnapshot:
        made = Page()
        inner = made.add(made.add(made.add(made.body(), "main"), "section"), "article")
        for at in range(13):
            styles = STYLE | {"color": colour} if at in (0, 11) else STYLE
            made.add(inner, "div", f"cell {at}", (0, 30 * at, 90, 20), styles=styles)
        return made.snapshot()

    theirs, ours = both(page("rgb(0, 0, 0)"), page("rgb(255, 255, 255)"))
    path = "/html[1]/body[1]/main[1]/section[1]/article[1]"
    assert theirs.regions == (f"{path}/div[1",)  # so div[1], div[10], div[11], div[12], div[13], and no other
    assert theirs.style == pytest.approx(1 - 2 / 5 / 19)
    assert ours.regions == (path,)
    assert ours.style == pytest.approx(1 - 2 / 14 / 5)  # the article and 13 cells; five known properties


def test_k_what_was_only_inserted_is_no_perfect_match() -> None:
    theirs, ours = both(listing("one", "two"), listing("one", "two", "buy now"))
    assert (theirs.structural, theirs.text, theirs.layout, theirs.style) == (0, 1, 1, 1)
    assert (ours.structural, ours.text, ours.layout, ours.style) == (0, 0, 0, 0)
    assert theirs.score == pytest.approx(0.7) and ours.score == 0 and ours.page_score > 0.6
