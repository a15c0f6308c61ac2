# ruff: noqa: E501 (a table: one case a line)
"""Checkboxes, radio buttons and switches that their page draws: listed with their state, and turned
on by a point that is no link."""

from __future__ import annotations

from typing import Any

from playwright.async_api import CDPSession, Page

from envs.observation import Observer, Reading
from envs.types import Check
from tests.envs.acting import on

LINK = "<a href='#gone' onclick='gone(event)'>the terms of use and the privacy notice</a>"
PICTURE = "<img alt='A kettle' src='data:image/gif;base64,R0lGODlhAQABAAAAACw=' width=200 height=20>"

CASES = {
    "transparent, link in the middle": f"<input type=checkbox id=ID class=clear><label for=ID class=drawn>Yes {LINK} I read</label>",
    "clipped, link in the middle": f"<input type=checkbox id=ID style='position:absolute;clip:rect(0,0,0,0)'><label for=ID class=drawn>Yes {LINK} of it</label>",
    "far away": f"<input type=checkbox id=ID style='position:absolute;left:-9999px'><label for=ID class=drawn>Yes {LINK} of it</label>",
    "not displayed": f"<input type=checkbox id=ID hidden><label for=ID class=drawn>Yes {LINK} of it</label>",
    "without a size": f"<input type=checkbox id=ID style='appearance:none;width:0;height:0;margin:0'><label for=ID class=drawn>Yes {LINK} of it</label>",
    "a link as a whole": f"<input type=checkbox id=ID hidden><label for=ID class=drawn>{LINK}</label>",
    "a wide link as a whole": "<input type=checkbox id=ID hidden><label for=ID class=drawn style='width:480px'><a href='#gone' onclick='gone(event)' style='display:block'>All of it</a></label>",
    "drawn by a background": f"<input type=checkbox id=ID hidden><label for=ID class=ground>{LINK}</label>",
    "a button in the middle": "<input type=radio id=ID hidden><label for=ID class=drawn>Pay <button type=button onclick='gone(event)'>card, see all fees and limits</button> here</label>",
    "a list in the middle": "<input type=checkbox id=ID hidden><label for=ID class=drawn>Send <select><option>every single day of the week<option>never</select> to me</label>",
    "a picture": f"<input type=checkbox id=ID class=clear><label for=ID>{PICTURE}</label>",
    "a picture in a link and words": f"<input type=checkbox id=ID class=clear><label for=ID class=drawn><a href='#gone' onclick='gone(event)'>{PICTURE}</a> it</label>",
    "around its field": f"<label class=drawn><input type=checkbox id=ID class=clear>Yes {LINK} of it</label>",
    "around, drawn by an element": f"<label><input type=checkbox id=ID hidden><span class=box></span>{LINK}</label>",
    "from right to left": f"<input type=checkbox id=ID hidden><label for=ID class=drawn dir=rtl>{LINK}</label>",
    "box at the right": f"<input type=checkbox id=ID hidden><label for=ID><span>{LINK}</span><i class=box></i></label>",
    "over many lines": f"<input type=checkbox id=ID hidden><label for=ID class=drawn style='width:220px'>A long label over more than one line with {LINK} in the middle of it, and it goes on</label>",
    "inline over many lines": f"<div style='width:200px'><input type=checkbox id=ID class=clear><label for=ID>Some words before {LINK} and some after them</label></div>",
    "several labels": f"<input type=checkbox id=ID hidden><label for=ID>{LINK}</label> <label for=ID class=drawn>Yes</label>",
    "without a box of its own": f"<input type=checkbox id=ID hidden><label for=ID style='display:contents'><b>Yes</b> {LINK}</label>",
    "cut by its container": f"<div style='width:300px;height:30px;overflow:auto;position:relative'><input type=checkbox id=ID hidden><label for=ID class=drawn style='height:90px;width:250px'>Yes {LINK} and a good deal more that is not seen</label></div>",
    "in a shadow root": f"<div class=host></div><template><style>label{{padding-left:24px}}</style><input type=checkbox id=ID hidden><label for=ID>Yes {LINK} of it</label></template>",
    "in a second one of equal ids": "<div class=host></div><template><input type=checkbox id=same hidden><label for=same>First root</label></template><div class=host></div><template><input type=checkbox id=same hidden><label for=same>Second root</label></template>",
    "a switch": f"<span role=switch tabindex=0 aria-checked=false id=ID aria-labelledby=tID onclick='this.ariaChecked = this.ariaChecked != `true`; turned(this)' class=box></span> <span id=tID>{LINK}</span>",
    "a native switch": "<label class=drawn><input type=checkbox role=switch id=ID class=clear>Wi-Fi</label>",
    "partly on": f"<input type=checkbox id=ID hidden data-mixed><label for=ID class=drawn>Yes {LINK} of it</label>",
    "a file field": f"<input type=file id=ID hidden><label for=ID class=drawn>Yes {LINK} of it</label>",
}

