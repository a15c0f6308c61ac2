"""Contexts of a browser whose caller gives up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from envs.browser.context import BrowserContext, ContextOptions, Device
from envs.types import BrowserError


@pytest.mark.parametrize("fails", [False, True], ids=["made", "lost"])
def test_a_context_that_is_made_after_its_caller_has_given_up_is_closed(fails: bool) -> None:
    async def run() -> list[tuple[str, Any]]:
        sent, asked, made = list[tuple[str, Any]](), asyncio.Event(), asyncio.Event()

        async def send(method: str, params: Any = None) -> dict[str, Any]:
            sent.append((method, params))
            if method == "Target.createBrowserContext":
                asked.set()
                await made.wait()
                if fails:
                    raise BrowserError("the browser is gone")
                return {"browserContextId": "C1"}
            return {}

        connection: Any = SimpleNamespace(browser=SimpleNamespace(send=send))
        opening = asyncio.create_task(BrowserContext.open(connection, ContextOptions("", Device((800, 600)))))
        await asked.wait()
        opening.cancel()
        await asyncio.sleep(0)
        made.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        return sent[1:]

    closed = [("Target.disposeBrowserContext", {"browserContextId": "C1"})]
    assert asyncio.run(run()) == ([] if fails else closed)
