"""What a page of somebody's HTML looks like in a real browser: its blocks, its picture, and what it
cannot do."""

from __future__ import annotations

import asyncio
import io
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

from envs.browser import BrowserPool
from envs.episodes.page_renderer import MAX_PIXELS, PageRenderer, RenderedPage, pixels
from envs.rewards import GradingEvidence
from envs.rewards.design2code import DesignScore, design_score, ssim
from envs.rewards.design2code.blocks import INK, SEEN, page_blocks, seen_part
from envs.rewards.design2code.source import DesignSource
from envs.sites import make_site
from envs.sites.design2code import FOLDER, SPLITS, VIEWPORT, import_tasks
from envs.tasks import load_tasks
from envs.types import BrowserError, ErrorCode, JudgeError, StopReason, Submit

PARTS = ("block_match", "text", "position", "colour", "visual")


@asynccontextmanager
async def drawing() -> AsyncIterator[PageRenderer]:
    async with BrowserPool() as pool:
        yield PageRenderer(pool)


def page(body: str, style: str = "") -> str:
    return f"<!DOCTYPE html><meta charset=utf-8><style>body {{margin: 0; font: 20px/30px sans-serif}} {style}</style>{body}"


def texts(drawn: RenderedPage) -> list[str]:
    return [block.text for block in drawn.blocks.blocks]


def compared(reference: RenderedPage, built: RenderedPage) -> DesignScore:
    return design_score(reference.blocks, built.blocks, (reference.picture, built.picture))


async def test_each_part_falls_with_its_own_fault() -> None:
    """Two bundled pages, each with itself and with one fault at a time."""
    async with drawing() as drawer:
        for number, before, after, moved in (
            (1, "wipes the old line away", "wipes that new mark out", "blockquote {"),
            (8, "Illustrator of maps, mushrooms and machines", "Painter of maps, boats and big machines", ".contact {"),
        ):
            html = (FOLDER / f"{number}.html").read_text(encoding="utf-8")
            assert before in html and moved in html
            reference = await drawer.reference(html)
            same = compared(reference, await drawer.render(html))
            assert [getattr(same, name) for name in PARTS] == [1.0] * 5 and same.final == 1.0

            def lowered(score: DesignScore) -> set[str]:
                return {name for name in PARTS if getattr(score, name) < 1 - 1e-9}

            other_text = compared(reference, await drawer.render(html.replace(before, after)))
            assert "text" in lowered(other_text) and not {"block_match", "colour"} & lowered(other_text)
            shifted = html.replace(moved, moved + " position: relative; left: 60px; top: -20px;")
            assert lowered(compared(reference, await drawer.render(shifted))) == {"position", "visual"}
            coloured = html.replace("</style>", "h1, h2 { color: #0000c0 !important }</style>")
            assert lowered(compared(reference, await drawer.render(coloured))) == {"colour", "visual"}
            hidden = html.replace(moved, moved + " display: none !important;")
            assert {"block_match", "visual"} <= lowered(compared(reference, await drawer.render(hidden))) - {
                "text",
                "colour",
            }
            shade = html.replace("</style>", "body { background: #d0e0d0 !important }</style>")
            assert lowered(compared(reference, await drawer.render(shade))) == {"visual"}


async def test_blocks_are_text_nodes_with_their_lines() -> None:
    html = page(
        '<p style="width:120px">one two three four five six</p><p>plain <b style="color:rgb(200, 0, 0)">bold</b> rest</p>'
        '<p style="text-transform:uppercase">shout</p><p>a \U0001f600 b &amp; c</p><ul><li>item</ul>'
        '<p style="color:oklch(0.63 0.26 29)">other notation</p><p style="color:rgba(0, 0, 0, 0.5)">half</p>'
        '<iframe srcdoc="<p>framed" style="border:0;position:absolute;left:400px;top:300px"></iframe>'
        "<div><template shadowrootmode=open><p>shadow</p></template></div>"
    )
    async with drawing() as drawer:
        blocks = {block.text: block for block in (await drawer.render(html)).blocks.blocks}
    assert set(blocks) == {
        *("one two three four five six", "plain", "bold", "rest", "SHOUT", "a \U0001f600 b & c", "item"),
        *("other notation", "half", "framed", "shadow"),
    }
    long, bold = blocks["one two three four five six"], blocks["bold"]
    assert long.width <= 120 and 75 < long.height < 90  # three lines of 30 px, the letters' height of the last
    assert bold.colour == (200, 0, 0) and blocks["plain"].colour == (0, 0, 0)
    assert bold.left > blocks["plain"].left + blocks["plain"].width and bold.top == blocks["plain"].top
    assert blocks["half"].colour in {(127, 127, 127), (128, 128, 128)}
    red, green, blue = blocks["other notation"].colour
    assert red > 200 and green < 90 and blue < 90
    assert 400 < blocks["framed"].left < 420 and blocks["framed"].top > 300


