"""The page of an episode after its end, for the checks of a benchmark."""

from __future__ import annotations

import asyncio
from typing import Any

from envs.actions.navigate import BLANK
from envs.background import log_failure
from envs.browser.end_evidence import own_world, script_cause
from envs.browser.operations import OperationKind
from envs.browser.page import TaskPage
from envs.browser.tab import Tab, shown_address
from envs.egress import AllowList
from envs.types import BrowserError, PageScriptError


class FinalPage:
    """The page of an episode after its end, for the checks of a benchmark. Given by
    `WebSession.look`.

    It gives the address, the content and the values of expressions, and loads other pages of the
    site with the episode's log-in. It is an `envs.rewards.webarena.PageAccess`.

    Expressions run in an isolated world: the page's scripts cannot change what they call; they may
    change the page.
    """

    def __init__(self, page: TaskPage) -> None:
        self._page = page

    @property
    def allow(self) -> AllowList:
        """The addresses that the page may reach."""
        return self._page.allow

    async def url(self) -> str:
        """Return the address that is shown, as the page's history has it."""
        tab = self._page.tab
        return await self._page.queues.run(OperationKind.EVALUATION, lambda: shown_address(tab.cdp))

    async def goto(self, url: str) -> None:
        """Load an address anew and wait until the page is at rest.

        A page with status 404 is a page too. The present document is left first: the browser would
        not request an address that differs only in its fragment, or not at all. The browser's cache
        is not used. Cookies and storage stay.

        Raises:
            BrowserError: The address may not be reached or does not answer, or the server failed
                (500 and more).
        """
        page = self._page
        refused = page.allow.refuse_url(url)
        if refused is not None:
            raise BrowserError(f"{url} may not be reached: {refused}; give tasks.addresses or tasks.reach")
        cdp = page.tab.cdp
        await page.queues.run(OperationKind.NAVIGATION, lambda: _leave(page.tab))
        await cdp.send("Network.setCacheDisabled", {"cacheDisabled": True})
        try:
            await page.queues.run(OperationKind.NAVIGATION, lambda: page.tab.visit(url))
        finally:
            await cdp.send("Network.setCacheDisabled", {"cacheDisabled": False})
        await page.clear_dialogs()
        status = page.tab.clock.requests.main_status
        if status is not None and status >= 500:
            raise BrowserError(f"{url} answered {status}")

    async def content(self) -> str:
        """Return the HTML of the whole page."""
        return str(await self.evaluate("document.documentElement ? document.documentElement.outerHTML : ''"))

    async def inspected(self) -> Any:
        """Return the result of `PoolOptions.inspect`.

        It is not known after a step that ended with a dialog open.
        """
        return await self._page.inspected()

    async def evaluate(self, expression: str) -> object:
        """Evaluate a JavaScript expression and let the page come to rest.

        Raises:
            PageScriptError: The expression threw.
        """
        page = self._page
        value = await page.queues.run(OperationKind.EVALUATION, lambda: self._evaluate(expression))
        await page.queues.run(OperationKind.INPUT, lambda: page.tab.clock.settle(page.budget_ms))
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
