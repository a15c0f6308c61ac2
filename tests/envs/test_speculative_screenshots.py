"""Pictures that are begun while a page settles: they are kept where they hold, and only there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from envs.browser import WebSession
from envs.browser.speculative_screenshot import MAX_WITHOUT, SpeculativeScreenshots
from envs.types import Click, Scroll, Type, WebTask
from tests.builders import page_task
from tests.envs.dynamic import GO, dynamic_pool, page
from tests.envs.dynamic_site import FIXTURES

SAID = "<button onclick=\"this.textContent += '!'\">go</button><input aria-label=name>"

LATER = {
    "canvas by a timer": "setTimeout(() => paint('#080'), 200)",
    "canvas by many timers": "let n = 0; const each = setInterval(() => { paint(`rgb(${20 * n}, 0, 0)`); if (++n > 4) clearInterval(each); }, 50)",
    "canvas when a promise is kept": "createImageBitmap(canvas).then(() => paint('#00f'))",
    "canvas when it is seen": "new IntersectionObserver(() => paint('#f0f')).observe(canvas)",
    "canvas after the frame": "requestAnimationFrame(() => requestAnimationFrame(() => paint('#0ff')))",
    "canvas by a message": "const {port1, port2} = new MessageChannel(); port1.onmessage = () => paint('#ff0'); port2.postMessage(1)",
    "canvas when the page is idle": "requestIdleCallback(() => paint('#f80'))",
    "a style sheet": "setTimeout(() => document.styleSheets[0].insertRule('#box { background: #c00 }', 1), 100)",
    "a closed shadow root": "setTimeout(() => { shadow.innerHTML = '<b>later</b>'; }, 100)",
    "a box that is scrolled": "setTimeout(() => { box.scrollTop = 40; }, 100)",
    "a picture that is loaded": "setTimeout(() => { const i = new Image(); i.src = pixel; box.prepend(i); }, 100)",
    "a picture of the click": "const i = new Image(); i.src = pixel; box.prepend(i)",
    "words": "setTimeout(() => { box.textContent = 'later'; }, 300)",
    "a transition that waits": "box.style.transition = 'background .1s .2s'; box.style.background = '#0a0'",
    "a place in the page": "location.hash = 'box'",
    "what is asked of the site": "fetch('/index.html').then(() => paint('#8f8'))",
}
"""What a click does that shows later than the click."""

BY_THEN = {
    "canvas when a promise is kept",
    "a picture of the click",
    "a place in the page",
    "what is asked of the site",
}
"""Of these what shows with the first frame, or may."""

PAGE = """<style>#box { width: 200px; height: 60px; overflow: auto; border: 1px solid } #box:target { background: #ccf }</style>
<button onclick="run()">go</button><canvas width=80 height=40></canvas><div id=box>a<br>b<br>c<br>d<br>e<br>f<br>g<br>h</div><div id=host></div>
<script>
const canvas = document.querySelector('canvas'), box = document.getElementById('box');
const shadow = document.getElementById('host').attachShadow({mode: 'closed'});
const paint = (color) => { const at = canvas.getContext('2d'); at.fillStyle = color; at.fillRect(0, 0, 80, 40); };
const pixel = `data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' width='60' height='30'><rect width='60' height='30' fill='red'/></svg>`;
paint('#888');
function run() { DOES }
</script>"""


def on_a_page(
    pages: Any,
    task: WebTask,
    body: str,
    work: Callable[[WebSession, SpeculativeScreenshots], Awaitable[None]],
    **options: Any,
) -> None:
    async def run() -> None:
        async with pages({"index.html": body}, **options) as (pool, site), pool.lease(site) as session:
            await session.reset(task, 0)
            await work(session, session.page.speculative)

    asyncio.run(run())


async def picture_now(session: WebSession) -> bytes:
    """Of the page as it is, whose clock stands."""
    return await session.page.tab.screenshot()


def test_a_page_at_rest_is_pictured_with_its_frame(pages: Any) -> None:
    async def work(session: WebSession, speculative: SpeculativeScreenshots) -> None:
        seen = set()
        for action in [Click(element=1), Type(element=2, text="Ada"), Click(element=1)] * 3:
            result = await session.step(action)
            assert result.screenshot == await picture_now(session)
            seen.add(result.screenshot)
        assert (
            speculative.used >= 5 and speculative.used > speculative.discarded
        )  # the heap may be cleaned up meanwhile
        assert len(seen) >= 6

    on_a_page(pages, page_task("/index.html"), SAID, work)


async def test_what_shows_after_the_frame_is_in_the_picture_and_told_apart(pages: Any) -> None:
    bodies = {f"{number}.html": PAGE.replace("DOES", does) for number, does in enumerate(LATER.values())}

    async with pages(bodies) as (pool, site):
        for name, body in zip(LATER, bodies, strict=True):
            async with pool.lease(site) as session:
                await session.reset(page_task(f"/{body}"), 0)
                before = await picture_now(session)
                result = await session.step(Click(element=1))
                assert result.screenshot == await picture_now(session) != before, name
                assert session.page.speculative.discarded or name in BY_THEN, name


def test_where_it_never_holds_it_is_tried_less_and_less(pages: Any) -> None:
    async def work(session: WebSession, speculative: SpeculativeScreenshots) -> None:
        tried = []
        for _ in range(10):
            before = speculative.discarded
            await session.step(Click(element=1))
            tried.append(speculative.discarded > before)
        assert tried == [True, False, True, False, False, True, False, False, False, False]

    on_a_page(pages, page_task("/index.html"), PAGE.replace("DOES", "setTimeout(() => paint('#080'), 200)"), work)


def test_not_where_there_are_no_pictures_or_more_than_one_frame(pages: Any) -> None:
    async def no_pictures(session: WebSession, speculative: SpeculativeScreenshots) -> None:
        assert (await session.step(Click(element=1))).screenshot == b""
        assert speculative.used == speculative.discarded == 0

    async def scrolled(session: WebSession, speculative: SpeculativeScreenshots) -> None:
        result = await session.step(Scroll(direction="down"))
        assert result.screenshot == await picture_now(session)
        assert speculative.used == speculative.discarded == 0

    on_a_page(pages, page_task("/index.html"), SAID, no_pictures, screenshots=False)
    on_a_page(pages, page_task("/index.html"), f"{SAID}<div style='height: 3000px'>long</div>", scrolled)


@pytest.mark.long
def test_the_picture_of_a_step_is_that_of_the_page() -> None:
    kept = 0

    async def run() -> None:
        nonlocal kept
        async with dynamic_pool() as (pool, site):
            for fixture in FIXTURES:
                if not fixture.complete:
                    continue
                async with pool.lease(site) as session:
                    await session.reset(page(fixture.path), 0)
                    result = await session.step(GO)
                    assert result.screenshot == await picture_now(session), fixture.name
                    kept += session.page.speculative.used

    asyncio.run(run())
    assert kept


def test_each_picture_is_given_back_or_given_up() -> None:
    class Shown:
        """A tab whose clock says what it is told to."""

        def __init__(self, still: bool) -> None:
            self.clock = self
            self.still = still

    given_up = 0

    async def run() -> None:
        nonlocal given_up
        waits = asyncio.Event()

        async def take(tab: Any) -> bytes:
            nonlocal given_up
            try:
                await waits.wait()
            except asyncio.CancelledError:
                given_up += 1
                raise
            return b"picture"

        pictures, tab, other = SpeculativeScreenshots(take), Shown(still=True), Shown(still=True)
        async with pictures.during(tab, worth=True) as begin:  # type: ignore[arg-type]
            assert await pictures.result(tab) is None  # type: ignore[arg-type]  # nobody has begun it
            assert begin is not None
            begin()
            asyncio.get_running_loop().call_later(0.01, waits.set)
            assert await pictures.result(tab) == b"picture"  # type: ignore[arg-type]
        waits.clear()
        with pytest.raises(ValueError, match="fails"):
            async with pictures.during(tab, worth=True) as begin:  # type: ignore[arg-type]
                assert begin is not None
                begin()
                await asyncio.sleep(0)
                raise ValueError("the step fails")
        assert given_up == 1
        for misses, shown in enumerate([other, Shown(still=False), other, other, other, other, other]):
            async with pictures.during(tab, worth=True) as begin:  # type: ignore[arg-type]
                assert begin is not None
                begin()
                await asyncio.sleep(0)
                assert await pictures.result(shown) is None  # type: ignore[arg-type]
            assert given_up == 2 + misses
            for _ in range(min(2**misses, MAX_WITHOUT)):
                async with pictures.during(tab, worth=True) as begin:  # type: ignore[arg-type]
                    assert begin is None
        assert (pictures.used, pictures.discarded) == (1, 7)

    asyncio.run(run())
