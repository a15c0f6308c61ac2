"""Fixtures: a Chromium as episodes have it (one process for frames of all origins), pages of
`benchmarks/pages`, and CDP sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.async_api import Browser, CDPSession, Page, async_playwright

from envs.browser.process.chromium import LAUNCH_ARGS, find_chromium
from envs.sites.static_server import StaticServer

PAGES = Path(__file__).parents[3] / "benchmarks" / "pages"
VIEWPORT = (1280, 720)
ONE_PROCESS = ("--disable-site-isolation-trials", "--disable-features=IsolateOrigins,site-per-process")

T = TypeVar("T")
Script = Callable[[Page, CDPSession], Awaitable[T]]


@pytest.fixture(scope="module")
async def browser(anyio_backend: str) -> AsyncIterator[Browser]:
    """A Chromium for the tests of a module."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=[*LAUNCH_ARGS, *ONE_PROCESS])
        yield browser
        await browser.close()


@asynccontextmanager
async def new_page(browser: Browser, scale: float = 1.0) -> AsyncIterator[tuple[Page, CDPSession]]:
    """A page in a context of its own, and its CDP session."""
    width, height = VIEWPORT
    page = await browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=scale)
    try:
        yield page, await page.context.new_cdp_session(page)
    finally:
        await page.close()


@pytest.fixture
def on_page(browser: Browser) -> Callable[..., Any]:
    """``on_page(html, script, scale=1)``: what ``script(page, cdp)`` returns on a page of this
    body."""

    async def run(html: str, script: Script[T], scale: float = 1.0) -> T:
        async with new_page(browser, scale) as (page, cdp):
            await page.set_content(f"<!DOCTYPE html><html><head><title>t</title></head><body>{html}</body></html>")
            return await script(page, cdp)

    return run


@pytest.fixture
def on_labelled(browser: Browser) -> Callable[..., Any]:
    """``on_labelled(script)``: what ``script(page, cdp)`` returns on the labelled page, with a
    frame of another origin and port."""

    async def run(script: Script[T], scale: float = 1.0) -> T:
        near, far = StaticServer(PAGES), StaticServer(PAGES)
        await near.start()
        await far.start()
        try:
            async with new_page(browser, scale) as (page, cdp):
                await page.goto(f"{near.origin}/labelled.html?far={far.origin.rsplit(':', 1)[1]}")
                await page.frame_locator("#far").locator("p").wait_for()
                return await script(page, cdp)
        finally:
            await near.close()
            await far.close()

    return run
