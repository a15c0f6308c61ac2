"""Signals of fixture pages in real Chromium, under the real clock and under CDP virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from envs.signals import SignalReader
from envs.types.signals import PageSignals, Trouble
from tests.envs.egress.servers import Site, serve
from tests.envs.raw_chromium import RawChromium, RawSession, raw_chromium

WIDTH, HEIGHT = 800, 600
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))"
SHIFT = """<!DOCTYPE html><body style="margin:0"><div id=top style="height:0"></div>
<div id=block style="height:300px;width:800px;background:navy;color:white">block</div>
<button id=b style="position:fixed;top:500px;left:0;width:100px;height:50px">b</button>"""
"""The block moves down 60 px when the top grows to 60: impact (300 + 60) / 600 of the viewport,
distance 60 / 800 (the longer side)."""
EXPECTED_SHIFT = (360 / 600) * (60 / 800)
GROW = "document.getElementById('top').style.height = '60px'"
BUSY = "(ms => { const end = performance.now() + ms; while (performance.now() < end); })"


@dataclass
class Tab:
    page: RawSession
    chromium: RawChromium
    reader: SignalReader
    site: Site
    virtual: bool = False

    async def settle(self, ms: float = 100) -> None:
        """Give a virtual clock some time, or wait for two frames of the real one."""
        if not self.virtual:
            await self.page.evaluate(PAINTED)
            return
        policy = {"policy": "pauseIfNetworkFetchesPending", "budget": ms}
        await self.page.until(
            "Emulation.virtualTimeBudgetExpired", self.page.send("Emulation.setVirtualTimePolicy", policy)
        )

    async def go(self, path: str) -> None:
        """Load a path; nothing commits on a stopped clock."""
        if self.virtual:
            await self.page.send("Emulation.setVirtualTimePolicy", {"policy": "advance"})
        await self.page.goto(self.site.origin + path)

    async def show(self, body: str, path: str = "/page") -> None:
        """Load a page as a session does: a free clock until it is loaded, then settle and draw a
        frame."""
        self.site.pages[path] = body
        await self.go(path)
        await self.settle()
        await self.shoot()

    async def shoot(self) -> None:
        await self.page.send("Page.captureScreenshot", {"format": "jpeg", "optimizeForSpeed": True})

    async def read(self) -> PageSignals:
        return await self.reader.read(virtual=self.virtual)

    async def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            await self.page.send("Input.dispatchMouseEvent", event)


@asynccontextmanager
async def tab(folder: Path, *, virtual: bool = False) -> AsyncIterator[Tab]:
    async with (
        serve(Site()) as site,
        raw_chromium(folder, "--disable-features=IsolateOrigins,site-per-process") as chromium,
    ):
        page = await chromium.new_page()
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        await page.send("Emulation.setDeviceMetricsOverride", size)
        if virtual:
            await page.send("Emulation.setVirtualTimePolicy", {"policy": "advance", "initialVirtualTime": 1.7e9})
        yield Tab(page, chromium, await SignalReader.start(page), site, virtual)


both_clocks = pytest.mark.parametrize("virtual", [False, True], ids=["real", "virtual"])


@both_clocks
async def test_a_shift_of_known_size(tmp_path: Path, virtual: bool) -> None:
    async with tab(tmp_path, virtual=virtual) as each:
        await each.show(SHIFT)
        assert (await each.read()).layout_shift == 0
        await each.page.evaluate(GROW)
        await each.settle()
        await each.shoot()
        signals = await each.read()
        assert signals.layout_shift == pytest.approx(EXPECTED_SHIFT, rel=1e-3)
        assert signals.input_shift == 0
        assert [(shift.sources, shift.after_input) for shift in signals.shifts] == [(("div#block",), False)]
        assert (await each.read()).layout_shift == 0, "it was read"


@both_clocks
async def test_a_shift_after_an_input_is_counted_apart(tmp_path: Path, virtual: bool) -> None:
    async with tab(tmp_path, virtual=virtual) as each:
        await each.show(SHIFT + f"<script>document.getElementById('b').onclick = () => {{ {GROW} }}</script>")
        await each.read()
        await each.click(50, 525)
        await each.settle()
        await each.shoot()
        signals = await each.read()
        assert signals.layout_shift == 0
        assert signals.input_shift == pytest.approx(EXPECTED_SHIFT, rel=1e-3)


@both_clocks
async def test_the_largest_paint_names_its_element(tmp_path: Path, virtual: bool) -> None:
    async with tab(tmp_path, virtual=virtual) as each:
        await each.show("<p>small</p><h1 id=big style='font-size:60px'>The largest text of this page</h1>")
        await each.settle()  # under a stopped clock the first frame's entries come with the next slice of time
        signals = await each.read()
        assert signals.largest_paint is not None
        assert signals.largest_paint.element == "h1#big" and signals.largest_paint.size > 10_000
        assert (signals.largest_paint.ms is None) == virtual
        if virtual:
            assert "virtual" in signals.absent["first_paint_ms"]
        else:
            assert signals.first_paint_ms and signals.first_contentful_paint_ms
            assert 0 < signals.first_paint_ms <= signals.first_contentful_paint_ms <= (signals.largest_paint.ms or 0)


async def test_a_long_task_of_known_length_and_the_interaction_that_waits_for_it(tmp_path: Path) -> None:
    async with tab(tmp_path) as each:
        await each.show(SHIFT + f"<script>document.getElementById('b').onclick = () => {BUSY}(120)</script>")
        await each.settle()
        await each.read()
        await each.click(50, 525)
        await each.shoot()
        await each.settle()
        signals = await each.read()
        assert signals.long_task_ms is not None and len(signals.long_task_ms) == 1
        assert 120 <= signals.long_task_ms[0] < 5000
        assert signals.interaction_ms is not None and 120 <= signals.interaction_ms < 10_000
        assert signals.script_ms is not None and signals.task_ms is not None
        assert 0 < signals.script_ms <= signals.task_ms


async def test_work_is_timed_under_a_virtual_clock_too(tmp_path: Path) -> None:
    work = "let s = 0; for (let i = 0; i < 1e8; i++) s += i % 7; window.sum = s"

    async with tab(tmp_path, virtual=True) as each:
        await each.show(SHIFT)
        calm = await each.read()
        await each.page.evaluate(f"setTimeout(() => {{ {work} }}, 10); 0")
        await each.settle()
        signals = await each.read()
        assert signals.script_ms is not None and calm.script_ms is not None
        assert signals.script_ms > 20 + calm.script_ms
        assert signals.long_task_ms is None and "virtual" in signals.absent["long_task_ms"]


@both_clocks
async def test_errors_of_scripts_and_requests(tmp_path: Path, virtual: bool) -> None:
    async with tab(tmp_path, virtual=virtual) as each:
        await each.show(SHIFT)
        assert (await each.read()).counts == {}
        await each.page.evaluate(
            """console.error('went', {a: 1}); console.log('fine'); console.assert(1 === 2, 'assertion');
            setTimeout(() => { throw new RangeError('thrown') }, 0); Promise.reject(new Error('rejected'));
            Promise.allSettled([fetch('/missing?token=1'), fetch('/status/503'), fetch('http://127.0.0.1:9/'), fetch('/status/204')]).then(() => 0)"""
        )
        await each.settle()
        signals = await each.read()
        assert signals.counts == {
            Trouble.CONSOLE_ERROR: 2,
            Trouble.EXCEPTION: 2,
            Trouble.HTTP_ERROR: 2,
            Trouble.FAILED_REQUEST: 1,
        }
        said = {(trouble.kind, trouble.text): trouble.url for trouble in signals.troubles}
        assert (Trouble.CONSOLE_ERROR, "went Object") in said and (Trouble.CONSOLE_ERROR, "assertion") in said
        assert (Trouble.EXCEPTION, "RangeError: thrown") in said and (Trouble.EXCEPTION, "Error: rejected") in said
        assert said[Trouble.HTTP_ERROR, "404"] == each.site.origin + "/missing"
        assert said[Trouble.FAILED_REQUEST, "net::ERR_UNSAFE_PORT"] == "http://127.0.0.1:9/"
        assert (await each.read()).counts == {}


async def test_documents_and_their_status(tmp_path: Path) -> None:
    async with tab(tmp_path) as each:
        await each.show(SHIFT)
        first = await each.read()
        assert first.status == 200
        await each.go("/status/500")
        second = await each.read()
        assert (second.document, second.status) == (first.document + 1, 500)
        assert second.counts == {Trouble.HTTP_ERROR: 1}
        await each.show("<title>other</title><h1>other origin</h1>")
        third = await each.read()
        assert third.document == second.document + 1 and third.layout_shift == 0


async def test_a_frame_of_another_origin_is_read_too(tmp_path: Path) -> None:
    async with tab(tmp_path) as each:
        each.site.pages["/inner"] = SHIFT + f"<script>onmessage = () => {{ {GROW} }}</script>"
        other = each.site.origin.replace("127.0.0.1", "localhost")
        frame = f"<body style='margin:0'><iframe id=f src='{other}/inner' style='border:0;width:800px;height:600px'></iframe>"
        await each.show(frame)
        assert (await each.read()).layout_shift == 0
        await each.page.evaluate("document.getElementById('f').contentWindow.postMessage('grow', '*')")
        await each.settle()
        await each.shoot()
        await each.settle()
        signals = await each.read()
        assert signals.layout_shift is not None and signals.layout_shift > 0
        assert signals.shifts[0].sources == ("div#block",)


async def test_the_page_sees_nothing_of_it(tmp_path: Path) -> None:
    async with tab(tmp_path) as each:
        names = "JSON.stringify([Object.getOwnPropertyNames(window), document.documentElement.outerHTML])"
        each.site.pages["/page"] = f"<script>window.seen = {names}</script>"
        plain = await each.chromium.new_page()
        await plain.goto(each.site.origin + "/page")
        await each.show(each.site.pages["/page"])
        await each.read()
        assert await each.page.evaluate("seen") == await plain.evaluate("seen")
        assert await each.page.evaluate("typeof rollwrightSignals") == "undefined"


@both_clocks
async def test_memory_nodes_and_layers(tmp_path: Path, virtual: bool) -> None:
    async with tab(tmp_path, virtual=virtual) as each:
        await each.show(SHIFT)
        unwatched = await each.read()
        assert unwatched.layers is None and unwatched.absent["layers"]
        await each.shoot()
        before = await each.read()
        assert before.heap_bytes and before.nodes and before.layers
        await each.page.evaluate(
            """for (let i = 0; i < 5; i++) document.body.append(Object.assign(document.createElement('div'), {textContent: 'x',
                style: 'will-change:transform;position:fixed;top:' + i * 40 + 'px'}))"""
        )
        await each.settle()
        await each.shoot()
        after = await each.read()
        assert after.nodes is not None and after.nodes >= before.nodes + 10
        assert after.layers is not None and after.layers >= before.layers + 5
        assert after.gpu_bytes is None and after.absent["gpu_bytes"]
        await each.go("/page")
        await each.reader.watch_layers()
        await each.settle()
        await each.shoot()
        assert (await each.read()).layers == before.layers, "watched before the first reading"


async def test_it_reads_a_document_that_was_there_before(tmp_path: Path) -> None:
    async with tab(tmp_path) as each:
        page = await each.chromium.new_page()
        await page.goto(each.site.origin + "/")
        reader = await SignalReader.start(page)
        for _ in range(50):  # that a frame is shown is heard of later on a busy machine
            await page.evaluate(PAINTED)
            signals = await reader.read(virtual=False)
            if signals.largest_paint is not None:
                break
        assert signals.largest_paint is not None and signals.largest_paint.element == "h1"
