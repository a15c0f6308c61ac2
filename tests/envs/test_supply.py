"""Episodes lent as DevTools addresses: played by Playwright, given back, never a reward of 0."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from playwright.async_api import Error, Page, Playwright, async_playwright
from websockets.exceptions import ConnectionClosed

from envs import Answer, CapacityError, ConfigError, EnvHost, TaskError
from envs.supply import DevToolsSupply, open_devtools
from tests.envs.devtools_client import bare_client

SHOP = "bundled/shop-open/200000/0"


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[EnvHost]:
    async with EnvHost(max_sessions=2, lease_deadline=0.3) as host:
        yield host


@pytest.fixture(scope="module")
async def playwright() -> AsyncIterator[Playwright]:
    async with async_playwright() as playwright:
        yield playwright


async def page_at(playwright: Playwright, url: str) -> Page:
    """The page that a client of the address is shown first."""
    browser = await playwright.chromium.connect_over_cdp(url)
    return browser.contexts[0].pages[0]


async def test_playwright_plays_two_sites_at_once_over_their_addresses(host: EnvHost, playwright: Playwright) -> None:
    async with (
        open_devtools(host, "miniwob/enter-text", seed=7) as miniwob,
        open_devtools(host, SHOP) as shop,
    ):
        assert shop.describe()["instruction"] == "Open the page of the Zephra Pillow."
        form, catalogue = await page_at(playwright, miniwob.cdp_url), await page_at(playwright, shop.http_url)
        await form.fill("#tt", (await form.inner_text("#query")).split('"')[1])
        await catalogue.fill("input[name=q]", "Zephra Pillow")
        await catalogue.press("input[name=q]", "Enter")
        await catalogue.click("a:text-is('Zephra Pillow')")
        await catalogue.wait_for_load_state()
        assert "Zephra Pillow" in await catalogue.inner_text("h1")
        assert len(catalogue.context.pages) == len(form.context.pages) == 1
        await form.click("#subbtn")
    assert miniwob.result is not None and shop.result is not None
    assert (miniwob.result.reward, shop.result.reward) == (1.0, 1.0)
    assert shop.env.trajectory is not None and shop.env.trajectory.reward.score == 1.0


async def test_a_popup_becomes_a_page_of_the_client(host: EnvHost, playwright: Playwright) -> None:
    async with open_devtools(host, SHOP) as lease:
        page = await page_at(playwright, lease.cdp_url)
        async with page.expect_popup() as opening:
            await page.evaluate("void open(location.href)")
        popup = await opening.value
        await popup.wait_for_load_state()
        assert await popup.title() == await page.title()
        await popup.close()
        assert page.context.pages == [page]


async def test_a_client_that_makes_a_context_gets_that_of_the_episode_once(
    host: EnvHost, playwright: Playwright
) -> None:
    async with open_devtools(host, SHOP) as lease:
        browser, other = [await playwright.chromium.connect_over_cdp(lease.cdp_url) for _ in range(2)]
        first = browser.contexts[0].pages[0]
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(first.url)
        assert await page.title() == await first.title()
        for client in (browser, other):  # two contexts would share their cookies
            with pytest.raises(Error, match="open another session"):
                await client.new_context()
        await context.close()
        assert browser.contexts[0].pages == [first]
        async with bare_client(lease.cdp_url) as client:
            assert len((await client.call("Target.getTargets"))["targetInfos"]) == 1, "its tab is closed"
    assert lease.result is not None and lease.result.reward == 0.0


async def test_nothing_outside_of_the_site_is_reached(host: EnvHost, playwright: Playwright) -> None:
    async with open_devtools(host, SHOP) as lease, open_devtools(host, "miniwob/click-test") as other:
        page, strange = await page_at(playwright, lease.cdp_url), await page_at(playwright, other.cdp_url)
        async with page.expect_response(strange.url) as answer:
            await page.evaluate("url => { location.href = url }", strange.url)
        assert (await answer.value).status == 403  # of the context's proxy, as in any episode
        assert "is not reachable from here (loopback)" in await page.inner_text("body")


async def test_an_orphan_is_given_back_at_the_end_of_its_lease(host: EnvHost) -> None:
    async with DevToolsSupply(host, lease_seconds=2) as supply:
        lease, held = await supply.open("miniwob/click-test", seed=3), await supply.open(SHOP)
        with pytest.raises(CapacityError):
            await supply.open("miniwob/click-test")
        async with bare_client(lease.cdp_url) as client:
            assert await lease.ended == "no client said anything for 2 s"
            await client.socket.wait_closed()
            assert (client.socket.close_code, client.socket.close_reason) == (1001, "the session's lease is over")
        await held.ended
        for ended in (lease, held):
            assert ended.result is not None
            assert ended.result.done and ended.result.reward is None
            assert ended.result.abstained == "the lease ended: no client said anything for 2 s"
        with pytest.raises(TaskError, match="it is over"):
            await supply.close(lease.lease_id)
        again = await supply.open("miniwob/click-test", seed=3)
        assert (await supply.close(again.lease_id)).reward == 0.0  # closed by its owner, who had done nothing


async def test_a_client_that_speaks_keeps_its_lease(host: EnvHost) -> None:
    async with DevToolsSupply(host, lease_seconds=0.6) as supply:
        lease = await supply.open("miniwob/click-test", seed=3)
        async with bare_client(lease.cdp_url) as client:
            for _ in range(8):
                await client.call("Browser.getVersion")
                await asyncio.sleep(0.1)
            assert not lease.ended.done()


async def test_the_owner_of_an_environment_goes_on_with_it(host: EnvHost) -> None:
    async with DevToolsSupply(host) as supply, host.open("miniwob/enter-text", seed=7) as env:
        with pytest.raises(TaskError, match="no episode"):
            await supply.offer(env)
        name = (await env.reset()).observation.instruction.split('"')[1]
        lease = await supply.offer(env)
        with pytest.raises(TaskError, match="the page is lent"):
            await supply.offer(env)
        async with bare_client(lease.cdp_url) as client:
            session = (await client.attach())[1]
            await client.evaluate(session, f"tt.value = '{name}'")
        assert not (await supply.close(lease.lease_id)).done
        assert (await env.step("click [2]")).reward == 1.0
        with pytest.raises(ConfigError, match="lease_seconds"):
            await supply.offer(env, lease_seconds=0)
        await env.reset()
        lease = await supply.offer(env)
        async with bare_client(lease.cdp_url) as client:
            await client.call("Browser.getVersion")
            assert lease.idle < 5
            await env.close()  # in the middle of it
            assert await lease.ended == "its environment was closed"
            await client.socket.wait_closed()
        assert lease.result is None and not supply.leases


async def test_an_answer_ends_an_episode(host: EnvHost) -> None:
    async with DevToolsSupply(host) as supply:
        lease = await supply.open(SHOP)
        step = await supply.close(lease.lease_id, Answer(text="done"))
        assert (step.done, str(step.stop)) == (True, "answer")


async def test_a_killed_chromium_closes_its_clients_and_is_no_reward(playwright: Playwright) -> None:
    async with EnvHost(max_sessions=1) as own, DevToolsSupply(own) as supply:
        lease = await supply.open("miniwob/click-test", seed=3)
        async with bare_client(lease.cdp_url) as client:
            await client.attach()
            os.kill(own.pool.browser_pids()[0], signal.SIGKILL)
            await client.socket.wait_closed()
            assert client.socket.close_code == 1011
            assert (client.socket.close_reason or "").startswith("the browser went away")
            with pytest.raises(ConnectionClosed):
                await client.socket.send("{}")
        assert await lease.ended
        assert lease.result is not None and lease.result.reward is None and lease.result.abstained
        async with open_devtools(own, "miniwob/click-test", seed=3) as again:
            await (await page_at(playwright, again.cdp_url)).click("#subbtn")
        assert again.result is not None and again.result.reward == 1.0


async def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/playwright.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) >= 2
    for example in examples[:2]:
        names: dict[str, Any] = {}
        exec(f"async def main():\n{indent(example, '    ')}", names)
        await names["main"]()
        assert capsys.readouterr().out == "1.0\n"


LEASES = 200


@pytest.mark.slow
@pytest.mark.long
async def test_two_hundred_leases_leave_nothing_behind() -> None:
    async with EnvHost(max_sessions=4) as own, DevToolsSupply(own) as supply:

        async def play() -> None:
            lease = await supply.open("miniwob/click-test", seed=3)
            async with bare_client(lease.cdp_url) as client:
                _, session = await client.attach()
                await client.evaluate(session, "document.querySelector('#subbtn').click()")
            assert (await supply.close(lease.lease_id)).done

        async def counted() -> dict[str, int]:
            (browser,) = own.pool.contexts.browser_set.browsers
            targets = (await browser.connection.browser.send("Target.getTargets"))["targetInfos"]
            await asyncio.sleep(0.1)
            gc.collect()
            return {
                "targets": len(targets),
                "sessions": len(browser.connection.sessions),
                "contexts": len(browser.contexts),
                "listeners": len(own.pool.contexts.cache.listeners),
                "tasks": len(asyncio.all_tasks()),
                "files": len(os.listdir("/proc/self/fd")),
                "leases": len(supply.leases),
            }

        await asyncio.gather(*(play() for _ in range(4)))
        before = await counted()
        for _ in range(LEASES // 4):
            await asyncio.gather(*(play() for _ in range(4)))
        after = await counted()
        assert {name: after[name] for name in before if after[name] > before[name] + 2} == {}
        assert (after["targets"], after["contexts"], after["leases"]) == (0, 0, 0)
