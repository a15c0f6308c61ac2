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
from envs.sites.scripted_browser import find_script, open_scripted_browser, script_errors
from envs.sites.storage_state import StorageState, check_storage_state
from envs.types.extensions import Extensions

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
    script = find_script(LOGINS, name)
    async with open_scripted_browser(allow, base_url=address) as (context, _):
        with script_errors(f"log-in {name}", secret=True):
            await script(await context.new_page())
        return check_storage_state(await context.storage_state(indexed_db=True), name)
