"""Renders HTML without network access: screenshot and text blocks.

The page is loaded from its own text (a ``data:`` address), its scripts do not run, and the
context's way out lets nothing through. So it can only show what it brings along, and the same text
gives the same pixels: fonts are pinned (`envs.settle`), the clock stands still, animations are at
their end.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pictures

from envs.browser.options import Device
from envs.browser.pool import BrowserPool
from envs.browser.tab import Tab
from envs.rewards.design2code.blocks import COMPUTED, page_blocks
from envs.rewards.design2code.records import PageBlocks
from envs.rewards.design2code.ssim import Image
from envs.sites.design2code import VIEWPORT

MAX_PIXELS = (2 * VIEWPORT[0], 5000)
"""Width and height to which a picture is cut. Without a bound a page of some bytes could ask for
gigabytes of picture."""

DEADLINE = 30.0
"""Real seconds for one page; 0.3 s is the rule."""

MAX_CACHED = 16
"""Pages whose drawing is remembered: those of a group share their reference."""

WITHOUT_TEXT = """*, *::before, *::after, *::placeholder, *::marker {
  -webkit-text-fill-color: transparent !important; -webkit-text-stroke-color: transparent !important;
  text-shadow: none !important; transition: none !important}"""


class RenderedPage(NamedTuple):
    """A page as it is seen."""

    picture: Image
    """(height, width, 3) of the whole page, cut to `MAX_PIXELS`; one pixel for a CSS pixel."""
    blank: Image
    """The same without its letters."""
    png: bytes
    blocks: PageBlocks
    cut: bool = False
    """The page is larger than `MAX_PIXELS`: what lies beyond was not looked at."""


class PageRenderer:
    """Draws pages in contexts of a pool, each in one of its own."""

    def __init__(self, pool: BrowserPool, *, deadline: float = DEADLINE) -> None:
        self._pool = pool
        self._deadline = deadline
        self._kept: dict[str, RenderedPage] = {}
        self._under_way: dict[str, asyncio.Lock] = {}

    async def render(self, html: str) -> RenderedPage:
        """The page of this HTML.

        Raises:
            BrowserError: the browser, the page or the deadline.
        """
        return await self._pool.scratch_tab(
            Device(width=VIEWPORT[0], height=VIEWPORT[1]),
            lambda tab: render_page(tab, html),
            deadline=self._deadline,
            what="drawing a page",
        )

    async def reference(self, html: str) -> RenderedPage:
        """The same, remembered: for pages that many others are compared with."""
        key = hashlib.sha256(html.encode()).hexdigest()
        async with self._under_way.setdefault(key, asyncio.Lock()):
            if key not in self._kept:
                self._kept[key] = await self.render(html)
                while len(self._kept) > MAX_CACHED:
                    oldest = next(iter(self._kept))
                    del self._kept[oldest], self._under_way[oldest]
            return self._kept[key]


async def render_page(tab: Tab, html: str) -> RenderedPage:
    """Load HTML into a tab whose context reaches nothing, and look at all of it."""
    cdp = tab.cdp
    await cdp.send("Emulation.setScriptExecutionDisabled", {"value": True})
    content = base64.b64encode(html.encode()).decode()
    await tab.load(f"data:text/html;charset=utf-8;base64,{content}")
    raw = await cdp.send("DOMSnapshot.captureSnapshot", {"computedStyles": list(COMPUTED), "includePaintOrder": True})
    main = raw["documents"][0]
    size = tuple(
        max(1, least, min(round(main.get(key, 0)), most))
        for key, least, most in zip(("contentWidth", "contentHeight"), VIEWPORT, MAX_PIXELS, strict=True)
    )
    png = await _shoot(tab, size)
    await _hide_text(tab)
    shown, blank = await asyncio.gather(asyncio.to_thread(pixels, png), _shoot(tab, size))
    drawn = await asyncio.to_thread(_rendered_page, raw, png, shown, blank)
    return drawn._replace(
        cut=main.get("contentWidth", 0) > MAX_PIXELS[0] or main.get("contentHeight", 0) > MAX_PIXELS[1]
    )


def _rendered_page(raw: dict[str, Any], png: bytes, shown: Image, blank: bytes) -> RenderedPage:
    without = pixels(blank)
    return RenderedPage(shown, without, png, page_blocks(raw, shown, without))


async def _shoot(tab: Tab, size: tuple[int, ...]) -> bytes:
    clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
    return await tab.picture({"format": "png", "optimizeForSpeed": True, "captureBeyondViewport": True, "clip": clip})


async def _hide_text(tab: Tab) -> None:
    """Make all letters transparent.

    A page that defends its own colours keeps its text on both pictures, and so has none that
    counts.
    """
    await tab.cdp.send("CSS.enable")
    frames = [(await tab.cdp.send("Page.getFrameTree"))["frameTree"]]
    for tree in frames:
        frames += tree.get("childFrames", [])
        sheet = await tab.cdp.send("CSS.createStyleSheet", {"frameId": tree["frame"]["id"]})
        await tab.cdp.send("CSS.setStyleSheetText", {"styleSheetId": sheet["styleSheetId"], "text": WITHOUT_TEXT})


def pixels(png: bytes) -> Image:
    """A picture file as an array, (height, width, 3)."""
    with Pictures.open(io.BytesIO(png)) as picture:
        return np.asarray(picture.convert("RGB"))
