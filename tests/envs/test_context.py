"""Contexts of a browser whose caller gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from envs.browser.context import BrowserContext, PageCrashed
from envs.browser.options import ContextOptions, Device
from envs.types import BrowserError


@pytest.mark.parametrize("fails", [False, True], ids=["made", "lost"])
async def test_a_context_that_is_made_after_its_caller_has_given_up_is_closed(fails: bool) -> None:
    closed = [("Target.disposeBrowserContext", {"browserContextId": "C1"})]
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
    opening = asyncio.create_task(BrowserContext.open(connection, ContextOptions("", Device(width=800, height=600))))
    await asked.wait()
    opening.cancel()
    await asyncio.sleep(0)
    made.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert sent[1:] == ([] if fails else closed)


def guarded(work: Callable[[], Awaitable[None]], *, lost_while: bool) -> BaseException:
    """What comes of guarded work that fails, and whose context is lost just before if
    ``lost_while``."""

    async def run() -> BaseException:
        context = BrowserContext(SimpleNamespace(), "C1", ContextOptions("", Device(width=800, height=600)))  # type: ignore[arg-type]

        async def fails() -> None:
            if lost_while:
                context.fail(PageCrashed("the page is gone"))
            await work()

        with pytest.raises(Exception) as failure:
            await context.guard(fails(), 5, "it")
        return failure.value

    return asyncio.run(run())


def test_the_loss_of_a_context_is_told_before_what_came_of_it() -> None:
    async def breaks() -> None:
        raise KeyError("a reading of a page that was going away")

    async def refuses() -> None:
        raise BrowserError("it was refused") from OSError("why")

    async def waits() -> None:
        await asyncio.Event().wait()

    for work in (breaks, refuses, waits):
        assert isinstance(guarded(work, lost_while=True), PageCrashed)
    assert isinstance(guarded(breaks, lost_while=False), KeyError)
    error = guarded(refuses, lost_while=False)
    assert str(error) == "it was refused" and isinstance(error.__cause__, OSError)
