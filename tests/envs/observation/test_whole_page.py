"""Facts read the page and not the view: what scrolling shows is on it, what nothing shows is
not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import CDPSession, Error, Page

from envs.cdp import CdpError
from envs.observation import FULL, SMALL, ObservationOptions, Observer, occlusion
from envs.observation import whole_page as reading
from envs.observation.whole_page import read_whole
from envs.rewards import GradingEvidence, grade_by_program
from envs.types import Observation, WholePage
from tests.builders import make_rubric

FAR = "<div style='height:3000px'>far</div>"
BOX = "height:60px;width:200px;overflow"
ROWS = "<p>row</p>" * 20
COVER = "background:white;left:0;top:0;width:100%;height:100%"
SCREEN_READER = "position:absolute;width:1px;height:1px;overflow:hidden;clip:rect(0,0,0,0)"

PAGES = {
    "below": f"{FAR}<p>yes a</p><div style='display:none'>no a</div><p style='visibility:hidden'>no b</p>",
    "beside": "<div style='width:9000px'><p style='margin-left:8000px'>yes a</p></div>",
    "off the page": """<p style='position:absolute;left:-9999px'>no a</p><p style='position:absolute;top:-500px'>no b</p>
        <p style='text-indent:-9999px'>no c</p>""",
    "scrolled": f"<p>yes a</p>{FAR}<p>yes b</p><script>scrollTo(0, 9999)</script>",
    "boxes": f"""<div id=a style='{BOX}:auto'><p>yes a</p>{ROWS}<p>yes b</p><div style='{BOX}:scroll'>{ROWS}<p>yes c</p></div>
        </div>{FAR}<div style='{BOX}:auto'>{ROWS}<p>yes d</p><p style='position:relative;left:-999px'>no a</p></div>
        <script>a.scrollTop = 99</script>""",
    "one axis": f"""<div style='{BOX}-x:hidden;overflow-y:auto'>{ROWS}<p>yes a</p><p style='margin-left:900px'>no a</p></div>
        <div style='{BOX}:hidden'>{ROWS}<p>no b</p></div><div style='{BOX}:clip'>{ROWS}<p>no c</p></div>""",
    "a locked page": f"<style>body {{overflow: hidden}}</style><p>yes a</p>{FAR}<p>no a</p>",
    "a body that scrolls": f"""<style>html, body {{height: 100%; margin: 0; overflow: hidden auto}} html {{overflow: hidden}}</style>
        <p>yes a</p>{FAR}<p>yes b</p><script>document.body.scrollTop = 500</script>""",
    "both cut sideways": f"<style>html, body {{overflow-x: hidden}}</style><p>yes a</p>{FAR}<p>yes b</p>",
    "a root of the view's height": f"<style>html, body {{height: 100%}}</style><p>yes a</p>{FAR}<p>yes b</p>",
    "an app's frame": f"""<style>html, body {{height: 100%; margin: 0; overflow: hidden}}</style><div style='display:flex;height:100%'>
        <nav style='overflow-y:auto'>{ROWS * 9}<p>yes a</p></nav><main style='overflow-y:scroll;flex:1'>{FAR}<p>yes b</p></main></div>""",
    "an open dialog": f"<p>yes a</p>{FAR}<dialog id=d>{ROWS * 9}<p>yes b</p></dialog><script>d.showModal()</script>",
    "fixed panels": f"""<div style='position:fixed;top:0;right:0;bottom:0;width:200px;overflow:auto'>{ROWS * 9}<p>yes a</p></div>
        <div style='position:fixed;left:0;top:0'>{ROWS * 9}<p>no a</p></div>{FAR}<p style='margin-left:300px'>yes b</p>""",
    "out of its box": f"""<div style='{BOX}:auto'>{ROWS}<p style='position:absolute;top:4000px'>yes a</p></div>
        <div style='{BOX}:hidden;position:relative'><p style='position:absolute;top:900px'>no a</p></div>""",
    "columns and grids": f"""<div style='height:80px;columns:100px;width:300px;overflow-x:auto'>{ROWS}<p>yes a</p></div>
        <table><tr><td><div style='{BOX}:auto'>{ROWS}<p>yes b</p></div></table>
        <div style='display:grid;grid-template-columns:repeat(40,200px)'>{"<p>row</p>" * 39}<p>yes c</p></div>""",
    "turned and scaled": f"""<div style='transform:scale(.5);transform-origin:0 0'><div style='{BOX}:auto'>{ROWS}<p>yes a</p></div>
        {FAR}<p>yes b</p></div>""",
    "right to left": f"""<div dir=rtl style='{BOX}:auto;white-space:nowrap'><span style='margin-right:900px'>yes a</span>
        </div><div style='{BOX}:auto;writing-mode:vertical-rl'>{ROWS}<p>yes b</p></div>""",
    "upwards": f"""<div style='{BOX}:auto;display:flex;flex-direction:column-reverse'><div>{ROWS}</div>
        <div><p>yes a</p>{ROWS}</div></div>""",
    "shadow roots": f"""{FAR}<div id=a></div><div id=b></div><script>
        a.attachShadow({{mode: 'open'}}).innerHTML = '<p>yes a</p>'; b.attachShadow({{mode: 'closed'}}).innerHTML = '<p>yes b</p>'
        </script>""",
    "frames": f"""<iframe srcdoc="{ROWS * 9}<p>yes a</p>"></iframe>{FAR}<iframe srcdoc="{ROWS}<p>yes b</p>"></iframe>
        <iframe scrolling=no srcdoc="<p>yes c</p>{ROWS}"></iframe><iframe width=0 height=0 srcdoc='no b'></iframe>
        <iframe style='display:none' srcdoc='no c'></iframe>""",
    "what is closed": f"""{FAR}<details><summary>yes a</summary>no a</details><dialog>no b</dialog><div hidden>no c</div>
        <div style='content-visibility:hidden'>no d</div><details open><summary>s</summary>yes b</details>""",
    "skipped by the engine": f"""{FAR}<div style='content-visibility:auto'><p>yes a</p><p style='display:none'>no a</p>
        <div style='content-visibility:auto'>yes b</div></div><div style='content-visibility:auto'><b hidden>no b</b></div>""",
    "for screen readers": f"""{FAR}<p aria-hidden=true>yes a</p><p style='{SCREEN_READER}'>no a</p><p style='opacity:0'>no b</p>
        <p style='color:transparent'>no c</p>""",
    "tables and pictures": f"""{FAR}<table><tr><td>yes</td><td>a</td></tr></table>
        <img alt='yes b' width=20 height=20 src='data:,'>""",
    "labels and fields": f"""{FAR}<button>yes a</button><input aria-label='yes b' value='no a'><textarea>no b</textarea>
        <select><option>yes c<option>yes d</select><div contenteditable>no c</div><button>{"word " * 900}yes e</button>
        <select>{"<option>choice" * 900}<option>yes f</select>""",
    "under a sticky head": f"""<style>body {{margin: 0}}</style><div style='position:sticky;top:0;height:90px;background:white'>
        yes a</div><p>yes b</p><p><a href=#>yes c</a></p>{FAR}<script>scrollTo(0, 70)</script>""",
    "under a fixed bar": f"""<div style='position:fixed;left:0;bottom:0;width:100%;height:200px;background:white'>yes a</div>
        <div style='height:600px'></div><p>yes b</p>{FAR}<div style='position:fixed;right:0;top:0'>yes c</div>""",
    "behind a fixed cover": f"<p>no a</p>{FAR}<p>no b</p><div style='position:fixed;{COVER}'>yes a</div>",
    "behind a cover": f"""<style>html, body {{height: 100%; margin: 0}}</style><div style='height:100%;overflow:auto'>
        <p>no a</p>{FAR}<p>no b</p></div><div style='position:absolute;{COVER}'>yes a</div>""",
    "behind a cover below": f"""{FAR}<div style='position:relative'><p>no a</p><div style='position:absolute;{COVER}'>yes a
        </div></div>""",
    "closed menus": f"""<div style='clip-path:inset(0 0 100% 0)'><div style='{BOX}:auto'>{ROWS}<p>no a</p></div></div>
        <div style='height:0;overflow:hidden'><div style='{BOX}:auto'>{ROWS}<p>no b</p></div></div>
        <div style='clip-path:inset(0 round 9px)'><div style='{BOX}:auto'>{ROWS}<p>yes a</p></div></div>""",
    "tabs": f"""{FAR}<section>yes a</section><section style='display:none'>no a</section>
        <section style='position:absolute;transform:translateX(-9999px)'>no b</section>""",
    "fixed in a box": f"<div style='{BOX}:auto'>{ROWS}<p>yes a</p><div style='position:fixed;right:0;top:0'>yes b</div></div>",
}
"""What it says ``yes`` to is on the page."""

