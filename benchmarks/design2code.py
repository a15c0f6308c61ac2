"""Design2Code without CLIP.

From blocks: one pair of pages with 100 text blocks each and screenshots of 1280 x 720, a quarter of
the words different. From HTML: a page of 100 blocks on 1288 x 1400 pixels and its reference, drawn
by the browser and compared.
"""

from __future__ import annotations

import asyncio
import html
import random
import statistics
import string
import time

import numpy as np

from benchmarks import Figure
from envs.browser import BrowserPool
from envs.episodes.page_renderer import PageRenderer
from envs.rewards.design2code import Image, PageBlocks, TextBlock, design_score

BLOCKS, WIDTH, HEIGHT = 100, 1280, 720
DIFFERENT = 0.25
"""Share of the words of the built page that are others."""
ROUNDS = 5
"""The median is reported."""


def run() -> list[Figure]:
    """Seconds a page pair, for a built page with faults and for the reference itself."""
    reference, built = pages(random.Random(0))
    pictures = screenshots()
    seconds = {name: _median(reference, page, pictures) for name, page in (("faulty", built), ("equal", reference))}
    both, one = asyncio.run(drawn(reference, built))
    return [
        Figure("a page pair with faults", seconds["faulty"], "s", "<= 1"),
        Figure("a page and itself", seconds["equal"], "s", "<= 1"),
        Figure("from HTML to the score, both pages drawn", both, "s", "<= 1"),
        Figure("from HTML to the score, reference known", one, "s", "<= 1"),
    ]


def pages(rng: random.Random) -> tuple[PageBlocks, PageBlocks]:
    """A reference and a built page: other words here and there, and blocks up to 20 pixels from
    their place."""
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(600)]
    reference, built = [], []
    for at in range(BLOCKS):
        written = rng.choices(words, k=rng.randint(1, 14))
        left, colour = rng.uniform(20, 1000), (rng.randint(0, 255), 20, 30)
        block = TextBlock(text=" ".join(written), left=left, top=7 * at, width=200, height=16, colour=colour)
        other = " ".join(rng.choice(words) if rng.random() < DIFFERENT else word for word in written)
        reference.append(block)
        built.append(block.model_copy(update={"text": other, "left": left + rng.uniform(-20, 20)}))
    size = {"width": WIDTH, "height": HEIGHT}
    return PageBlocks(blocks=tuple(reference), **size), PageBlocks(blocks=tuple(built), **size)


async def drawn(reference: PageBlocks, built: PageBlocks) -> tuple[float, float]:
    """Median seconds from two texts of HTML to the score: with both pages drawn (at the same time),
    and with the built one only."""
    first, second = as_html(reference), as_html(built)
    both, one = [], []
    async with BrowserPool() as pool:
        drawer = PageRenderer(pool)
        await drawer.render(first)  # the browser's own first time
        for _ in range(ROUNDS):
            start = time.perf_counter()
            known, page = await asyncio.gather(drawer.render(first), drawer.render(second))
            design_score(known.blocks, page.blocks, (known.picture, page.picture))
            both.append(time.perf_counter() - start)
            start = time.perf_counter()
            page = await drawer.render(second)
            design_score(known.blocks, page.blocks, (known.picture, page.picture))
            one.append(time.perf_counter() - start)
    assert len(known.blocks.blocks) == BLOCKS
    return statistics.median(both), statistics.median(one)


def as_html(page: PageBlocks) -> str:
    """A page of these blocks, 14 pixels apart."""
    placed = "".join(
        f'<p style="left:{block.left:.0f}px;top:{14 * at}px;color:rgb{block.colour}">{html.escape(block.text)}</p>'
        for at, block in enumerate(page.blocks)
    )
    style = "p {position: absolute; margin: 0; white-space: nowrap; font: 11px/14px sans-serif}"
    return f"<!DOCTYPE html><meta charset=utf-8><style>{style}</style><body>{placed}"


def screenshots() -> tuple[Image, Image]:
    """Noise, and the same with a black bar."""
    first = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    second = first.copy()
    second[100:200] = 0
    return first, second


def _median(reference: PageBlocks, built: PageBlocks, pictures: tuple[Image, Image]) -> float:
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        design_score(reference, built, pictures)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
