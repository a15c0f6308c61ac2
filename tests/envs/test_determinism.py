"""Equal episodes look equal, to the bit."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import pytest

from envs.browser.process.pinned import FONTS, PINNED_FOLDER, environment
from envs.settle import FONT_FAMILIES, PROCESS_ARGS
from tests.envs.devtools import Session, chromium
from tests.envs.driving import Driven, open_driven
from tests.envs.dynamic_site import DynamicSite

REPETITIONS = 10
VALUES = "JSON.stringify([...document.querySelectorAll('input')].map((field) => field.value))"


async def seen(page: Driven, site: DynamicSite) -> tuple[str, str]:
    """What can be seen of a page, as one hash; and its text, for the message of a failure."""
    shot = await page.cdp.send("Page.captureScreenshot", {"format": "png"})
    snapshot = await page.cdp.send("DOMSnapshot.captureSnapshot", {"computedStyles": ["opacity", "transform"]})
    frames = {document["frameId"] for document in snapshot["documents"]}  # other ones in each tab
    strings = json.dumps([text for at, text in enumerate(snapshot["strings"]) if at not in frames])
    strings = strings.replace(site.origin, "")
    text = f"{strings} {await page.cdp.evaluate(VALUES)}"
    return hashlib.sha256(f"{shot['data']} {text}".encode()).hexdigest(), text


async def episode(page: Driven, site: DynamicSite) -> list[tuple[str, str]]:
    """Load, press three times, type: what was seen after each."""
    await page.load(f"{site.origin}/episode.html")
    frames = [await seen(page, site)]
    for _ in range(3):
        await page.press()
        await page.clock.settle()
        frames.append(await seen(page, site))
    await page.cdp.send("Input.insertText", {"text": "typed"})
    await page.clock.settle()
    return [*frames, await seen(page, site)]


async def test_ten_episodes_give_one_hash() -> None:
    played = []
    with DynamicSite() as site:
        async with chromium(*PROCESS_ARGS) as browser:
            for _ in range(REPETITIONS):
                page = await open_driven(browser, seed=7)
                played.append(await episode(page, site))
                await page.close()
    for step, frames in enumerate(zip(*played, strict=True)):
        hashes = Counter(digest for digest, _ in frames)
        assert len(hashes) == 1, (step, hashes, {text for _, text in frames})
    assert len({digest for digest, _ in played[0]}) == 5  # and it is not the same picture all along


async def test_another_seed_gives_other_numbers_and_no_seed_gives_new_ones() -> None:
    numbers = "JSON.stringify([Math.random(), crypto.randomUUID(), [...crypto.getRandomValues(new Uint32Array(2))]])"

    async def draw(browser: Any, site: DynamicSite, seed: int | None) -> list[Any]:
        page = await open_driven(browser, seed=seed)
        await page.load(f"{site.origin}/rest.html")
        return list(json.loads(await page.cdp.evaluate(numbers)))

    with DynamicSite() as site:
        async with chromium(*PROCESS_ARGS) as browser:
            one, again, other = [await draw(browser, site, seed) for seed in (1, 1, 2)]
            assert one == again
            assert all(mine != theirs for mine, theirs in zip(one, other, strict=True))
            assert await draw(browser, site, None) != await draw(browser, site, None)
            page = await open_driven(browser, seed=1)
            await page.load(f"{site.origin}/rest.html")
            many = json.loads(await page.cdp.evaluate("JSON.stringify(Array.from({length: 10000}, Math.random))"))
            assert len(set(many)) == 10_000 and all(0 <= number < 1 for number in many)
            assert abs(sum(many) / len(many) - 0.5) < 0.02
            assert await page.cdp.evaluate(
                "/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(crypto.randomUUID())"
            )


TIMED = """(() => {
  const f = new Intl.DateTimeFormat("en"), of = (entry) => [entry.startTime, entry.duration, entry.detail], refused = [];
  for (const [name, ...args] of [["mark"], ["mark", "a", 5], ["mark", "a", {startTime: -1}], ["mark", "domComplete"], ["measure"],
    ["measure", "a", {detail: 1}], ["measure", "a", {}, "m"], ["measure", "a", "?"], ["measure", "a", {end: 1}, "m"]])
    try { performance[name](...args); refused.push(""); } catch (error) { refused.push(error.name); }
  performance.mark("m", {startTime: 7, detail: "d"});
  return [
    f.format(0), f.formatToParts(0)[0].value, f.format === f.format, [0].map(f.format)[0], f.format.length, f.format.name, refused.join(" "),
    of(performance.getEntriesByName("m")[0]), of(performance.measure("a", "m", "m")), of(performance.measure("c", {end: 9})),
    of(performance.measure("b", {start: 3, duration: 2, detail: "e"})), new PerformanceMark("n", null).constructor === PerformanceMark,
    performance.mark("o") instanceof PerformanceMark,
  ];
})()"""
"""What the engine does with dates and times that are given, and what it refuses."""


async def test_the_script_leaves_no_name_and_no_source_behind() -> None:
    names = "JSON.stringify([...Object.getOwnPropertyNames(window), ...Object.getOwnPropertySymbols(window).map(String)].sort())"
    sources = (
        "[Math.random, crypto.randomUUID, crypto.getRandomValues, requestAnimationFrame, cancelAnimationFrame, performance.now, scrollTo,"
        " requestIdleCallback, cancelIdleCallback, performance.mark, performance.measure, PerformanceMark,"
        " new Intl.DateTimeFormat().format, new Intl.DateTimeFormat().formatToParts,"
        " Object.getOwnPropertyDescriptor(Event.prototype, 'timeStamp').get].map(String).every((text) => text.includes('[native code]'))"
    )

    with DynamicSite() as site:
        async with chromium(*PROCESS_ARGS) as browser:
            bare = await browser.page()
            await bare.send("Page.navigate", {"url": f"{site.origin}/rest.html"})
            page = await open_driven(browser, seed=1)
            await page.load(f"{site.origin}/rest.html")
            assert await page.cdp.evaluate(names) == await bare.evaluate(names)
            assert await page.cdp.evaluate(sources)
            assert await page.cdp.evaluate(TIMED) == await bare.evaluate(TIMED)
            refused = "(() => { try { %s; return 'taken'; } catch (error) { return error.name; } })()"
            for bad in ("requestAnimationFrame(1)", "requestIdleCallback(1)", "requestIdleCallback(() => {}, 1)"):
                assert await page.cdp.evaluate(refused % bad) == "TypeError"
            assert (
                await page.cdp.evaluate(refused % "crypto.getRandomValues(new Float32Array(1))") == "TypeMismatchError"
            )


async def test_frames_run_on_the_clock_and_can_be_cancelled() -> None:
    with DynamicSite() as site:
        async with chromium(*PROCESS_ARGS) as browser:
            page = await open_driven(browser)
            await page.load(f"{site.origin}/rest.html")
            await page.cdp.evaluate(
                "window.drawn = []; const draw = (now) => { drawn.push(now - performance.now()); requestAnimationFrame(draw); };"
                "requestAnimationFrame(draw); cancelAnimationFrame(requestAnimationFrame(() => drawn.push('cancelled')));"
                "requestAnimationFrame(() => { throw new Error('one bad callback'); }); requestAnimationFrame(() => drawn.push('after')); 0"
            )
            settled = await page.clock.settle(500)
            drawn = json.loads(await page.cdp.evaluate("JSON.stringify(drawn)"))
            assert "cancelled" not in drawn and drawn.count("after") == 1
            frames = [late for late in drawn if late != "after"]
            assert settled.virtual_ms == 500
            assert frames == [0] * 30


async def test_idle_time_comes_after_each_frame_of_the_clock() -> None:
    script = """
        window.said = [];
        const note = (what) => (deadline) => said.push(what);
        requestIdleCallback(note("idle"));
        requestAnimationFrame(note("frame"));
        cancelIdleCallback(requestIdleCallback(note("cancelled")));
        requestIdleCallback(() => { throw new Error("one bad callback"); }, {timeout: 100});
        requestIdleCallback((deadline) => said.push(deadline instanceof IdleDeadline, deadline.didTimeout, deadline.timeRemaining() > 0));
        const second = () => cancelIdleCallback(third), third = requestIdleCallback(second) + 1;
        requestIdleCallback(note("cancelled by the one before"));
        requestIdleCallback((deadline) => { while (deadline.timeRemaining() > 0); said.push("waited"); });
        window.times = 0;
        const again = () => { times += 1; requestIdleCallback(again); };
        requestIdleCallback(again);
        0
    """

    with DynamicSite() as site:
        async with chromium(*PROCESS_ARGS) as browser:
            page = await open_driven(browser)
            await page.load(f"{site.origin}/rest.html")
            await page.cdp.evaluate(script)
            await page.clock.settle(500)
            said = json.loads(await page.cdp.evaluate("JSON.stringify(said)"))
            assert said == ["frame", "idle", True, False, True, "waited"]
            assert await page.cdp.evaluate("times") in (29, 30)


async def drawn_with(page: Session, family: str) -> str:
    """Name of the font that text of a family is drawn with."""
    await page.evaluate(f"document.body.innerHTML = '<p style=\"font-family: {family}\">text</p>'; 0")
    await page.send("Page.captureScreenshot")  # fonts are chosen when there is something to draw
    root = (await page.send("DOM.getDocument"))["root"]["nodeId"]
    node = await page.send("DOM.querySelector", {"nodeId": root, "selector": "p"})
    (font,) = (await page.send("CSS.getPlatformFontsForNode", node))["fonts"]
    return str(font["familyName"])


@pytest.mark.parametrize("configured", [False, True])
async def test_fonts_are_pinned(configured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"serif": "serif", "sans-serif": "sansSerif", "monospace": "fixed", "cursive": "cursive"}
    wanted = {family: FONT_FAMILIES[key] for family, key in expected.items()}
    folder, font, _ = FONTS[1]
    if not configured and not any(folder.glob(f"fonts/**/{font}")):
        pytest.skip("this machine has no Liberation fonts of its own (fonts-liberation)")
    if configured:
        for name, value in environment().items():
            monkeypatch.setenv(name, value)
        wanted |= {"Arial": "Liberation Sans", "Georgia": "Liberation Serif", "Consolas": "Liberation Mono"}
        if (PINNED_FOLDER / "fonts").exists():  # which Liberation's were made from
            theirs = {"Liberation Sans": "Arimo", "Liberation Serif": "Tinos", "Liberation Mono": "Cousine"}
            wanted = {family: theirs[font] for family, font in wanted.items()}

    async with chromium(*PROCESS_ARGS) as browser:
        page = (await open_driven(browser)).cdp
        for domain in ("DOM", "CSS"):
            await page.send(f"{domain}.enable")
        assert {family: await drawn_with(page, family) for family in wanted} == wanted