LINES = {
    "<p style='width:90px'>to<b>tal</b>: <i>12</i>, paid by card, <a href=#>see it</a>.</p>": "total: 12, paid by card, see it.",
    "<p>one<br>two</p>": "one",
    "<p>one <b>two</b>\n<i>three</i></p>": "one two three",
    "<table><tr><td>one<td>two</table>": "one two",
    "<p><button>one</button><button>two</button></p>": "one two",
    "<p>one<span style='display:inline-block'>two</span></p>": "one two",
}
"""Lines below the view, which facts of the whole line match."""


class Wire:
    """Playwright's session with our errors."""

    def __init__(self, session: CDPSession) -> None:
        self._session = session

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            return await self._session.send(method, params)
        except Error as error:
            raise CdpError(method, error.message) from error


async def read(cdp: CDPSession, options: ObservationOptions = FULL) -> tuple[Observation, WholePage]:
    """What is in view, and the whole page."""
    observer, wire = Observer(options), Wire(cdp)
    view = (await observer.observe(wire, viewport=(1280, 720), instruction="")).observation
    return view, await read_whole(observer, wire, viewport=(1280, 720), elements=True)


def value(view: Observation, *pages: WholePage, **fact: Any) -> float | None:
    """Of a fact; ``None`` if it is undecided."""
    rubric = make_rubric({"type": "text", **fact})
    bundle = grade_by_program(rubric, GradingEvidence(final=view, pages=pages))
    assert (bundle.parts[0].value is None) == bool(bundle.abstained)
    return bundle.parts[0].value


