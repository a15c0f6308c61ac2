"""What never comes, and what a page asks before it is there, costs time and not the episode."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO

import pytest
from PIL import Image

from envs.browser import BrowserPool
from envs.browser.dispatcher import Dispatcher
from envs.browser.operations import Limits
from envs.settle import SettleReason, VirtualClock
from envs.settle.requests import PARTS
from envs.sites import LiveOptions, LiveSite
from envs.types import Click, Dialog, WebTask
from tests.envs.dynamic import page as page_of

SECONDS = 4.0
"""Real seconds of a wait in these tests."""

REST = "<h1>Shop</h1><button onclick=\"this.textContent = 'bought'\">buy</button>"
NEVER = {
    "style sheet": f"<link rel=stylesheet href=/never>{REST}",
    "style sheet in another": f"<style>@import url(/never);</style>{REST}",
    "style sheet below": f"{REST}<link rel=stylesheet href=/never><p>after it</p>",
    "script": f"<script src=/never></script>{REST}",
    "deferred script": f"<script defer src=/never></script>{REST}",
    "script module": f"<script type=module src=/never></script>{REST}",
    "font": f"<style>@font-face {{ font-family: f; src: url(/never); }} h1 {{ font-family: f; }}</style>{REST}",
    "picture": f"<img src=/never>{REST}",
    "picture of a style": f"<style>body {{ background: url(/never); }}</style>{REST}",
    "frame": f"<iframe src=/never></iframe>{REST}",
}
ASKED = {
    "confirm": ("<script>window.answer = confirm('Over 18?')</script>", "confirm: Over 18?", True),
    "prompt": ("<script>window.answer = prompt('Your name?')</script>", "prompt: Your name?", "Ada"),
    "confirm of a timer": (
        "<script>setTimeout(() => { window.answer = confirm('Stay?') }, 50)</script>",
        "confirm: Stay?",
        True,
    ),
    "confirm at load": (
        "<script>onload = () => { window.answer = confirm('Cookies?') }</script>",
        "confirm: Cookies?",
        True,
    ),
    "alert, then confirm": (
        "<script>alert('Hello'); window.answer = confirm('Go on?')</script>",
        "confirm: Go on?",
        True,
    ),
}
PAGES = {
    **NEVER,
    **{name: before + REST for name, (before, _, _) in ASKED.items()},
    "alert": f"<script>alert('Hello')</script>{REST}",
}


@contextmanager
def served() -> Iterator[LiveSite]:
    over = threading.Event()

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/never"):
                over.wait(60)
                return
            body = f"<!DOCTYPE html><title>t</title>{list(PAGES.values())[int(self.path[1:])]}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield LiveSite("live.test", LiveOptions(addresses={"live.test": f"http://127.0.0.1:{server.server_port}"}))
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def on(name: str) -> WebTask:
    return page_of(f"/{list(PAGES).index(name)}").model_copy(update={"site": "live.test"})


async def without(pool: BrowserPool, site: LiveSite, name: str) -> None:
    part = next(part for part in PARTS.values() if part in name)
    async with pool.lease(site) as session:
        step = await session.reset(on(name), 1)
        said = step.observation.notices[-1]
        assert said.startswith(f"a {part} did not come") and said.endswith("/never"), name
        assert step.screenshot and [each.text for each in step.observation.elements] == ["buy"], name
        step = await session.step(Click(element=1))
        assert step.settled is not None and step.settled.complete, f"{name} is waited for once"
        assert [each.text for each in step.observation.elements] == ["bought"] and not step.observation.notices, name


async def asks(pool: BrowserPool, site: LiveSite, name: str) -> None:
    _, shown, answer = ASKED[name]
    async with pool.lease(site) as session:
        step = await session.reset(on(name), 1)
        assert (step.observation.dialog, step.observation.elements) == (shown, ()), name
        assert step.observation.notices == (("Hello",) if "alert" in name else ()), name
        assert step.settled is not None and step.settled.reason is SettleReason.DIALOG
        assert step.observation.url == f"{site.origin}{on(name).path}"
        assert Image.open(BytesIO(step.screenshot)).size == site.viewport
        step = await session.step(Dialog(accept=True, text="Ada" if answer == "Ada" else None))
        assert [each.text for each in step.observation.elements] == ["buy"], name
        assert await session.page.tab.evaluate("answer") == answer


async def is_reset(pool: BrowserPool, site: LiveSite, name: str) -> None:
    async with pool.lease(site) as session:
        for seed in (1, 2):
            step = await session.reset(on(name), seed)
            assert not step.observation.dialog and [each.text for each in step.observation.elements] == ["buy"], name
            cancelled = False if "confirm" in name else None
            assert await session.page.tab.evaluate("[seeded, answer]") == [seed, cancelled]


async def test_a_dialog_before_a_page_is_reset_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as site:
        async with BrowserPool() as pool:
            monkeypatch.setattr(site, "reset_script", lambda task, seed: f"window.seeded = {seed}")
            async with asyncio.TaskGroup() as rows:
                for name in ASKED:
                    rows.create_task(is_reset(pool, site, name))
            late = "setTimeout(() => { window.answer = confirm('Begin?') }, 50)"
            monkeypatch.setattr(site, "reset_script", lambda task, seed: late)
            async with pool.lease(site) as session:
                step = await session.reset(on("alert"), 1)
                assert (step.observation.dialog, step.observation.elements) == ("confirm: Begin?", ())
                await session.step(Dialog(accept=True))
                assert await session.page.tab.evaluate("answer") is True


async def test_a_page_whose_parts_never_come_is_shown_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VirtualClock.settle.__kwdefaults__, "seconds", SECONDS)
    with served() as site:
        async with BrowserPool() as pool:
            navigation = replace(Limits().navigation, slots=len(NEVER))  # all of them wait at once
            pool.dispatcher = Dispatcher(replace(Limits(), navigation=navigation))
            async with asyncio.TaskGroup() as rows:
                for name in NEVER:
                    rows.create_task(without(pool, site, name))


async def test_a_dialog_on_the_first_page_is_shown_and_answered() -> None:
    with served() as site:
        async with BrowserPool() as pool:
            async with asyncio.TaskGroup() as rows:
                for name in ASKED:
                    rows.create_task(asks(pool, site, name))
            async with pool.lease(site) as session:
                step = await session.reset(on("alert"), 1)
                assert step.observation.notices == ("Hello",) and len(step.observation.elements) == 1
