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

from typing import Any

from envs.egress import AllowList
from envs.sites.scripted_browser import find_script, open_scripted_browser
from envs.sites.storage_state import StorageState, check_storage_state
from envs.types import SiteError
from envs.types.extensions import Extensions

LOGIN_SECONDS = 120.0
"""Real seconds for one action or wait of a script: single sign-on takes several pages."""

LOGINS: Extensions[Any] = Extensions("log-in", "rollwright.logins", {})
"""Scripts by name; ``module:function`` names one of your own."""


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
    from playwright.async_api import Error  # who has no script does not wait for it

    script = find_script(LOGINS, name)
    async with open_scripted_browser(allow) as (browser, _):
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
