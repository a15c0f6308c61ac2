"""Frames that are padded, scaled and turned: what is in them is listed where it is seen."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import CDPSession, Page

from envs.observation import Observer, Reading

VIEWPORT = (1280, 720)

BUTTON = "<body style='margin: 0; height: 900px'><button style='position: absolute; left: 60px; top: 40px; width: 80px; height: 30px'>{}</button>"


def frame(style: str, document: str) -> str:
    escaped = document.replace("&", "&amp;").replace('"', "&quot;")
    return f'<iframe width=300 height=200 style="{style}" srcdoc="{escaped}"></iframe>'


FRAMES = {
    "plain": frame("border: 3px solid", BUTTON.format("Go")),
    "padded unevenly": frame("padding: 5px 50px 20px 10px", BUTTON.format("Go")),
    "smaller": frame("transform: scale(0.5); transform-origin: 0 0; border: 4px solid", BUTTON.format("Go")),
    "larger": frame("transform: scale(1.5, 1.25) translate(40px, 30px)", BUTTON.format("Go")),
    "turned": frame("transform: rotate(90deg)", BUTTON.format("Go")),
    "upside down": frame("transform: rotate(180deg)", BUTTON.format("Go")),
    "square and turned": frame("width: 200px; transform: rotate(90deg); border: 0", BUTTON.format("Go")),
    "square and turned back": frame("width: 200px; rotate: 270deg", BUTTON.format("Go")),
    "mirrored": frame("transform: scaleX(-1)", BUTTON.format("Go")),
    "mirrored by its own property": frame("scale: 1 -1; border: 0", BUTTON.format("Go")),
    "back of a card": frame("transform: rotateY(180deg)", BUTTON.format("Go")),
    "in what is upside down": f"<div style='width: 320px; rotate: 180deg'>{frame('border: 0', BUTTON.format('Go'))}</div>",
    "scaled and turned": frame("width: 200px; transform: scale(0.8) rotate(90deg)", BUTTON.format("Go")),
    "turned in a turned one": frame(
        "width: 340px; height: 340px; border: 0; transform: rotate(90deg)",
        frame("width: 200px; border: 0; transform: scaleX(-1)", BUTTON.format("Go")),
    ),
    "upright in a turned one": frame(
        "width: 340px; height: 340px; border: 0; transform: rotate(180deg)", frame("border: 0", BUTTON.format("Go"))
    ),
    "in a smaller one": frame(
        "transform: scale(0.8); transform-origin: 0 0; padding: 7px",
        frame("transform: scale(0.5); padding: 9px", BUTTON.format("Go")),
    ),
}


async def look(cdp: CDPSession) -> Reading:
    return await Observer().observe(cdp, viewport=VIEWPORT, instruction="Press it.")


@pytest.mark.parametrize(("name", "scale"), [*((name, 1.0) for name in FRAMES), ("smaller", 2.0)])
async def test_an_element_is_where_the_engine_draws_it(on_page: Any, name: str, scale: float) -> None:
    async def script(page: Page, cdp: CDPSession) -> tuple[Any, Any, int]:
        inner = page.frames[-1]
        await inner.evaluate(
            "document.querySelector('button').addEventListener('click', () => { window.clicks = (window.clicks || 0) + 1; })"
        )
        await inner.evaluate("scrollTo(0, 15)")
        reading = await look(cdp)
        (handle,) = reading.handles.values()
        assert handle.point is not None, "it is to be seen"
        await page.mouse.click(*handle.point)
        (element,) = reading.observation.elements
        left, top, width, height = element.box
        await page.mouse.click(left + width / 2, top + height / 2)
        return element.box, await inner.locator("button").bounding_box(), await inner.evaluate("window.clicks")

    seen, drawn, clicks = await on_page(FRAMES[name], script, scale)
    assert seen == pytest.approx((drawn["x"], drawn["y"], drawn["width"], drawn["height"]), abs=0.51)
    assert clicks == 2, "the point and the middle of the box are the element's"


async def test_only_frames_that_may_lie_elsewhere_are_asked(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[str]:
        asked: list[str] = []
        send = cdp.send

        async def counted(method: str, params: Any = None) -> Any:
            asked.append(method)
            return await send(method, params)

        cdp.send = counted  # type: ignore[method-assign]
        await look(cdp)
        return [method for method in asked if method == "DOM.getBoxModel"]

    assert await on_page(FRAMES["plain"], script) == []
    assert await on_page(FRAMES["plain"] + FRAMES["smaller"], script) == ["DOM.getBoxModel"]


async def test_a_frame_that_shows_nothing_is_no_error(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[str]:
        return [element.text for element in (await look(cdp)).observation.elements]

    hidden = frame("transform: scale(0)", BUTTON.format("In")) + frame("display: none", BUTTON.format("In"))
    assert await on_page(f"{hidden}<button>Out</button>", script) == ["Out"]


async def test_a_pinched_page_is_seen_as_its_picture_shows_it(on_page: Any) -> None:
    """Scaled and moved in its own viewport, with a frame in it."""

    async def script(page: Page, cdp: CDPSession) -> tuple[Any, Any]:
        await cdp.send("Emulation.setPageScaleFactor", {"pageScaleFactor": 1.6})
        await page.mouse.move(700, 300)
        for turned in ((60, 0), (0, 40)):
            await page.mouse.wheel(*turned)
            await page.wait_for_function(
                "([x, y]) => visualViewport.pageLeft * x + visualViewport.pageTop * y > 0", arg=turned
            )
        reading = await look(cdp)
        (element,), (handle,) = reading.observation.elements, reading.handles.values()
        assert handle.point is not None
        inner = page.frames[-1]
        await inner.evaluate("addEventListener('click', event => { window.hit = event.target.localName; })")
        await page.mouse.click(*handle.point)
        assert await inner.evaluate("window.hit") == "button"
        moved = await page.evaluate("[visualViewport.pageLeft, visualViewport.pageTop]")
        return element.box, moved

    seen, moved = await on_page(f"<style>body {{margin: 0}}</style>{frame('border: 0', BUTTON.format('Go'))}", script)
    assert moved[0] > 0 and moved[1] > 0
    assert seen == pytest.approx((1.6 * (60 - moved[0]), 1.6 * (40 - moved[1]), 128, 48), abs=0.6)
