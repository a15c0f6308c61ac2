"""What saves calls and drawing sees the same as what it stands for."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from envs.browser import PageStep
from envs.observation.clips import chained_clips, containers, nested_clips
from envs.observation.dom import Dom
from envs.observation.snapshot import capture, decode
from envs.types import Click, Scroll
from tests.builders import page_task

SHADOWS = """
<style>div { height: 40px }</style>
<p>first</p><button>plain</button>
<div id="open"></div><div id="closed"></div>
<iframe srcdoc="<p>a</p><button>framed</button>" width="300" height="60"></iframe>
<ul><li><button>deep one</button></li><li>::<button>deep two</button></li></ul>
<script>
for (const mode of ["open", "closed"]) {
  const root = document.getElementById(mode).attachShadow({mode});
  root.innerHTML = `<style>button { color: red }</style><section><button>${mode} one</button><button>${mode} two</button></section>`;
}
</script>
"""

WHEELED = """
<style>body { margin: 0; height: 2000px } div, iframe { width: 300px; margin: 10px; overflow: auto; border: 0 }</style>
<div style="height: 200px"><div style="height: 80px"><p style="height: 900px">inner</p></div><p style="height: 900px">outer</p></div>
<iframe height="100" srcdoc="<p style='height: 900px'>framed</p><script>onscroll = () => parent.hear('frame')</script>"></iframe>
<script>
const heard = [];
function hear(what) { heard.push(what); }
for (const name of ["resize", "scroll", "wheel"]) addEventListener(name, (event) => hear(name), true);
visualViewport.addEventListener("resize", () => hear("visual"));
matchMedia("(width: 448px)").addEventListener("change", () => hear("media"));
</script>
"""

SCROLLERS = """
<div style="height: 100px; width: 300px; overflow: auto; border: 3px solid">
  <p style="height: 80px">a</p>
  <div style="height: 50px; overflow: hidden; border-left: 7px solid"><button style="height: 90px">inner</button><b>text</b></div>
  <span style="display: contents"><i>contents</i></span>
</div>
<p style="position: relative; overflow: hidden; height: 10px">cut<br>off</p><button>after</button>
"""


def _focused(result: PageStep) -> list[str]:
    return [element.text for element in result.observation.elements if element.focused]


async def test_the_focus_is_found_wherever_it_is(pages: Any) -> None:
    async with pages({"index.html": SHADOWS}) as (pool, site), pool.lease(site) as session:
        result = await session.reset(page_task("/index.html"), 0)
        assert _focused(result) == []
        names = [element.text for element in result.observation.elements]
        assert {"plain", "open one", "closed two", "framed", "deep two"} <= set(names)
        for name in names:
            number = next(e.index for e in result.observation.elements if e.text == name)
            result = await session.step(Click(element=number))
            assert result.observation.error is None
            assert _focused(result) == [name]


async def test_a_path_that_is_not_there_any_more_is_no_element(pages: Any) -> None:
    async with pages({"index.html": SHADOWS}) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/index.html"), 0)
        dom = await _dom(session)
    assert dom.name[dom.at_path((0,))] == "HTML"
    assert dom.at_path((0, 1, 99)) == -1
    assert dom.at_path((0, -1)) == -1


def test_pages_that_are_not_drawn_read_the_same(pages: Any) -> None:
    async def play(screenshots: bool) -> list[tuple[str, str]]:
        async with pages({"index.html": SHADOWS}, screenshots=screenshots) as (pool, site), pool.lease(site) as session:
            results = [await session.reset(page_task("/index.html"), 0)]
            results += [await session.step(Click(element=number)) for number in (1, 2, 3, 1)]
            assert all(bool(result.screenshot) == screenshots for result in results)
            seen = (
                "[innerWidth, innerHeight, devicePixelRatio, visualViewport.width, visualViewport.scale, scrollX] + ''"
            )
            tab = session.page.tab
            assert await tab.evaluate(seen) == "448,448,1,448,1,0"
            # Each run has a server of its own, on another port.
            return [(result.observation.model_dump_json(exclude={"url"}), result.hash_dom()) for result in results]

    assert asyncio.run(play(True)) == asyncio.run(play(False))


async def test_a_wheel_scrolls_what_it_is_over_on_pages_that_are_not_drawn(pages: Any) -> None:
    """Chromium looks only in what is drawn for what is under the mouse. The page hears of the
    wheel, and of no other size."""
    where = (
        "[...document.querySelectorAll('div')].map((each) => Math.round(each.scrollTop)) + ';' + scrollY + ';' + heard"
    )
    actions = [  # in the inner box, the outer one, the frame, and the page itself
        Scroll(at=(300, 150), amount=0.25),
        Scroll(at=(300, 400), amount=0.5),
        Scroll(at=(300, 600), amount=0.25),
        Scroll(at=(900, 900), amount=0.5),
        Scroll(at=(900, 900), direction="up", amount=20),
        Scroll(at=(300, 400), direction="up", amount=20),
    ]
    scrolled = ["0,112;0", "224,112;0", "224,112;0", "224,112;224", "224,112;0", "0,112;0"]

    async with pages({"index.html": WHEELED}, screenshots=False) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/index.html"), 0)
        told = []
        for action in actions:
            assert not (await session.step(action)).observation.error
            told.append(str(await session.page.tab.evaluate(where)))
    assert [each.rpartition(";")[0] for each in told] == scrolled
    assert set(told[-1].rpartition(";")[2].split(",")) == {"wheel", "scroll", "frame"}


@pytest.mark.parametrize("html", [SCROLLERS, SHADOWS.replace("<iframe", "<p").replace("</iframe>", "</p>")])
async def test_clips_all_at_once_are_those_box_by_box(pages: Any, html: str) -> None:
    async with pages({"index.html": html}) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/index.html"), 0)
        dom = await _dom(session)
    cutting = containers(dom)
    assert html is not SCROLLERS or len(cutting) == 3
    np.testing.assert_array_equal(nested_clips(dom, cutting), chained_clips(dom, cutting))


@pytest.mark.parametrize("since", ["nothing", "time", "a dialog"])
async def test_what_lies_in_an_element_is_known_from_the_look(pages: Any, since: str) -> None:
    html = """<button onclick="this.firstChild.textContent = 'done'"><b>Go</b></button>
                  <i onclick="confirm('Go?')">ask</i>"""
    async with pages({"index.html": html}) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/index.html"), 0)
        page, sent = session.page, set[str]()
        if since == "time":
            await page.tab.clock.settle(10)
        elif since == "a dialog":
            assert (await session.step(Click(element=2))).observation.dialog
            await page.clear_dialogs()
        send = page.tab.cdp.send

        async def noted(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
            sent.add(method)
            return await send(method, params)

        page.tab.cdp.send = noted  # type: ignore[method-assign]
        result = await session.step(Click(element=1))
        assert [element.text for element in result.observation.elements] == ["done", "ask"]
    asks = {"Page.getLayoutMetrics", "DOM.resolveNode", "Runtime.callFunctionOn"}
    assert "DOM.getNodeForLocation" in sent
    assert asks & sent == (set() if since == "nothing" else asks)


async def _dom(session: Any) -> Dom:
    return decode(await capture(session.page.tab.cdp))
