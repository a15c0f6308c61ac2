"""Episodes on a page that the caller opened with Playwright: `open_env(page=...)`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.async_api import Browser, Page, Playwright, async_playwright

from envs import ConfigError, EnvHost, StaticSite, open_env, open_env_sync
from envs.browser.process.chromium import find_chromium
from envs.browser.process.pinned import environment
from envs.types import BrowserError, Trajectory, WebTask

from .adapters.reference import CANARY, digest, reference, without_pictures

WINDOWS = """<!DOCTYPE html><title>Start</title>
<a href="/second.html" target="_blank">Second</a> <button onclick="out.textContent = confirm('Sure?')">Ask</button>
<p id=out>-</p>"""
SECOND = "<!DOCTYPE html><title>Second page</title><button>Here</button>"


@pytest.fixture(scope="module")
async def playwright() -> AsyncIterator[Playwright]:
    async with async_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="module")
async def browser(playwright: Playwright) -> AsyncIterator[Browser]:
    """The caller's own browser."""
    browser = await playwright.chromium.launch(executable_path=find_chromium(), env={**environment()})
    yield browser
    await browser.close()


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """The caller's page, with a size and a cookie of his own."""
    context = await browser.new_context(viewport={"width": 700, "height": 500})
    await context.add_cookies([{"name": "mine", "value": "kept", "domain": "127.0.0.1", "path": "/"}])
    yield await context.new_page()
    await context.close()


async def left_as_it_was(page: Page) -> None:
    """The page works, has its size, its cookie, and no window or session of ours."""
    await page.goto("data:text/html,<input id=a><script>onresize=()=>{}</script>")
    await page.fill("#a", "works", timeout=5000)
    seen = (
        "[innerWidth, innerHeight, devicePixelRatio, matchMedia('(prefers-reduced-motion: reduce)').matches, a.value]"
    )
    assert await page.evaluate(seen) == [700, 500, 1, False, "works"]
    assert len(page.context.pages) == 1
    assert [(cookie["name"], cookie["value"]) for cookie in await page.context.cookies()] == [("mine", "kept")]


@pytest.mark.parametrize("task", ["miniwob/enter-text", "bundled/shop-open/200000/0", "design2code/1"])
async def test_an_episode_is_that_of_open_env(page: Page, task: str) -> None:
    expected = reference(task)
    async with open_env(task, seed=expected.seed, page=page) as env:
        steps = [await env.reset(), *[await env.step(text) for text in expected.texts]]
        assert [digest(step.observation) for step in steps] == expected.observations
        assert (steps[-1].reward, env.trajectory and env.trajectory.stop_reason) == (
            expected.reward,
            expected.trajectory.stop_reason,
        )
        assert env.trajectory is not None
        assert comparable(env.trajectory) == comparable(expected.trajectory)
        sizes = [Image.open(BytesIO(step.screenshot)).size for step in steps if step.screenshot]
        assert sizes == [Image.open(BytesIO(step.screenshot)).size for step in expected.steps if step.screenshot]
    await left_as_it_was(page)


def comparable(trajectory: Trajectory) -> str:
    """Digest of a trajectory without pictures and without how the page came to rest, which a clock
    that runs changes."""
    data = without_pictures(trajectory)
    return digest({**data, "steps": [{**step, "settled": ""} for step in data["steps"]]})


async def test_playwright_and_the_policy_see_what_the_other_did(page: Page) -> None:
    async with open_env("miniwob/enter-text", seed=7, page=page) as env:
        first = await env.reset()
        name = first.observation.instruction.split('"')[1]
        await env.step(f'type [1] "{name[:-1]}"')
        assert await page.input_value("#tt") == name[:-1]
        async with env.page() as own:
            assert own is page
            await own.locator("#tt").press("End")
            await own.keyboard.type(name[-1])
        seen = await env.observe()
        assert [element.value for element in seen.observation.elements if element.tag == "input"] == [name]
        assert (await env.step("click [2]")).reward == 1.0
        assert (await env.reset()).observation == first.observation, "the next episode begins anew"
    await left_as_it_was(page)


async def test_windows_and_dialogs_are_the_policys(page: Page, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(WINDOWS)
    (tmp_path / "second.html").write_text(SECOND)
    options: dict[str, Any] = {"site": StaticSite("windows", tmp_path), "instruction": "Look around.", "horizon": 20}
    async with open_env("index.html", page=page, **options) as env:
        await env.reset()
        step = await env.step("click [2]")
        assert step.observation.dialog == "confirm: Sure?"
        await env.step('{"action": "dialog", "accept": true}')
        assert await page.text_content("#out") == "true"
        step = await env.step("click [1]")
        assert [tab.number for tab in step.observation.tabs] == [1, 2]
        assert [element.text for element in step.observation.elements] == ["Here"]
        assert len(page.context.pages) == 2
        step = await env.step('{"action": "close_tab", "tab": 1}')  # the caller's own is only left
        assert not page.is_closed() and [element.text for element in step.observation.elements] == ["Here"]
        assert len((await env.reset()).observation.elements) == 2
        assert len(page.context.pages) == 1
        step = await env.step('{"action": "new_tab", "url": "/second.html"}')
        assert [tab.active for tab in step.observation.tabs] == [False, True]
    await left_as_it_was(page)


async def test_an_episode_finds_nothing_of_the_one_before(page: Page) -> None:
    async with open_env(CANARY, page=page) as env:
        for _ in range(2):
            step = await env.reset()
            assert "found: nothing" in str(step.observation)
            await env.step("click [1]")
            assert await page.evaluate("[document.cookie, localStorage.k, sessionStorage.k]") == [
                "k=cookie",
                "local",
                "session",
            ]
            await page.reload()  # it is kept within the episode
            assert await page.evaluate("[localStorage.k, sessionStorage.k, window.name]") == [
                "local",
                "session",
                "name",
            ]
    assert (await page.context.storage_state())["origins"] == []
    await left_as_it_was(page)


async def test_a_page_that_is_closed_is_an_abstention(browser: Browser) -> None:
    page = await browser.new_page()
    async with open_env("miniwob/click-test", seed=3, page=page) as env:
        await env.reset()
        await page.close()
        step = await env.step("click [1]")
        assert step.done and step.reward is None and step.abstained
        with pytest.raises(BrowserError, match="cannot be driven"):
            await env.reset()


async def test_what_cannot_hold_is_refused(page: Page, playwright: Playwright, tmp_path: Path) -> None:
    wrong: list[tuple[str, str | WebTask, dict[str, Any]]] = [
        ("expected a page of playwright.async_api", "miniwob/click-test", {"page": object()}),
        ("clock is not held", "miniwob/click-test", {"page": page, "date": "2024-05-01"}),
    ]
    for message, task, options in wrong:
        with pytest.raises(ConfigError, match=message):
            open_env(task, **options)
    with pytest.raises(BrowserError, match="its own event loop"):
        open_env_sync("miniwob/click-test", page=page)
    async with EnvHost(max_sessions=1) as host:
        with pytest.raises(ConfigError, match="a page or a pool"):
            host.open("miniwob/click-test", page=page)
    site = StaticSite("mine", tmp_path)
    site.cookies = [{"name": "user", "value": "1", "url": "http://127.0.0.1"}]
    with pytest.raises(ConfigError, match="log in on your page"):
        async with open_env("index.html", site=site, instruction="Look.", page=page):
            pass
    async with open_env("miniwob/click-test", page=page) as env:
        await env.reset()
        with pytest.raises(ConfigError, match="is your own"):
            env.lend()
