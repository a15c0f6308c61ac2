"""Pages as a real browser has them: styles, frames, shadow roots, form state, scrolling, paths; in
episodes and for references."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest

from envs.browser import BrowserPool
from envs.browser.options import Device
from envs.browser.tab import Tab
from envs.rewards.chromiumrl import DomNode, DomSnapshot, StepDiff, describe_diff, dom_similarity, step_diff
from envs.rewards.chromiumrl import capture as capturing
from envs.rewards.chromiumrl.capture import capture_page
from envs.rewards.chromiumrl.pairs import PROPERTIES

PAGE = """<!DOCTYPE html><html><head><style>
body { margin: 0; font: 16px/20px sans-serif } #box { padding: 1px 2px; margin: 3px; border: 2px solid rgb(255, 0, 0);
border-radius: 4px 5px; text-decoration: underline; overflow: hidden auto; white-space: pre; text-align: right; color: rgb(0, 0, 200) }
#fixed { position: fixed; right: 0; top: 0 } main { height: 3000px }
</style></head><body><p id=box>boxed</p><main><section><article>%s</article></section></main>
<input id=field><input type=checkbox id=tick><select id=list><option>A<option>B</select><textarea id=area></textarea><input type=password id=word>
<div id=host><template shadowrootmode=open><p>in the shadow</p></template></div>
<iframe id=frame srcdoc="<p>in the frame"></iframe><nav id=fixed>menu</nav></body></html>"""
CELLS = "".join(f"<div class=cell>cell {at}</div>" for at in range(13))

Change = Callable[[str], tuple[DomSnapshot, DomSnapshot]]


@pytest.fixture(scope="module")
def changed() -> Iterator[Change]:
    """``changed(script)``: the page before and after a script ran in it."""
    runner = asyncio.Runner()
    pool = BrowserPool()

    async def work(tab: Tab, script: str) -> tuple[DomSnapshot, DomSnapshot]:
        await tab.cdp.send("Page.navigate", {"url": "about:blank"})
        tree = await tab.cdp.send("Page.getFrameTree")
        frame = tree["frameTree"]["frame"]["id"]
        await tab.cdp.send("Page.setDocumentContent", {"frameId": frame, "html": PAGE % CELLS})
        await tab.clock.settle(200)
        before = await capture_page(tab.cdp)
        await tab.evaluate(script)
        await tab.clock.settle(200)
        after = await capture_page(tab.cdp)
        return before, after

    def change(script: str) -> tuple[DomSnapshot, DomSnapshot]:
        return runner.run(
            pool.scratch_tab(Device(width=800, height=600), lambda tab: work(tab, script), deadline=30, what="a test")
        )

    with runner:
        yield change
        runner.run(pool.close())


def named(page: DomSnapshot, name: str) -> DomNode:
    return next(node for node in page.nodes if node.attributes.get("id") == name)


def test_all_styles_are_there_and_shorthands_are_what_css_says(changed: Change) -> None:
    page, same = changed("0")
    styles = named(page, "box").styles
    assert set(styles) == set(PROPERTIES)
    wanted = {
        "padding": "1px 2px",
        "margin": "3px",
        "border": "2px solid rgb(255, 0, 0)",
        "border-radius": "4px 5px",
        "text-decoration": "underline",
        "overflow": "hidden auto",
        "white-space": "pre",
        "text-align": "right",
        "color": "rgb(0, 0, 200)",
        "line-height": "20px",
        "font-size": "16px",
    }
    assert {name: styles[name] for name in wanted} == wanted
    for mode in ("native", "chromiumrl"):
        found = dom_similarity(page, same, mode)
        assert found.score == found.page_score == 1 and found.changed == 0
    diff = step_diff(page, same)
    assert not (diff.added or diff.removed or diff.changed or diff.flagged_changes) and describe_diff(diff) == "nothing"


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("frame.contentDocument.querySelector('p').textContent = 'paid in the frame'", "frame:"),
        ("host.shadowRoot.querySelector('p').textContent = 'paid in the shadow'", "shadow:"),
    ],
)
def test_d_e_frames_and_shadow_roots(changed: Change, script: str, path: str) -> None:
    before, after = changed(script)
    theirs, ours = dom_similarity(before, after, "chromiumrl"), dom_similarity(before, after, "native")
    assert theirs.score == 1 and theirs.changed == 0
    assert ours.changed > 0 and ours.page_score < 1 and any(path in region for region in ours.regions)
    (change,) = [change for change in step_diff(before, after).changed if change.kind == "text"]
    assert "paid" in change.after and path in change.path


def test_f_live_form_state(changed: Change) -> None:
    before, after = changed(
        "field.value = 'typed'; tick.checked = true; list.selectedIndex = 1; area.value = 'long'; word.value = 'secret'"
    )
    theirs, ours = dom_similarity(before, after, "chromiumrl"), dom_similarity(before, after, "native")
    assert theirs.score == 1 and ours.score < 1 and ours.changed == 6  # two options
    found = {(change.kind, change.after) for change in step_diff(before, after).changed}
    assert found == {
        *(("attr:value", text) for text in ("typed", "long", "••••••")),
        *(("attr:checked", "true"), ("attr:selected", "true"), ("attr:selected", "false")),
    }
    assert "secret" not in after.model_dump_json()
    assert '"" -> "typed"' in describe_diff(step_diff(before, after))


def test_g_a_scroll_is_no_change_of_layout(changed: Change) -> None:
    before, after = changed("scrollTo(0, 700)")
    assert (
        named(before, "box").box != named(after, "box").box and named(before, "fixed").box == named(after, "fixed").box
    )
    theirs, ours = dom_similarity(before, after, "chromiumrl"), dom_similarity(before, after, "native")
    assert theirs.changed > 20 and ours.changed == 0 and ours.score == ours.page_score == 1
    diff = step_diff(before, after)
    assert diff.changed == () and [change.flag for change in diff.flagged_changes] == ["scroll"]


def test_h_another_document_is_told_by_its_loader(changed: Change) -> None:
    before, after = changed("0")
    other = after.model_copy(update={"document": "another"})
    assert before.document == after.document != ""
    assert not step_diff(before, after).cross_document and step_diff(before, other).cross_document


def test_j_a_region_ends_with_a_whole_segment(changed: Change) -> None:
    before, after = changed("for (const at of [0, 10]) document.querySelectorAll('.cell')[at].style.color = 'white'")
    theirs, ours = dom_similarity(before, after, "chromiumrl"), dom_similarity(before, after, "native")
    assert any(region.endswith("/div[1") for region in theirs.regions)
    assert ours.regions and not any(region.endswith("[1") for region in ours.regions)


def test_k_what_was_only_inserted_counts_nothing(changed: Change) -> None:
    before, after = changed(
        "document.body.append(Object.assign(document.createElement('p'), {textContent: 'buy now'}))"
    )
    theirs, ours = dom_similarity(before, after, "chromiumrl"), dom_similarity(before, after, "native")
    assert (theirs.text, theirs.layout, theirs.style) == (1, 1, 1)
    assert ours.text is not None and ours.text < 0.6 and ours.page_score > 0.9
    (added,) = step_diff(before, after).added
    assert added.tag == "p" and 'added p: "buy now"' in describe_diff(step_diff(before, after))


def test_of_a_page_with_too_many_nodes_the_first_ones_are_there(
    changed: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = changed("0")
    monkeypatch.setattr(capturing, "MAX_NODES", 40)
    cut, _ = changed("0")
    assert cut.cut and not whole.cut and 10 < len(cut.nodes) <= 40 < len(whole.nodes)
    identity = {"identity": None}
    assert [node.model_copy(update=identity) for node in cut.nodes] == [
        node.model_copy(update=identity) for node in whole.nodes[: len(cut.nodes)]
    ]
    assert dom_similarity(whole, cut).page_score < 0.9


def test_told_is_bounded_and_counts_the_rest(changed: Change) -> None:
    before, after = changed(
        "for (const cell of document.querySelectorAll('.cell')) cell.textContent += ' ' + 'x'.repeat(200)"
    )
    diff = step_diff(before, after)
    whole, short = describe_diff(diff, 10_000), describe_diff(diff, 300)
    assert len(whole.splitlines()) >= 13 and "…" in whole
    lines = short.splitlines()
    assert len(short) < 330 and lines[-1] == f"and {len(whole.splitlines()) - len(lines) + 1} more"
    assert StepDiff.model_validate(json.loads(diff.model_dump_json())) == diff
