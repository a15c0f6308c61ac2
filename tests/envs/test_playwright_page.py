"""Playwright's page on the tab of an episode: what it does is seen, and time stands still after."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from envs import BrowserError, EnvHost, TaskError
from envs.playwright_page import playwright_page
from tests.builders import page_task
from tests.envs.conftest import Opener

FORM = """<form><input id=name><button type=button onclick="send()">Send</button></form><p id=said></p>
<div id=box style="transition: transform 200ms; width: 50px; height: 20px">Box</div>
<button id=far style="position: absolute; left: -300px; transition: left 300ms" onclick="said.textContent += ' far'">Far</button>
<script>
function send() {
  setTimeout(() => { said.textContent = "Sent " + document.getElementById("name").value; far.style.left = "200px" }, 300)
}
let ticks = 0
setInterval(() => { ticks += 1; document.title = "tick " + ticks }, 100)
</script>"""


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[EnvHost]:
    async with EnvHost(max_sessions=3) as host:
        yield host


async def test_a_form_that_playwright_fills_is_seen_and_rewarded(host: EnvHost) -> None:
    async with host.open("miniwob/enter-text", seed=7) as env:
        first = await env.reset()
        name = first.observation.instruction.split('"')[1]
        async with env.page() as page:
            await page.fill("#tt", name)
        seen = await env.observe()
        assert (seen.done, seen.reward) == (False, 0.0)
        assert [element.value for element in seen.observation.elements if element.tag == "input"] == [name]
        step = await env.step("click [2]")  # the numbers are those of the page as it is now
        assert (step.done, step.reward) == (True, 1.0)


async def test_an_episode_that_ends_inside_is_graded(host: EnvHost) -> None:
    async with host.open("miniwob/click-test", seed=3) as env:
        await env.reset()
        async with env.page() as page:
            await page.click("#subbtn")
        step = await env.observe()
        assert (step.done, step.reward, step.abstained) == (True, 1.0, None)
        assert await env.observe() == step  # graded once
        with pytest.raises(TaskError, match="the episode is over"):
            env.page()


async def test_time_runs_inside_and_stands_after(pages: Opener) -> None:
    async with pages({"index.html": FORM}) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task(), seed=0)
        tab = session.page.tab
        before = await tab.evaluate("Date.now()")
        async with playwright_page(session.lend()) as page:
            await page.fill("#name", "Ada")
            await page.click("text=Send")
            await page.wait_for_function("said.textContent == 'Sent Ada'")  # a timer that fires inside
            await page.click("#far")  # which slides in
            assert await page.text_content("#said") == "Sent Ada far"
            assert (await page.screenshot()).startswith(b"\x89PNG")
        assert await tab.evaluate("Date.now()") - before >= 600
        step = session.seen
        assert "Sent Ada far" in str(step.observation)
        stood = await tab.evaluate("[Date.now(), ticks]")
        await asyncio.sleep(0.3)
        assert await tab.evaluate("[Date.now(), ticks]") == stood


async def test_the_pages_of_another_episode_are_not_reachable(host: EnvHost) -> None:
    async with host.open("miniwob/click-test", seed=3) as mine, host.open("miniwob/click-button", seed=3) as other:
        await mine.reset()
        shown = (await other.reset()).observation
        async with mine.page() as page, other.page() as theirs:
            for one in (page, theirs):
                browser = one.context.browser
                assert browser is not None
                assert [[seen.url for seen in context.pages] for context in browser.contexts] == [[one.url]]
            opened = await page.context.new_page()
            assert len(page.context.pages) == 2 and len(theirs.context.pages) == 1
            await opened.close()
        assert (await other.observe()).observation == shown


async def test_steps_wait_for_the_page_to_be_given_back(host: EnvHost) -> None:
    async with host.open("miniwob/click-test", seed=3) as env:
        with pytest.raises(TaskError, match="no episode"):
            env.page()
        await env.reset()
        with pytest.raises(ZeroDivisionError):  # a mistake of the caller's ends nothing
            async with env.page():
                with pytest.raises(TaskError, match="the page is lent"):
                    await env.step("click [1]")
                raise ZeroDivisionError
        assert (await env.step("click [1]")).reward == 1.0


async def test_a_context_that_was_lent_is_not_used_again(host: EnvHost) -> None:
    async with host.open("miniwob/click-test", seed=3) as env:
        await env.reset()
        async with env.page() as page:
            await page.context.add_cookies([{"name": "left", "value": "over", "url": page.url}])
            await page.add_init_script("window.left = 'over'")
    async with host.open("miniwob/click-test", seed=3) as env:
        await env.reset()
        async with env.page() as page:
            assert await page.evaluate("[document.cookie, window.left]") == ["", None]


@pytest.mark.slow
@pytest.mark.long
async def test_a_script_that_does_not_end_and_a_dialog_are_dealt_with(pages: Opener) -> None:
    async with pages({"index.html": "<p>Here</p>"}) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task(), seed=0)
        async with session.lend() as lent:
            script = "void setTimeout(() => { while (true); }, 10)"
            await lent.page.tab.cdp.send("Runtime.evaluate", {"expression": script})
            await asyncio.sleep(0.2)
        assert session.seen.observation.notices == ("a script of the page did not end and was stopped",)
        async with session.lend() as lent:
            script = "void setTimeout(() => confirm('Sure?'), 10)"
            await lent.page.tab.cdp.send("Runtime.evaluate", {"expression": script})
            await asyncio.sleep(0.2)
        assert session.seen.observation.dialog == "confirm: Sure?"


async def test_a_chromium_that_is_killed_inside_is_an_abstention() -> None:
    async with EnvHost(max_sessions=1) as own, own.open("miniwob/click-test", seed=3) as env:
        await env.reset()
        with pytest.raises(BrowserError):
            async with env.page():
                os.kill(own.pool.browser_pids()[0], signal.SIGKILL)
        step = await env.observe()
        assert step.done and step.reward is None and step.abstained
        assert not (await env.reset()).done


def test_nothing_of_it_is_imported_before_it_is_used() -> None:
    script = "import sys, envs.env, envs.host; print([name for name in ('playwright', 'websockets.asyncio') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
