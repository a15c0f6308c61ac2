"""Documents that are no HTML: XHTML, whose names have another case, and drawings by themselves or
in it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import CDPSession, Page

from envs.observation import Observer

XHTML = """<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>Order</title>
<style>label { display: block }</style></head><body><h1>Your order</h1><p>Words <![CDATA[in <cdata>]]></p>
<label>Name <input placeholder="Who"/></label><label><input type="checkbox" checked="checked"/> Agree</label>
<label><input type="checkbox" hidden="hidden"/> Drawn</label>
<label>Size <select><option>S</option><option selected="selected">M</option></select></label>
<textarea aria-label="Note">x</textarea><button type="button">Go</button><a href="#x">Link</a>
<svg xmlns="http://www.w3.org/2000/svg" width="90" height="30"><a href="#v"><rect width="30" height="20"/><title>Inner</title></a>
<foreignObject x="40" width="50" height="30"><button xmlns="http://www.w3.org/1999/xhtml">Far</button></foreignObject></svg>
<iframe srcdoc="&lt;button&gt;Framed&lt;/button&gt;" width="120" height="40"></iframe>
<script><![CDATA[window.hits = []; addEventListener('click', event => hits.push(event.target.localName))]]></script></body></html>"""

DRAWING = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="400" height="200"><title>Chart</title>
<rect x="10" y="10" width="80" height="60" fill="red" onclick="1"><title>North</title></rect><a href="#z"><text x="120" y="40">More</text></a>
<a xlink:href="#o"><text x="220" y="40">Older</text></a>
<g role="button" aria-label="Zoom"><circle cx="40" cy="120" r="20"/></g><text x="120" y="120">words</text>
<script>window.hits = []; addEventListener('click', event => hits.push(event.target.localName))</script></svg>"""

CASES = {
    "application/xhtml+xml": (
        XHTML,
        [
            'textbox "Name" showing "Who"',
            'checkbox "Agree" checked',
            'checkbox "Drawn"',
            'select "Size" value "M" (S, M)',
            'textarea "Note" value "x"',
            'button "Go"',
            '"Link"',
            '"Inner"',
            'button "Far"',
            'button "Framed"',
        ],
        ["# Your order", "in <cdata>"],
    ),
    "image/svg+xml": (DRAWING, ['shape "North"', '"More"', '"Older"', 'button "Zoom"'], ["words"]),
}


@pytest.mark.parametrize("kind", CASES)
async def test_what_a_document_shows_is_listed_as_what_it_is(on_page: Any, kind: str) -> None:
    source, wanted, words = CASES[kind]

    async def script(page: Page, cdp: CDPSession) -> tuple[str, int, int]:
        await page.goto(f"data:{kind},{quote(source)}")
        reading = await Observer().observe(cdp, viewport=(1280, 720), instruction="")
        points = [handle.point for handle in reading.handles.values() if handle.tag not in ("select",)]
        for point in points:
            assert point is not None
            await page.mouse.click(*point)
        frames = len(page.frames) - 1
        return reading.observation.text, len(points) - frames, await page.evaluate("hits.length")

    text, clicks, hits = await on_page("", script)
    for number, line in enumerate(wanted, start=1):
        assert f"[{number}] {line}" in text
    assert f"[{len(wanted) + 1}]" not in text and all(each in text for each in words)
    assert hits >= clicks, "each click reached something of the document"