@pytest.mark.parametrize(
    "trick",
    [
        "display: none",
        "visibility: hidden",
        "opacity: 0.02",
        "color: #fff",
        "color: transparent",
        "-webkit-text-fill-color: transparent",
        "font-size: 0.1px",
        "position: absolute; left: -5000px",
        "position: absolute; top: 9000px",
        "position: absolute; top: 20px; z-index: -1",
        "height: 0; overflow: hidden",
        "transform: scale(0)",
        "clip-path: inset(50%)",
        "text-indent: -3000px; overflow: hidden",
    ],
)
def test_text_that_nobody_sees_is_no_block(trick: str, shared_drawer: Callable[[str], RenderedPage]) -> None:
    cover = (
        '<div style="position:absolute; left:0; top:0; width:600px; height:90px; background:#fff; z-index:-1"></div>'
    )
    drawn = shared_drawer(page(f'<p style="{trick}">nobody sees this</p>{cover}<p style="padding-top:120px">seen</p>'))
    assert texts(drawn) == ["seen"]


def test_a_page_that_defends_its_colours_gains_nothing(shared_drawer: Callable[[str], RenderedPage]) -> None:
    defended = '<p style="-webkit-text-fill-color: #000 !important">mine</p><p>seen</p>'
    assert texts(shared_drawer(page(defended))) == ["seen"]


def test_what_is_cut_off_does_not_count_in_the_box(shared_drawer: Callable[[str], RenderedPage]) -> None:
    (block,) = shared_drawer(
        page('<p style="width:100px;overflow:hidden;white-space:nowrap">cut after some of the words</p>')
    ).blocks.blocks
    assert 80 < block.width <= 100 and block.text.startswith("cut after")


async def test_a_page_reaches_nothing_and_runs_nothing() -> None:
    """Images, styles, frames, refreshes and scripts of a submitted page: no connection is made, no
    script runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    came: list[Any] = []

    def serve() -> None:
        while True:
            try:
                came.append(listener.accept())
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    at = f"http://127.0.0.1:{listener.getsockname()[1]}"
    html = page(
        f'<link rel=stylesheet href="{at}/a.css"><img src="{at}/a.png"><iframe src="{at}/b"></iframe><p>stays</p>'
        f'<iframe src="file:///etc/passwd"></iframe><script>document.body.innerHTML = "<p>changed"; fetch("{at}")</script>'
        f'<object data="{at}/o"></object><video src="{at}/v" autoplay></video><link rel=preconnect href="{at}">'
        f'<svg><image href="{at}/i"/></svg><p onclick="0" style="background: url({at}/bg)">and this</p>'
    )
    try:
        async with drawing() as drawer:
            drawn = await drawer.render(html)
    finally:
        listener.close()
    assert came == []
    assert [text for text in texts(drawn) if text in ("stays", "and this", "changed")] == ["stays", "and this"]
    assert not any("root:" in text for text in texts(drawn))


def test_a_page_that_goes_elsewhere_is_not_followed(shared_drawer: Callable[[str], RenderedPage]) -> None:
    drawn = shared_drawer(page('<meta http-equiv=refresh content="0;url=data:text/html,<p>elsewhere"><p>here</p>'))
    assert texts(drawn) == ["here"]


def test_odd_pages_are_drawn(shared_drawer: Callable[[str], RenderedPage]) -> None:
    for odd in ("", "no tags at all", "<", "<p>" * 3000, "\x00\x01", "<svg><text y=40>letters</text></svg>"):
        assert shared_drawer(odd).picture.shape == (VIEWPORT[1], VIEWPORT[0], 3) or odd.startswith("<p>")
    huge = shared_drawer('<div style="width:90000px;height:900000px">far</div>')
    assert huge.picture.shape == (MAX_PIXELS[1], MAX_PIXELS[0], 3) and texts(huge) == ["far"]
    assert (huge.blocks.width, huge.blocks.height) == MAX_PIXELS and huge.cut
    small = shared_drawer(f'<div style="height:{MAX_PIXELS[1] - 100}px">near</div>')
    assert not small.cut

    class Drew:
        """Draws what was drawn before."""

        async def render(self, html: str) -> RenderedPage:
            return huge if html == "huge" else small

        reference = render

    task = import_tasks()[0]
    for reference, built in (("huge", "small"), ("small", "huge"), ("small", "small")):
        source = DesignSource(Drew(), lambda task, page=reference: page)  # type: ignore[arg-type,misc]
        evidence = GradingEvidence.model_construct(steps=(SimpleNamespace(action=Submit(html=built), error=None),))
        (part,) = asyncio.run(source.parts(task, evidence))
        # Of a page that was not seen whole nobody knows how like the other it is, and the episode
        # abstains.
        assert (part.value is None and part.required) == ("huge" in (reference, built)), part


def test_animations_are_over_and_drawings_equal(shared_drawer: Callable[[str], RenderedPage]) -> None:
    html = page(
        "<p>moves</p>", "@keyframes k {from {margin-left: 0} to {margin-left: 300px}} p {animation: k 5s forwards}"
    )
    first, second = shared_drawer(html), shared_drawer(html)
    assert np.array_equal(first.picture, second.picture) and first.blocks == second.blocks
    assert first.blocks.blocks[0].left >= 299


async def test_a_deadline_is_a_browser_error_and_the_pool_goes_on() -> None:
    async with drawing() as drawer:
        slow = PageRenderer(drawer._pool, deadline=0.001)
        with pytest.raises(BrowserError, match=r"drawing a page took longer than 0\.001 s"):
            await slow.render("<p>x")
        assert texts(await drawer.render("<p>x")) == ["x"]
        first, second = await asyncio.gather(drawer.reference("<p>y"), drawer.reference("<p>y"))
        assert first is second


async def test_drawing_waits_for_no_session_and_leaves_no_browser_of_its_own() -> None:
    site = make_site("design2code")
    await site.start()
    try:
        async with BrowserPool(max_sessions=1) as pool, pool.lease(site) as session:
            await session.reset(import_tasks()[0], 0)
            assert texts(await PageRenderer(pool).render("<p>x")) == ["x"]
            assert (await session.step(Submit(html="<p>"))).done
            assert [each["contexts"] for each in pool.metrics()["browsers"]] == [1]
    finally:
        await site.close()
    pool = BrowserPool(browser_per_episode=True)
    try:
        assert texts(await PageRenderer(pool).render("<p>x")) == ["x"]
        assert pool.browser_pids() == ()
    finally:
        await pool.close()


def test_bundled_pictures_are_of_their_pages(shared_drawer: Callable[[str], RenderedPage]) -> None:
    """Not to the bit: another Chromium may round a letter's edge differently."""
    numbers = [number for split in SPLITS.values() for number in split]
    assert sorted(numbers) == sorted(int(file.stem) for file in FOLDER.glob("*.html")) and len(numbers) >= 6
    for number in numbers:
        drawn = shared_drawer((FOLDER / f"{number}.html").read_text(encoding="utf-8"))
        stored = pixels((FOLDER / f"{number}.png").read_bytes())
        assert stored.shape == drawn.picture.shape and ssim(stored, drawn.picture) > 0.98, number
        assert len(drawn.blocks.blocks) >= 7


