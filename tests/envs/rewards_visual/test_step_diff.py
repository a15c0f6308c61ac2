"""Step diffs: eight known changes, what is flagged, other documents, truncation."""

from __future__ import annotations

import pytest

from envs.rewards.chromiumrl import DomSnapshot, step_diff
from envs.rewards.chromiumrl.step_diff import MAX_DIFF_TEXT, MAX_ENTRIES
from tests.envs.rewards_visual.pages import STYLE, Page, listing


def mutated(after: bool, identities: bool) -> DomSnapshot:
    """A page before or after eight changes, one of each kind."""
    page = Page(document="d1" if identities else "")
    body = page.body()
    known = iter(range(10, 100))

    def add(parent: int, tag: str, *rest: object, **more: object) -> int:
        number = next(known)
        return page.add(parent, tag, *rest, identity=number if identities else None, **more)  # type: ignore[arg-type]

    add(body, "p", "saved" if after else "draft", (0, 0, 100, 20), id="status")
    add(
        body,
        "div",
        "menu",
        (0, 30, 100, 20),
        id="menu",
        styles=STYLE | {"visibility": "hidden" if after else "visible"},
    )
    add(body, "img", "", (300 if after else 0, 60, 50, 50), id="logo")
    add(body, "a", "home", (0, 120, 100, 20), href="/b" if after else "/a")
    colour = "rgb(255, 0, 0)" if after else "rgb(0, 0, 0)"
    add(body, "h1", "Title", (0, 150, 100, 20), styles=STYLE | {"color": colour})
    add(body, "input", "", (0, 180, 100, 20), type="checkbox", name="news", state={"checked": str(after).lower()})
    old, new = add(body, "ul", "", (0, 210, 100, 100)), add(body, "ol", "", (0, 320, 100, 100))
    if not after:
        add(old, "li", "gone", (0, 210, 100, 20))
    else:
        next(known)
        add(add(new, "li", "", (0, 320, 100, 20)), "b", "fresh news", (0, 320, 100, 20))
    return page.snapshot()


@pytest.mark.parametrize("identities", [True, False])
def test_eight_known_changes_are_found_and_nothing_else(identities: bool) -> None:
    diff = step_diff(mutated(False, identities), mutated(True, identities))
    changes = {(change.kind, change.before, change.after, change.source) for change in diff.changed}
    assert changes == {
        ("text", "draft", "saved", "dom"),
        ("visibility", "visible", "hidden", "dom"),
        ("moved", "(0.0, 60.0)", "(300.0, 60.0)", "dom"),
        ("attr:href", "/a", "/b", "dom"),
        ("style:color", "rgb(0, 0, 0)", "rgb(255, 0, 0)", "dom"),
        ("attr:checked", "false", "true", "prop"),
    }
    assert len(diff.changed) == 6 and diff.flagged_changes == () and not diff.cross_document
    assert [(node.tag, node.text, node.nodes) for node in diff.added] == [("li", "fresh news", 2)]
    assert [(node.tag, node.text, node.nodes) for node in diff.removed] == [("li", "gone", 1)]
    assert diff.stats.totals == {"added": 1, "removed": 1, "changed": 6, "flagged_changes": 0}
    assert set(diff.stats.truncated.values()) == {0} and diff.schema_version == "1.0"


def test_nothing_changed() -> None:
    page = mutated(False, True)
    diff = step_diff(page, page)
    assert not (diff.added or diff.removed or diff.changed or diff.flagged_changes or diff.cross_document)


def test_what_an_insertion_pushes_down_is_flagged() -> None:
    before, after = listing("one", "two", "three", top=0), Page()
    body = after.body()
    for at, text in enumerate(("banner", "one", "two", "three")):
        after.add(body, "p", text, (0, 30 * at, 300, 20))
    diff = step_diff(before, after.snapshot())
    assert [node.text for node in diff.added] == ["banner"] and diff.changed == ()
    assert [(change.kind, change.flag) for change in diff.flagged_changes] == [("moved", "reflow")] * 3


def test_scrolling_is_one_flagged_entry() -> None:
    def page(scrolled: float) -> DomSnapshot:
        made = Page()
        body = made.body((0, scrolled))
        for at in range(100):
            made.add(body, "p", f"row {at}", (0, 30 * at - scrolled, 300, 20))
        return made.snapshot()

    diff = step_diff(page(0), page(500))
    assert diff.changed == () and [change.kind for change in diff.flagged_changes] == ["scroll"]
    assert diff.flagged_changes[0].after == "(0.0, 500.0)"


def test_a_node_that_went_to_another_parent_has_moved() -> None:
    def page(done: bool) -> DomSnapshot:
        made = Page(document="d")
        body = made.body()
        lists = made.add(body, "ul", id="todo"), made.add(body, "ul", id="done")
        made.add(lists[done], "li", "wash the car", (0, 0, 100, 20))
        return made.snapshot()

    diff = step_diff(page(False), page(True))
    assert [(change.kind, change.path) for change in diff.changed] == [("moved", "/html[1]/body[1]/ul[2]/li[1]")]
    assert not diff.added and not diff.removed


def test_another_document_is_told_by_its_texts_and_controls() -> None:
    before, after = Page(document="a"), Page(document="b")
    for page, texts in ((before, ("Home", "Sign in please")), (after, ("Home", "Welcome back"))):
        body = page.body()
        for text in texts:
            page.add(body, "p", text)
        for at in range(12):
            page.add(body, "button", f"{page.document} {at}")
    diff = step_diff(before.snapshot(), after.snapshot())
    assert diff.cross_document and diff.text_delta is not None and not diff.changed
    assert diff.text_delta.added[0] == "Welcome back" and "Sign in please" in diff.text_delta.removed
    assert "Home" not in diff.text_delta.added + diff.text_delta.removed
    assert len(diff.top_actions) == 10 and diff.top_actions[0] == "button: b 0"


def test_long_lists_and_texts_are_cut_and_counted() -> None:
    before, after = Page(document="d"), Page(document="d")
    for page in (before, after):
        body = page.body()
        for at in range(MAX_ENTRIES + 30):
            text = "x" * 500 + page.document if page is after else "short"
            page.add(body, "p", text, (0, 30 * at, 300, 20), identity=at)
    diff = step_diff(before.snapshot(), after.snapshot())
    assert len(diff.changed) == MAX_ENTRIES and diff.stats.totals["changed"] == MAX_ENTRIES + 30
    assert diff.stats.truncated["changed"] == 30 and len(diff.changed[0].after) == MAX_DIFF_TEXT


def test_a_hidden_subtree_is_told_once() -> None:
    def page(shown: str) -> DomSnapshot:
        made = Page()
        styles = STYLE | {"visibility": shown}
        outer = made.add(made.body(), "section", id="s", styles=styles)
        for text in "abc":
            made.add(outer, "p", text, styles=styles)
        return made.snapshot()

    diff = step_diff(page("visible"), page("hidden"))
    assert [(change.tag, change.kind, change.after) for change in diff.changed] == [("section", "visibility", "hidden")]


def test_what_is_inherited_is_told_once() -> None:
    def page(colour: str) -> DomSnapshot:
        made = Page()
        styles = STYLE | {"color": colour}
        outer = made.add(made.body(), "section", id="s", styles=styles)
        for text in "abc":
            made.add(outer, "p", text, styles=styles)
        return made.snapshot()

    diff = step_diff(page("rgb(0, 0, 0)"), page("rgb(9, 9, 9)"))
    assert [(change.tag, change.kind) for change in diff.changed] == [("section", "style:color")]
