"""Navigations with a view transition arrive like all others, and transitions within a document are
what they were."""

from __future__ import annotations

from typing import Any

from envs.settle import SettleReason
from envs.types import Back, Click
from tests.builders import page_task

RULE = "<style>@view-transition { navigation: auto; }</style>"
OWN_SHEETS = "<script>const own = new CSSStyleSheet(); own.replaceSync('h1 {color: red}'); document.adoptedStyleSheets = [own];</script>"
WITHIN = "document.startViewTransition(() => { word.textContent = 'changed'; }).finished.then(() => { document.title = 'over'; })"
PAGES = {
    "one.html": f"""{RULE}{OWN_SHEETS}<h1 id=word>one</h1><a href=two.html>a</a><form action=two.html><button>b</button></form>
        <button onclick="location = 'two.html'">c</button><a href=plain.html>d</a><button onclick="{WITHIN}">e</button>""",
    "two.html": f"{RULE}<h1>two</h1>",
    "plain.html": "<h1>plain</h1><a href=one.html>a</a>",
}


async def test_cross_document_view_transitions_do_not_stop_a_page(pages: Any) -> None:
    async with pages(PAGES) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/plain.html"), 1)
        rows = [
            (1, "one"),
            (1, "two"),
            (None, "one"),
            (2, "two"),
            (None, "one"),
            (3, "two"),
            (None, "one"),
            (4, "plain"),
            (None, "one"),
        ]
        for element, shown in rows:
            step = await session.step(Back() if element is None else Click(element=element))
            assert step.settled is not None and step.settled.reason is SettleReason.RESTED and step.screenshot
            assert await session.page.tab.evaluate("document.querySelector('h1').textContent") == shown
        assert await session.page.tab.evaluate("document.adoptedStyleSheets[0].cssRules[0].selectorText") == "h1"
        await session.step(Click(element=5))
        assert await session.page.tab.evaluate("[document.querySelector('h1').textContent, document.title]") == [
            "changed",
            "over",
        ]
