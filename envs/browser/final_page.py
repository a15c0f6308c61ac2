"""The page of an episode after its end, for the checks of a benchmark.

Where it is, what it holds, what an expression is there; and other pages of its site, with the episode's log-in.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from envs.actions.navigate import BLANK
from envs.background import log_failure
from envs.browser.dispatcher import OperationKind
from envs.browser.end_evidence import own_world, script_cause
from envs.types import BrowserError, PageScriptError

if TYPE_CHECKING:
    from envs.browser.episode import EpisodePage
    from envs.browser.tab import Tab


class FinalPage:
    """`envs.rewards.webarena.PageAccess` on the page of an episode. Made by `WebSession.access`.

    Expressions run in a world of their own: the page's scripts do not change what they call, and they may change the page (prepare it).
    """

    def __init__(self, page: EpisodePage) -> None:
        self._page = page

    async def url(self) -> str:
        """Address that is shown, as the page's history has it."""
        tab = self._page.tab
        told = await self._page.run(OperationKind.EVALUATION, lambda: tab.cdp.send("Page.getNavigationHistory"))
        return str(told["entries"][told["currentIndex"]]["url"])

    async def goto(self, url: str) -> None:
        """Load an address anew and wait until the page is at rest.

        A page that says that it does not exist is a page.

        The document that is shown is left first: an address that differs in its fragment only, or not at all, would not be asked for. Neither
        are copies that the browser has kept. Cookies and what the tab has stored stay.

        Raises:
            BrowserError: the address may not be reached or does not answer, or the server failed (500 and more).
        """
        page = self._page
        refused = page.allow.refuse_url(url)
        if refused is not None:
            raise BrowserError(f"{url} may not be reached: {refused}; give tasks.addresses or tasks.reach")
        cdp = page.tab.cdp
        await page.run(OperationKind.NAVIGATION, lambda: _leave(page.tab))
        await cdp.send("Network.setCacheDisabled", {"cacheDisabled": True})
        try:
            await page.run(OperationKind.NAVIGATION, lambda: page.tab.visit(url))
        finally:
            await cdp.send("Network.setCacheDisabled", {"cacheDisabled": False})
        await page.clear_dialogs()
        status = page.tab.clock.requests.main_status
        if status is not None and status >= 500:
            raise BrowserError(f"{url} answered {status}")

    async def content(self) -> str:
        """HTML of the whole page."""
        return str(await self.evaluate("document.documentElement ? document.documentElement.outerHTML : ''"))

    async def inspected(self) -> Any:
        """What `PoolOptions.inspect` gave.

        It is not known after a step that ended with a dialog open.
        """
        return await self._page.inspected()

    async def evaluate(self, expression: str) -> object:
        """Value of a JavaScript expression, after which the page comes to rest.

        Raises:
            PageScriptError: the expression threw.
        """
        page = self._page
        value = await page.run(OperationKind.EVALUATION, lambda: self._evaluate(expression))
        await page.run(OperationKind.INPUT, lambda: page.tab.clock.settle(page.budget_ms))
        await page.clear_dialogs()
        return value

    async def _evaluate(self, expression: str) -> object:
        cdp = self._page.tab.cdp
        params = {"expression": expression, "contextId": await own_world(cdp), "returnByValue": True}
        answer = await cdp.send("Runtime.evaluate", params)
        if "exceptionDetails" in answer:
            raise PageScriptError(script_cause(answer["exceptionDetails"]))
        return answer["result"].get("value")


async def _leave(tab: Tab) -> None:
    """Show the blank page.

    A document that asks whether to stay (``beforeunload``) is left all the same, with what was not
    saved.
    """
    answers: list[asyncio.Task[None]] = []

    def opened() -> None:
        answers.append(asyncio.create_task(tab.dialogs.answer(True, None)))
        answers[-1].add_done_callback(log_failure)  # where the visit fails, they are not waited for

    with tab.dialogs.calling(opened):
        await tab.visit(BLANK)
    await asyncio.gather(*answers)
