"""Log-in scripts: a Playwright function that logs in once, in a browser of its own.

::

    async def log_in(page):
        await page.goto("/login")
        await page.get_by_label("Name").fill("ann")
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url("**/home")

``open_env("live/shop.example", live=LiveOptions(login="my_site:log_in"), …)`` runs it before the
first episode. What the browser then keeps (cookies, ``localStorage``, IndexedDB) is restored into
the context of each episode; it is written to no file.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from envs.egress import AllowList
from envs.egress.proxy import EgressProxy
from envs.sites.storage_state import StorageState, check_storage_state
from envs.types import ConfigError, SiteError
from envs.types.extensions import Extensions

if TYPE_CHECKING:
    from playwright.async_api import Page

LOGIN_SECONDS = 120.0
"""Real seconds for one action or wait of a script: single sign-on takes several pages."""

LoginScript = Callable[["Page"], Awaitable[None]]

LOGINS: Extensions[Any] = Extensions("log-in", "rollwright.logins", {})
"""Scripts by name; ``module:function`` names one of your own."""


def find_login(name: str) -> LoginScript:
    """Return the script of a name.

    Raises:
        ConfigError: It cannot be imported, or it is no coroutine function.
    """
    script: LoginScript = LOGINS.find(name)
    if not inspect.iscoroutinefunction(script):
        raise ConfigError(f"log-in {name}: is no coroutine function; write async def {name.partition(':')[2]}(page)")
    return script


async def run_login(name: str, address: str, allow: AllowList) -> StorageState:
    """Run a script in a Chromium of its own, and return what the browser then keeps.

    Args:
        name: The script, as ``module:function``.
        address: Address of the site; relative addresses in the script begin there.
        allow: Origins that the script's pages may reach.

    Raises:
        ConfigError: The script cannot be imported, or it is no coroutine function.
        SiteError: The script failed. The message has nothing that it typed.
    """
    from playwright.async_api import Error, async_playwright  # who has no script does not wait for it

    from envs.browser import find_chromium

    script = find_login(name)
    egress = EgressProxy()
    await egress.start()
    try:
        listener = await egress.open(allow)
        proxy: Any = {"server": listener.address, "bypass": "<-loopback>"}
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=str(find_chromium()), proxy=proxy)
            try:
                context = await browser.new_context(base_url=address)
                context.set_default_timeout(LOGIN_SECONDS * 1000)
                try:
                    await script(await context.new_page())
                except Error as error:
                    # Later lines of Playwright's message show the calls, with what was typed.
                    raise SiteError(f"log-in {name}: {str(error).partition(chr(10))[0]}") from None
                except Exception as error:
                    raise SiteError(f"log-in {name}: the script raised {type(error).__name__}") from error
                return check_storage_state(await context.storage_state(indexed_db=True), name)
            finally:
                await browser.close()
    finally:
        await egress.close()
