"""Windows that pages open and close: set up before their first script, shown as tabs, and never a
reason to hang."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from envs.browser import PageStep, WebSession
from envs.settle import SettleReason, VirtualClock
from envs.types import Back, Click, CloseTab
from tests.envs.dynamic import dynamic_pool, page

Scenario = Callable[[WebSession], Awaitable[None]]


def play(scenario: Scenario) -> None:
    async def run() -> None:
        async with dynamic_pool(step_deadline=30.0) as (pool, site), pool.lease(site) as session:
            await session.reset(page("/windows.html"), 0)
            await scenario(session)

    asyncio.run(run())


def shown(result: PageStep) -> int:
    """Number of the tab that is shown."""
    return next((tab.number for tab in result.observation.tabs if tab.active), 1)


@pytest.mark.parametrize(("how", "reach"), [("link", "alone"), ("opener", "opener")])
def test_a_window_is_set_up_before_its_first_script(how: str, reach: str) -> None:
    async def scenario(session: WebSession) -> None:
        result = await session.step(Click(element=how))
        assert result.observation.text.startswith(f"calm held 600 windows.html {reach} later")
        assert (shown(result), result.status) == (2, 200)
        assert (await session.step(Back())).observation.error is not None, "its first page is the first of its history"
        result = await session.step(CloseTab())
        assert (shown(result), result.observation.title) == (1, "windows")

    play(scenario)


def test_a_form_is_sent_in_a_window() -> None:
    async def scenario(session: WebSession) -> None:
        result = await session.step(Click(element="form.post"))
        assert (result.status, result.observation.title) == (200, "done")

    play(scenario)


def test_a_window_is_waited_for() -> None:
    async def scenario(session: WebSession) -> None:
        result = await session.step(Click(element="slow"))
        assert (shown(result), result.observation.title) == (2, "done")

    play(scenario)


@pytest.mark.parametrize("how", ["empty", "mail", "emptied"])
def test_a_window_that_gets_no_page_is_empty(how: str) -> None:
    async def scenario(session: WebSession) -> None:
        result = await session.step(Click(element=how))
        assert (shown(result), result.observation.url, result.observation.elements) == (2, "about:blank", ())
        assert result.screenshot
        assert (await session.step(CloseTab())).observation.title == "windows"

    play(scenario)


@pytest.mark.parametrize(("how", "tab"), [("never", 2), ("waits", 2), ("here", 1)])
def test_a_page_that_is_never_answered_is_given_up_and_said(
    how: str, tab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VirtualClock.settle.__kwdefaults__, "seconds", 4.0)

    async def scenario(session: WebSession) -> None:
        result = await session.step(Click(element=how))
        assert result.settled is not None and result.settled.reason is SettleReason.DEADLINE
        assert result.observation.notices == ("the page did not finish loading in time and was stopped",)
        assert shown(result) == tab
        if tab > 1:
            await session.step(CloseTab())
        result = await session.step(Click(element="link"))
        assert result.observation.title == "window-child"

    play(scenario)


@pytest.mark.parametrize("when", ["now", "later"])
def test_a_window_that_closes_itself_gives_way_to_the_one_before(when: str) -> None:
    async def scenario(session: WebSession) -> None:
        await session.step(Click(element="opener"))
        result = await session.step(Click(element=when))
        assert result.error is None and result.settled is not None and result.settled.real_ms < 5000
        assert (result.observation.title, result.observation.tabs) == ("windows", ())
        assert (await session.step(Click(element="link"))).observation.title == "window-child"

    play(scenario)
