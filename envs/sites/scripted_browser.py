"""A Chromium of its own for a user's Playwright script, behind the egress proxy."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from envs.egress import AllowList
from envs.egress.proxy import EgressProxy, Listener
from envs.types import ConfigError
from envs.types.extensions import Extensions

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

PageScript = Callable[["Page"], Awaitable[None]]


@asynccontextmanager
async def open_scripted_browser(allow: AllowList) -> AsyncIterator[tuple[Browser, Listener]]:
    """Start a Chromium that reaches these origins alone, and close it at the end.

    The listener counts what its pages were refused.
    """
    from playwright.async_api import async_playwright  # who has no script does not wait for it

    from envs.browser import find_chromium

    async with EgressProxy() as egress:
        listener = await egress.open(allow)
        proxy: Any = {"server": listener.address, "bypass": "<-loopback>"}
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=str(find_chromium()), proxy=proxy)
            try:
                yield browser, listener
            finally:
                await browser.close()


def find_script(scripts: Extensions[Any], name: str) -> PageScript:
    """Return the script of a name.

    Raises:
        ConfigError: It cannot be imported, or it is no coroutine function.
    """
    script: PageScript = scripts.find(name)
    if not inspect.iscoroutinefunction(script):
        raise ConfigError(
            f"{scripts.kind} {name}: is no coroutine function; write async def {name.partition(':')[2]}(page)"
        )
    return script