@pytest.mark.parametrize("options", [FULL, SMALL], ids=["full", "small"])
async def test_what_scrolling_shows_is_on_the_page_and_nothing_else(on_page: Any, options: ObservationOptions) -> None:
    wrong: list[str] = []

    async def script(page: Page, cdp: CDPSession) -> None:
        for name, html in PAGES.items():
            await page.set_content(f"<!DOCTYPE html><body>{html}")
            seen = await read(cdp, options)
            for answer, letter in set(re.findall(r"\b(yes|no)(?: |</td><td>)([a-f])\b", html)):
                for negate in (False, True):
                    found = value(*seen, text=f"{answer} {letter}", negate=negate)
                    if found != float((answer == "yes") != negate):
                        wrong.append(f"{name}: {answer} {letter} {'negated ' * negate}is {found}")

    await on_page("", script)
    assert not wrong, "\n".join(wrong)


async def test_a_line_below_the_view_is_put_together_as_the_page_has_it(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> dict[str, float | None]:
        await page.set_content(f"<!DOCTYPE html><body>{FAR}{''.join(LINES)}")
        seen = await read(cdp)
        return {line: value(*seen, text=line, match="exact") for line in LINES.values()}

    assert await on_page("", script) == dict.fromkeys(LINES.values(), 1.0)


async def test_element_facts_read_the_page_too(on_page: Any) -> None:
    html = f"""<div style='{BOX}:auto'>{ROWS}<button disabled>In a box</button></div>{FAR}
        <input aria-label=Name value=Ann><button style='display:none'>Away</button>
        <label><input type=checkbox checked style='opacity:0'>Agreed</label>"""

    async def script(page: Page, cdp: CDPSession) -> list[float | None]:
        await page.set_content(f"<!DOCTYPE html><body>{html}")
        seen = await read(cdp)
        listed = [
            value(*seen, type="element", element={"text": text}) for text in ("In a box", "Name", "Agreed", "Away")
        ]
        states = [
            value(*seen, type="element_state", element={"text": text}, property=name, equals=wanted)
            for text, name, wanted in [
                ("In a box", "disabled", True),
                ("Name", "value", "Ann"),
                ("Name", "value", "Bob"),
            ]
        ]
        return listed + states

    assert await on_page("", script) == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("text", ["row 1", "the end", "nowhere"])
async def test_beyond_what_is_recorded_a_fact_is_undecided(
    on_page: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_CHARS", 200)

    async def script(page: Page, cdp: CDPSession) -> tuple[Observation, WholePage]:
        rows = "".join(f"<p>row {number}</p>" for number in range(200))
        await page.set_content(f"<!DOCTYPE html><body>{rows}<p>the end</p>")
        return await read(cdp)

    seen = await on_page("", script)
    assert value(*seen, text=text) == (1.0 if text == "row 1" else None)


async def test_a_record_of_the_view_alone_does_not_say_what_is_not_on_the_page(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[float | None]:
        found: list[float | None] = []
        for html in (
            FAR,
            f"<div style='{BOX}:auto'>{ROWS}</div>",
            "<p>short</p>",
            f"{FAR}<script>scrollTo(0, 999)</script>",
        ):
            await page.set_content(f"<!DOCTYPE html><body><p>here</p><button>B</button>{html}")
            view, _ = await read(cdp)
            found += [value(view, text="nowhere"), value(view, type="element", element={"text": "nowhere"})]
            if "scrollTo" not in html:
                assert value(view, text="here") == 1.0
        return found

    assert await on_page("", script) == [None, None, None, None, 0.0, 0.0, None, None]


async def test_a_long_page_is_read_piece_by_piece(on_page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_ELEMENTS", 100)
    monkeypatch.setattr(occlusion, "MAX_PAIRS", 1_000)
    rows = "".join(f"<tr style='background:white'><td>{n}<td><a href=#{n}>item {n}</a><td>x</tr>" for n in range(500))

    async def script(page: Page, cdp: CDPSession) -> tuple[Observation, WholePage]:
        await page.set_content(f"<!DOCTYPE html><body><table>{rows}</table><p>the end</p>")
        return await read(cdp)

    view, whole = await on_page("", script)
    assert value(view, whole, text="the end") == value(view, whole, text="item 499") == 1.0
    assert value(view, whole, type="element", element={"text": "item 499"}) is None
    assert len(whole.elements) == 100 and not whole.words_cut