async def test_the_site_shows_the_picture_and_takes_a_page() -> None:
    tasks = import_tasks()
    assert load_tasks(FOLDER.parent / "tasks" / "design2code.jsonl") == tasks
    site = make_site("design2code")
    await site.start()
    try:
        async with BrowserPool() as pool, pool.lease(site) as session:
            frame = await session.reset(tasks[0], 0)
            assert frame.observation.offers == ("submit",) and frame.observation.elements == ()
            shown = np.asarray(Pictures.open(io.BytesIO(frame.screenshot)).convert("RGB"))
            stored = pixels((FOLDER / "1.png").read_bytes())[: VIEWPORT[1]]
            assert ssim(shown, stored) > 0.95  # a JPEG of it
            for html, code in (
                (" \n", ErrorCode.EMPTY_SUBMISSION),
                ("x" * 200_001, ErrorCode.SUBMISSION_TOO_LARGE),
            ):
                frame = await session.step(Submit(html=html))
                assert frame.error == code and not frame.done and frame.observation.error
            frame = await session.step(Submit(html="<p>done"))
            assert frame.done and frame.stop is StopReason.SUBMITTED and frame.error is None
    finally:
        await site.close()


def test_ink_and_what_is_seen_of_a_line() -> None:
    blank = np.full((20, 100, 3), 255, dtype=np.uint8)
    shown = blank.copy()
    shown[4:10, 10:30] = (255, 255 - SEEN, 255)
    shown[4:10, 50:52] = (255, 255 - SEEN + 1, 255)

    def seen(*rect: float) -> tuple[float, ...] | None:
        assert seen_part(blank, shown, rect) == seen_part(shown, blank, rect)
        return seen_part(shown, blank, rect)

    assert seen(0.0, 2.5, 100.0, 12.5) == (10.0, 2.5, 30.0, 12.5)
    assert seen(-10.0, -3.0, 200.0, 40.0) is None  # 20 of 210 columns are fewer than a tenth
    assert INK == 0.1 and seen(-10.0, -3.0, 190.0, 40.0) == (10.0, 0.0, 30.0, 20.0)
    assert seen(31.0, 0.0, 60.0, 20.0) is None and seen(200.0, 0.0, 210.0, 5.0) is None
    with pytest.raises(JudgeError, match="expected equal sizes"):
        page_blocks({}, shown, blank[:10])
