"""Fixtures: a Chromium as episodes have it (one process for frames of all origins), pages of `benchmarks/pages`, and CDP sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.async_api import CDPSession, Page, async_playwright

from envs.browser.chromium import LAUNCH_ARGS, find_chromium
from envs.sites.static_server import StaticServer

PAGES = Path(__file__).parents[3] / "benchmarks" / "pages"
VIEWPORT = (1280, 720)
ONE_PROCESS = ("--disable-site-isolation-trials", "--disable-features=IsolateOrigins,site-per-process")

T = TypeVar("T")
Script = Callable[[Page, CDPSession], Awaitable[T]]


@asynccontextmanager
async def chromium_page(scale: float = 1.0) -> AsyncIterator[tuple[Page, CDPSession]]:
    """A new page of a new Chromium, and its CDP session."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=[*LAUNCH_ARGS, *ONE_PROCESS])
        try:
            width, height = VIEWPORT
            page = await browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=scale)
            yield page, await page.context.new_cdp_session(page)
        finally:
            await browser.close()


@pytest.fixture
def on_page() -> Callable[..., Any]:
    """``on_page(html, script, scale=1)``: what ``script(page, cdp)`` returns on a page of this body."""

    def run(html: str, script: Script[T], scale: float = 1.0) -> T:
        async def play() -> T:
            async with chromium_page(scale) as (page, cdp):
                await page.set_content(f"<!DOCTYPE html><html><head><title>t</title></head><body>{html}</body></html>")
                return await script(page, cdp)

        return asyncio.run(play())

    return run


@pytest.fixture
def on_labelled() -> Callable[..., Any]:
    """``on_labelled(script)``: what ``script(page, cdp)`` returns on the labelled page, with a frame of another origin and port."""

    def run(script: Script[T], scale: float = 1.0) -> T:
        async def play() -> T:
            near, far = StaticServer(PAGES), StaticServer(PAGES)
            await near.start()
            await far.start()
            try:
                async with chromium_page(scale) as (page, cdp):
                    await page.goto(f"{near.origin}/labelled.html?far={far.origin.rsplit(':', 1)[1]}")
                    await page.frame_locator("#far").locator("p").wait_for()
                    return await script(page, cdp)
            finally:
                await near.close()
                await far.close()

        return asyncio.run(play())

    return run
