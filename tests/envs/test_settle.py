"""A page has settled: proven on a real Chromium with pages that do everything to whoever waits for
them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from envs.settle import PROCESS_ARGS, SettleReason, VirtualClock
from envs.settle.constants import ANSWER_SECONDS, EPOCH_SECONDS
from tests.envs.devtools import Session, chromium
from tests.envs.driving import Driven, open_driven
from tests.envs.dynamic_site import CANARIES, FIXTURES, DynamicSite, Fixture

SECONDS = 5.0
"""Real-time budget in these tests."""
SLACK = 5.0
"""What a busy machine adds to a call."""


@asynccontextmanager
async def on_a_page(*, virtual: bool = True) -> AsyncIterator[tuple[Driven, DynamicSite]]:
    """A tab of a Chromium of its own, and the site."""
    with DynamicSite() as site:
        async with chromium(*PROCESS_ARGS) as browser:
            yield await open_driven(browser, seed=1, virtual=virtual), site


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
async def test_a_fixture_is_complete_within_its_budget(fixture: Fixture) -> None:
    async with on_a_page() as (page, site):
        await page.load(site.origin + fixture.path)
        assert await page.state() == "ready"
        await page.press()
        started = time.perf_counter()
        settled = await page.clock.settle(seconds=SECONDS)
        assert time.perf_counter() - started < SECONDS + 2 * ANSWER_SECONDS + SLACK
        assert (await page.state() == "done") == fixture.complete
        assert settled.complete or not fixture.complete
        # Whatever it did, the clock now stands.
        before = await page.cdp.evaluate("Date.now()")
        assert await page.cdp.evaluate("Date.now()") == before


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rest", SettleReason.RESTED),
        ("long-poll", SettleReason.OPEN_REQUESTS),
        ("events", SettleReason.OPEN_REQUESTS),
        ("worker", SettleReason.BACKGROUND),
        ("loop", SettleReason.BUSY),
        ("hops", SettleReason.DEADLINE),
        ("alerts", SettleReason.DIALOG),
    ],
)
async def test_the_reason_is_said(name: str, reason: SettleReason) -> None:
    async with on_a_page() as (page, site):
        await page.load(f"{site.origin}/{name}.html")
        pressing = asyncio.create_task(page.press())  # an alert holds it up
        await asyncio.wait({pressing}, timeout=0.2)
        settled = await page.clock.settle(seconds=3)
        assert settled.reason is reason
        assert settled.complete is (reason not in (SettleReason.BUSY, SettleReason.DEADLINE))
        pressing.cancel()


async def test_a_long_poll_is_paid_for_once() -> None:
    async with on_a_page() as (page, site):
        await page.load(f"{site.origin}/long-poll.html")
        await page.press()
        first = await page.clock.settle(seconds=SECONDS)
        await page.press()
        second = await page.clock.settle(seconds=SECONDS)
        assert first.reason is second.reason is SettleReason.OPEN_REQUESTS
        assert second.real_ms < first.real_ms / 2


async def test_a_page_is_usable_after_a_script_that_never_ended() -> None:
    async with on_a_page() as (page, site):
        await page.load(f"{site.origin}/loop.html")
        await page.press()
        assert (await page.clock.settle(seconds=1)).reason is SettleReason.BUSY
        await page.load(f"{site.origin}/timers.html")
        await page.press()
        assert (await page.clock.settle(seconds=SECONDS)).complete
        assert await page.state() == "done"


async def test_the_clock_begins_at_the_epoch_and_moves_only_by_what_is_given() -> None:
    async with on_a_page() as (page, site):
        loaded = await page.load(f"{site.origin}/rest.html")
        now = await page.cdp.evaluate("Date.now()")
        assert now == 1000 * EPOCH_SECONDS + loaded.virtual_ms
        settled = await page.clock.settle(300)
        assert await page.cdp.evaluate("Date.now()") == now + settled.virtual_ms == now + 300


async def test_frames_and_screenshots_come_after_long_real_time() -> None:
    async with on_a_page() as (page, site):
        loaded = await page.load(f"{site.origin}/rest.html")
        # Real time passes that the page was not given: a model thinks.
        until = time.perf_counter() + 3 * loaded.virtual_ms / 1000
        while time.perf_counter() < until:
            await page.cdp.evaluate("1")
        async with asyncio.timeout(SECONDS):
            assert (await page.cdp.send("Page.captureScreenshot", {"format": "jpeg"}))["data"]


async def test_windows_and_other_sites_share_the_clock_of_their_episode() -> None:
    async with on_a_page() as (page, site):
        await page.load(f"{site.origin}/rest.html")
        await page.cdp.evaluate("open('popup-child.html', '', 'noopener'); 0")
        await page.clock.settle()
        targets = (await page.browser.send("Target.getTargets"))["targetInfos"]
        (child,) = [target for target in targets if target["url"].endswith("popup-child.html")]
        window = await page.browser.attach(child["targetId"])
        await page.clock.settle()
        assert await window.evaluate("Date.now()") == await page.cdp.evaluate("Date.now()")
        await page.load(f"{site.other_origin}/rest.html")
        assert await window.evaluate("Date.now()") == await page.cdp.evaluate("Date.now()")


async def test_a_browser_whose_clock_is_left_alone_is_waited_for_until_quiet() -> None:
    async with on_a_page(virtual=False) as (page, site):
        for name in ("rest", "fetches", "interval", "transition"):
            await page.load(f"{site.origin}/{name}.html")
            await page.press()
            settled = await page.clock.settle(seconds=SECONDS)
            assert settled.reason is SettleReason.NO_CLOCK
            assert settled.complete and settled.virtual_ms == 0
            assert await page.state() == "done", name


async def test_frames_of_a_page_whose_clock_is_left_alone_go_on() -> None:
    async with on_a_page(virtual=False) as (page, site):
        await page.load(f"{site.origin}/rest.html")
        await page.cdp.evaluate(
            "window.at = []; const draw = (now) => { at.push(now); requestAnimationFrame(draw); }; draw(0); 0"
        )
        async with asyncio.timeout(SECONDS):
            while not await page.cdp.evaluate("at.length > 3 && at.at(-1) > at.at(-2)"):
                pass


class WithoutVirtualTime:
    """A session of a browser that does not know virtual time; the answer to that is the browser's
    own."""

    def __init__(self, cdp: Session) -> None:
        self._cdp = cdp

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self._cdp.send(method.replace("Emulation.setVirtualTimePolicy", "Emulation.noSuchMethod"), params)

    def on(self, event: Any, f: Callable[..., Any]) -> None:
        self._cdp.on(event, f)


async def test_a_browser_without_virtual_time_is_found_out() -> None:
    async with on_a_page() as (page, site):
        cdp = await page.browser.page()
        other = Driven(page.browser, cdp, VirtualClock(WithoutVirtualTime(cdp)))
        await other.clock.begin()
        await other.load(f"{site.origin}/rest.html")  # quiet is no proof on a page that waits for something
        await other.press()
        settled = await other.clock.settle(seconds=SECONDS)
        assert (settled.reason, settled.complete) == (SettleReason.NO_CLOCK, True)
        assert await other.state() == "done"


async def test_a_document_whose_requests_began_unheard_is_waited_for() -> None:
    async with on_a_page() as (page, site):
        cdp = await page.browser.page()
        late = Driven(page.browser, cdp, VirtualClock(cdp, virtual=False))
        await cdp.send("Page.navigate", {"url": f"{site.origin}/slow-script.html"})
        await asyncio.sleep(0.15)  # its script has been asked for when the clock begins, and listens
        await late.clock.settle(seconds=SECONDS)
        assert await late.state() == "ready"
        await late.press()
        assert (await late.clock.settle(seconds=SECONDS)).complete
        assert await late.state() == "done"


async def test_a_new_session_of_a_page_goes_on_with_its_clock() -> None:
    async with on_a_page() as (page, site):
        await page.load(f"{site.origin}/timers.html")
        before = await page.cdp.evaluate("Date.now()")
        await page.browser.send("Target.detachFromTarget", {"sessionId": page.cdp.session_id})
        cdp = await page.browser.attach(page.cdp.target_id)
        again = Driven(page.browser, cdp, VirtualClock(cdp))
        await again.clock.begin()
        assert await cdp.evaluate("Date.now()") == before
        await again.press()
        assert (await again.clock.settle(seconds=SECONDS)).complete
        assert await again.state() == "done"


async def test_an_observer_of_the_page_sees_nothing_of_it() -> None:
    async with on_a_page() as (page, site):
        await page.load(f"{site.origin}/rest.html")
        await page.cdp.evaluate(
            "window.seen = 0; new MutationObserver((records) => { seen += records.length; })"
            ".observe(document, {subtree: true, childList: true, attributes: true, characterData: true}); 0"
        )
        names = await page.cdp.evaluate(
            "Object.getOwnPropertyNames(window).concat(Object.getOwnPropertySymbols(window)).length"
        )
        await page.clock.settle()
        await page.clock.settle()
        assert await page.cdp.evaluate("seen") == 0
        after = await page.cdp.evaluate(
            "Object.getOwnPropertyNames(window).concat(Object.getOwnPropertySymbols(window)).length"
        )
        assert after == names


async def test_the_canary_page_finds_what_it_left_and_nothing_in_another_context() -> None:
    async def found(page: Driven, site: DynamicSite) -> set[str]:
        await page.load(f"{site.origin}/canaries.html")
        text = await page.cdp.evaluate("document.getElementById('found').textContent")
        assert text.startswith("found:"), text
        return set(text.removeprefix("found:").split())

    async with on_a_page() as (_page, site):
        page = await open_driven(_page.browser, background=True)
        assert await found(page, site) == set()
        await page.press()
        for _ in range(3):  # stores answer when they please
            settled = await page.clock.settle()
            assert settled.reason is SettleReason.BACKGROUND
        assert await page.state() == "done"
        assert await found(page, site) == set(CANARIES)
        assert await found(await open_driven(_page.browser, background=True), site) == set()
