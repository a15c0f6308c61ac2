# ruff: noqa: E501 (a table: one case a line)
"""What lies on top of a page is numbered and written first where there is no room for all, and only
there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from playwright.async_api import CDPSession, Page

from envs.observation import FULL, Observer, Reading

BUTTON = "<button>Top</button>"

ON_TOP = {
    "cookie bar": f"<div style='position:fixed;bottom:0;left:0;right:0;background:#fff'>Cookies? {BUTTON}</div>",
    "beside the page's content": f"<div style='position:fixed;left:1100px;top:20px'>{BUTTON}</div>",
    "popover": f"<div popover=manual>{BUTTON}</div>",
    "dialog without backdrop": f"<dialog open>{BUTTON}</dialog>",
    "menu": f"<div role=menu style='position:absolute;left:1100px;top:20px'>{BUTTON}</div>",
    "list of a combobox": "<div style='position:relative;margin-top:90px'><div style='position:absolute;z-index:2;bottom:9px;width:90px;background:#fff'><div role=option>Top</div></div></div>",
    "menu of an item": f"<ul><li style='position:relative'>More<div style='position:absolute;bottom:100%;width:90px;height:40px;background:#fff'>{BUTTON}</div></li></ul>",
    "portal": f"<div><div style='position:absolute;left:1100px;top:20px;width:90px;height:40px;z-index:9'>{BUTTON}</div></div>",
    "over a table in the same box": "<div style='position:absolute;left:300px;top:60px;width:300px;height:90px;background:#fff'>Rows "
    + BUTTON
    + "</div>",
    "footer that sticks": f"<div style='position:sticky;bottom:0;background:#fff;height:40px'>{BUTTON}</div>",
    "in a shadow root": f"<div class=host></div><template><div style='position:fixed;top:50px;left:50px;background:#fff'>{BUTTON}</div></template>",
    "in a frame": f"<iframe width=400 height=100 style='position:absolute;left:10px;top:600px' srcdoc=\"{'<button>Low</button>' * 3}<div style='position:fixed;bottom:0;background:#fff'>{BUTTON}</div>\"></iframe>",
    "frame on top": f"<iframe width=300 height=100 style='position:fixed;left:10px;top:300px' srcdoc='{BUTTON}'></iframe>",
    "notice over a fixed page": f"<script>many.style.cssText = 'position:fixed;inset:0'</script><div role=alert style='position:fixed;right:0;bottom:0'>{BUTTON}</div>",
    "drawn checkbox in a bar": "<div style='position:fixed;bottom:0'><input type=checkbox hidden id=own><label for=own>Top</label></div>",
}

NOT_ON_TOP = {
    "page that is one layer": "<script>many.style.cssText = 'position:absolute;inset:0'</script>",
    "marks on cards": "<script>for (const each of document.querySelectorAll('#many button')) { each.style.position = 'relative';"
    "each.insertAdjacentHTML('beforeend', '<i style=\"position:absolute;right:0;top:0\">x</i>') }</script>",
    "below the view": f"<div role=menu style='position:absolute;top:3000px'>{BUTTON}</div>",
    "in the flow": f"<div role=alert>Saved {BUTTON}</div>",
}

FILL = "fill = (count) => { many.replaceChildren(...Array.from({length: count}, (_, at) => Object.assign(document.createElement('button'), {textContent: 'b' + at}))) }"
PAGE = f"<style>body {{margin: 0}} button {{font-size: 9px}}</style><div id=many></div><div id=more></div><script>{FILL}</script>"
SHOW = """(html) => {
    many.style.cssText = ''; more.innerHTML = html;
    for (const old of more.querySelectorAll('script')) { const made = document.createElement('script'); made.textContent = old.textContent; old.replaceWith(made); }
    for (const host of more.querySelectorAll('.host')) host.attachShadow({mode: 'open'}).append(host.nextElementSibling.content);
    for (const each of more.querySelectorAll('[popover]')) each.showPopover();
    return Promise.all([...more.querySelectorAll('iframe')].map((frame) => new Promise((done) => { frame.onload = done; })));
}"""


async def look(cdp: CDPSession, **options: Any) -> Reading:
    return await Observer(replace(FULL, **options)).observe(cdp, viewport=(1280, 720), instruction="")


def labels(reading: Reading) -> list[str]:
    return [element.text for element in reading.observation.elements]


async def test_what_lies_on_top_comes_first_where_the_list_is_full(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> dict[str, Any]:
        wrong = {}
        for count in (260, 40):
            for name, html in (ON_TOP | NOT_ON_TOP).items():
                await page.evaluate("(count) => fill(count)", count)
                await page.evaluate(SHOW, html)
                reading = await look(cdp)
                found = labels(reading)
                first = count > FULL.max_elements and name in ON_TOP
                right = found[0].startswith("Top" if first else "b0") and (first or "Top" not in found[:30])
                short = (await look(cdp, text_chars=500)).observation.text.splitlines()[0]
                if not right or ("Top" in short) != (name in ON_TOP):
                    wrong[name, count] = (found[:3], short[:60], reading.observation.hidden)
        return wrong

    wrong = await on_page(PAGE, script)
    assert not wrong, "\n".join(f"{case}: {seen}" for case, seen in wrong.items())


async def test_options_of_a_long_list_go_last_where_the_list_is_full(on_page: Any) -> None:
    options = "".join(f"<option>o{at}" for at in range(40))
    html = f"<select size=30 style='font-size:9px'>{options}</select><button>After</button><a href=#>Link</a>"

    async def script(page: Page, cdp: CDPSession) -> list[list[str]]:
        await page.evaluate("fill(3)")
        await page.evaluate(SHOW, html)
        return [labels(await look(cdp, max_elements=room)) for room in (200, 10)]

    everything, few = await on_page(PAGE, script)
    assert everything[:4] == ["b0", "b1", "b2", "o0"] and {"After", "Link"} <= set(everything)
    assert few == ["b0", "b1", "b2", "After", "Link", "o0", "o1", "o2", "o3", "o4"]


@pytest.mark.parametrize("count", [40, 260])
async def test_what_has_to_be_scrolled_to_goes_last_where_the_list_is_full(on_page: Any, count: int) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[str]:
        await page.evaluate("(count) => fill(count)", count)
        await page.evaluate("many.firstChild.style.cssText = 'position:absolute;top:3000px'")
        return labels(await look(cdp, offscreen=True))

    found = await on_page(PAGE, script)
    assert ("b0" in found) == (count == 40)
