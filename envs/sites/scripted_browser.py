"""A Chromium of its own for a user's Playwright script, behind the egress proxy."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from envs.egress import AllowList
from envs.egress.proxy import EgressProxy, Listener
from envs.types import ConfigError, SiteError
from envs.types.extensions import Extensions

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

SCRIPT_SECONDS = 120.0
"""Real seconds for one action or wait of a script: single sign-on takes several pages."""

PageScript = Callable[["Page"], Awaitable[None]]


@asynccontextmanager
async def open_scripted_browser(allow: AllowList, **options: Any) -> AsyncIterator[tuple[BrowserContext, Listener]]:
    """Start a Chromium that reaches these origins alone, and close it at the end.

    The listener counts what its pages were refused.

    Args:
        options: Options of Playwright's ``new_context``.
    """
    from playwright.async_api import async_playwright  # who has no script does not wait for it

    from envs.browser import find_chromium

    async with EgressProxy() as egress:
        listener = await egress.open(allow)
        proxy: Any = {"server": listener.address, "bypass": "<-loopback>"}
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=str(find_chromium()), proxy=proxy)
            try:
                context = await browser.new_context(**options)
                context.set_default_timeout(SCRIPT_SECONDS * 1000)
                yield context, listener
            finally:
                await browser.close()


@contextmanager
def script_errors(what: str, *, secret: bool = False) -> Iterator[None]:
    """Raise a `SiteError` for any error of a script.

    Args:
        secret: True to show nothing that the script typed: later lines of Playwright's message
            show the calls.
    """
    from playwright.async_api import Error

    try:
        yield
    except Error as error:
        raise SiteError(f"{what}: {str(error).partition(chr(10))[0]}") from None
    except Exception as error:
        shown = "" if secret else f": {error}"
        raise SiteError(f"{what}: the script raised {type(error).__name__}{shown}") from error


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
