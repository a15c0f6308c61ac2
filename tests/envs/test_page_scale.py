"""Pages that are scaled to a telephone, or pinched: boxes, marks and points are those of the
picture."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from envs.browser import PageStep
from envs.browser.options import Device
from envs.types import Action, Click, Drag, Hover, Scroll
from tests.builders import page_task

BODY = """<style>{style} body {{ margin: 0; height: 2600px }} button {{ position: absolute; border: 0 }}</style>{meta}
<button id=buy style="left:250px;top:200px;width:60px;height:40px;background:#f00;color:#f00">Buy</button>
<button id=far style="left:{far}px;top:700px;width:60px;height:40px;background:#00f;color:#00f">Far</button>
<p id=log style="position:absolute;top:300px;left:9px;width:200px"></p><script>
const say = event => {{ log.textContent += ' ' + event.type + ':' + (event.target.id || event.target.localName); }};
for (const type of ['click', 'mousedown', 'mouseup']) addEventListener(type, say);
buy.onmouseenter = say;
</script>"""

META = "<meta name=viewport content='{}'>"
CASES = {
    "none": ("", "", 1, 900),
    "as wide as the device": (META.format("width=device-width, initial-scale=1"), "", 1, 250),
    "width": (META.format("width=1024"), "", 1, 900),
    "wider than the device": (META.format("width=600, initial-scale=1"), "", 1, 500),
    "half": (META.format("width=device-width, initial-scale=0.5"), "", 1, 600),
    "double": (META.format("width=device-width, initial-scale=2"), "", 1, 250),
    "at least": (META.format("width=device-width, initial-scale=1, minimum-scale=1.5"), "", 1, 250),
    "none, sharp screen": ("", "", 3, 900),
    "zoomed by its style": (META.format("width=device-width"), "html { zoom: 1.5 }", 2, 100),
}


def coloured(picture: bytes, colour: str) -> tuple[float, float, float, float] | None:
    """x, y, width, height of what is red or blue in a picture; ``None`` for nothing."""
    pixels = np.array(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)
    own, others = {"red": (0, (1, 2)), "blue": (2, (0, 1))}[colour]
    ys, xs = np.nonzero((pixels[:, :, own] > 180) & (pixels[:, :, others] < 90).all(axis=2))
    if not len(xs):
        return None
    return float(xs.min()), float(ys.min()), float(np.ptp(xs) + 1), float(np.ptp(ys) + 1)


def aim(step: PageStep, colour: str) -> dict[str, tuple[float, float]]:
    """The middle of what a picture shows in a colour, as a target."""
    box = coloured(step.screenshot, colour)
    assert box is not None
    wide, high = Image.open(io.BytesIO(step.screenshot)).size
    return {"at": (1000 * (box[0] + box[2] / 2) / wide, 1000 * (box[1] + box[3] / 2) / high)}


async def test_boxes_and_points_are_those_of_the_picture(pages: Any) -> None:
    bodies = {
        f"{number}.html": BODY.format(meta=meta, style=style, far=far)
        for number, (meta, style, _, far) in enumerate(CASES.values())
    }
    for screen in (1, 2, 3):
        device = Device(width=390, height=844, scale=screen, mobile=True)
        async with pages(bodies, device=device) as (pool, site), pool.lease(site) as session:
            for number, (name, (*_, own, _)) in enumerate(CASES.items()):
                if own != screen:
                    continue
                step = await session.reset(page_task(f"/{number}.html"), 0)
                for _ in range(3):  # to the right, where the button is beside what is seen
                    if coloured(step.screenshot, "red"):
                        break
                    step = await session.step(Scroll(direction="right", amount=0.5))
                (element,) = (each for each in step.observation.elements if each.text == "Buy")
                seen = coloured(step.screenshot, "red")
                assert seen is not None and step.observation.viewport == (390, 844), name
                assert element.box == pytest.approx([length / screen for length in seen], abs=1.6), name
                actions: list[Action] = [
                    Click(**aim(step, "red")),
                    Click(element=element.index),
                    Hover(at=(5, 995)),
                    Hover(**aim(step, "red")),
                ]
                for action in actions:
                    step = await session.step(action)
                words = " ".join(step.observation.words or ())
                assert words.count("click:buy") == 2 and words.count("mouseenter:buy") >= 2, (name, words)
                assert step.point is not None
                assert 0 <= step.point[0] - seen[0] / screen <= element.box[2], (
                    name,
                    "the point is one of the picture",
                )


async def test_scrolling_brings_the_rest_and_drags_go_where_the_picture_shows(pages: Any) -> None:
    bodies = {
        f"{name}.html": BODY.format(meta=CASES[name][0], style="", far=250) for name in ("none", "half", "double")
    }
    async with (
        pages(bodies, device=Device(width=390, height=844, mobile=True)) as (pool, site),
        pool.lease(site) as session,
    ):
        for name in ("none", "half", "double"):
            step = await session.reset(page_task(f"/{name}.html"), 0)
            assert [each.text for each in step.observation.elements] == ([] if name == "double" else ["Buy", "Far"])
            if name == "double":
                await session.step(Scroll(direction="right"))
                step = await session.step(Scroll(amount=1))
                assert [each.text for each in step.observation.elements] == ["Far"], "a picture further down"
                assert step.observation.scroll[1] == pytest.approx(844, abs=2)
                continue
            start, end = aim(step, "red"), aim(step, "blue")
            step = await session.step(Drag(start=start, end=end))  # type: ignore[arg-type]
            words = " ".join(step.observation.words or ())
            assert "mousedown:buy" in words and "mouseup:far" in words, (name, words)


async def test_a_telephone_without_pictures_is_scaled_too(pages: Any) -> None:
    bodies = {"index.html": BODY.format(meta="", style="", far=900)}
    options = {"device": Device(width=390, height=844, mobile=True), "screenshots": False}
    async with pages(bodies, **options) as (pool, site), pool.lease(site) as session:
        step = await session.reset(page_task("/index.html"), 0)
        boxes = {each.text: each.box for each in step.observation.elements}
        assert boxes["Buy"] == pytest.approx((99.5, 79.6, 23.9, 15.9), abs=0.1)
        step = await session.step(Click(at=(1000 * 111 / 390, 1000 * 87 / 844)))
        assert "click:buy" in " ".join(step.observation.words or ())