PAGE = (
    "<style>body{margin:0;font-size:12px} #cells{display:grid;grid-template-columns:repeat(2,600px);grid-auto-rows:46px} #cells > div{position:relative}"
    ".clear{position:absolute;opacity:0;width:1px;height:1px;margin:0} .drawn{display:inline-block;position:relative;padding-inline-start:26px}"
    ".drawn:before{content:'';position:absolute;inset-inline-start:0;top:2px;width:14px;height:14px;border:1px solid}"
    ".ground{display:inline-block;padding-left:26px;background:linear-gradient(#06c,#06c) no-repeat 0 2px / 16px 16px} .box{display:inline-block;width:14px;height:14px;border:1px solid}</style>"
    "<script>window.log = []; turned = each => log.push(each.id); gone = event => { event.preventDefault(); log.push('gone'); };"
    "document.addEventListener('click', event => { if (event.target.type == 'file') { event.preventDefault(); turned(event.target); } });"
    "heard = event => turned(event.target); document.addEventListener('change', heard)</script><div id=cells>"
    + "".join(
        f"<div data-cell='{name}'>{html.replace('ID', f'c{number}')}</div>"
        for number, (name, html) in enumerate(CASES.items())
    )
    + "</div><script>for (const host of document.querySelectorAll('.host')) {const root = host.attachShadow({mode: 'open'});"
    "root.addEventListener('change', heard); root.append(host.nextElementSibling.content)}"
    "for (const each of document.querySelectorAll('[data-mixed]')) each.indeterminate = true</script>"
)

KINDS = ("checkbox", "radio", "switch", "file")


async def test_drawn_ones_are_listed_and_turned_on_at_their_point_and_middle(on_page: Any) -> None:
    """The middle of the box is where a policy clicks that sees marks and names coordinates."""

    async def script(page: Page, cdp: CDPSession) -> dict[str, Any]:
        reading: Reading = await Observer().observe(cdp, viewport=(1280, 720), instruction="")
        dom, found = reading.kinds.dom, {}
        for element in reading.observation.elements:
            if element.tag not in KINDS:
                continue
            handle = reading.handles[element.index]
            node = dom.backend.index(handle.backend_node_id)
            name = dom.attribute(node, "id")
            while (cell := dom.attribute(node, "data-cell")) is None:
                node = dom.parent[node]
            assert handle.point is not None, cell
            await page.evaluate("log.length = 0")
            await page.mouse.click(*handle.point)
            hits = [await page.evaluate("log.splice(0).join()")]
            left, top, width, height = element.box
            await page.mouse.click(left + width / 2, top + height / 2)
            hits.append(await page.evaluate("log.splice(0).join()"))
            found.setdefault(cell, []).append((hits in ([name, name], [name, ""]), element.text, element.states))
        return found

    found = await on_page(PAGE, script)
    wrong = {name: found.get(name) for name in CASES if not all(hit for hit, *_ in found.get(name, [(False,)]))}
    assert wrong == {}
    assert [text for _, text, _ in found["in a second one of equal ids"]] == ["First root", "Second root"]
    assert found["a picture"][0][1] == "A kettle" and found["partly on"][0][2] == ("partly checked",)


async def test_check_turns_on_what_is_scrolled_to_and_no_link(anyio_backend: str) -> None:
    """The actions find such a point themselves where the observation has none."""
    labels = {name: html for name, html in CASES.items() if "<template>" not in html and "file" not in name}
    body = (
        "<script>window.gone = event => { event.preventDefault(); hits.push('gone'); }; window.turned = () => {}; window.hits = []</script>"
        + "".join(
            f"<div style='margin-top:900px'>{html.replace('id=ID', f'id=ID data-t=t{number}').replace('ID', f'c{number}')}</div>"
            for number, html in enumerate(labels.values())
        )
    )
    style = PAGE[: PAGE.index("<script>")]
    async with on(style + body) as here:
        for number, name in enumerate(labels):
            outcome = await here.act(Check(element=f"t{number}"), settle=False)
            state = f"document.querySelector('[data-t=t{number}]')"
            is_on = await here.cdp.value(f"{state} && ({state}.checked || {state}.ariaChecked == 'true')")
            assert is_on, (name, outcome)
        assert await here.cdp.value("hits.length") == 0
