"""Which idle context an episode gets, and what becomes of those of a browser that is retired."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from envs.browser import PoolCounters, PoolOptions
from envs.browser.process.browsers import BrowserSet, ContextCache
from envs.egress import EgressProxy
from tests.builders import page_task


class Context:
    """What a cache looks at of a context."""

    def __init__(self, path: str, owner: str = "pages") -> None:
        self.owner, self.path, self.broken, self.date = owner, path, False, None


class Way:
    """A listener."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class Chromium:
    """A browser that takes until `go_on` to close a context."""

    def __init__(self) -> None:
        self.process = SimpleNamespace(pid=1, memory_mb=lambda: 0.0)
        self.contexts: set[Any] = set()
        self.episodes, self.retired, self.lost, self.ended = 1, False, False, False
        self.opening = 0
        self.closing, self.go_on = asyncio.Event(), asyncio.Event()

    @property
    def load(self) -> int:
        return len(self.contexts) + self.opening

    async def close_context(self, context: Any) -> None:
        self.contexts.discard(context)
        self.closing.set()
        await self.go_on.wait()

    async def close(self) -> None:
        self.ended = True


def filled(browser: Any, *contexts: Any) -> tuple[ContextCache, list[Any]]:
    """A cache with these contexts of one browser, idle, and their ways out."""
    cache, ways = ContextCache(), list[Any]()
    for context in contexts:
        ways.append(Way())
        browser.contexts.add(context)
        cache.put(context, browser, ways[-1])
        cache.idle.append(context)
    return cache, ways


@pytest.mark.parametrize("full", [False, True], ids=str)
def test_the_context_that_shows_the_page_is_taken(full: bool) -> None:
    contexts = [Context("/a"), Context("/b"), Context("/b", owner="other")]
    cache, _ = filled(SimpleNamespace(contexts=set()), *contexts)
    site: Any = SimpleNamespace(name="pages")
    assert cache.take(site, page_task("/b"), None, full=full) is contexts[1]  # type: ignore[comparison-overlap]
    assert cache.size == 2


def test_one_that_shows_another_page_is_taken_where_there_is_no_room() -> None:
    context = Context("/a")
    cache, _ = filled(SimpleNamespace(contexts=set()), context)
    site: Any = SimpleNamespace(name="pages")
    assert cache.take(site, page_task("/b"), None, full=False) is None
    assert cache.take(site, page_task("/b"), None, full=True) is context  # type: ignore[comparison-overlap]


async def test_a_way_out_is_closed_once_however_its_context_ends() -> None:
    browser: Any = Chromium()
    cache, ways = filled(browser, one := Context("/a"), other := Context("/b"))
    first = asyncio.create_task(cache.close(one))  # type: ignore[arg-type]
    await browser.closing.wait()
    await cache.close(one)  # type: ignore[arg-type]
    assert ways[0].closed == 0, "its page is still there"
    browser.go_on.set()
    await first
    await cache.forget(other)  # type: ignore[arg-type]
    await cache.close(other)  # type: ignore[arg-type]
    assert [way.closed for way in ways] == [1, 1]


async def test_nobody_gets_a_context_of_a_browser_that_is_being_retired() -> None:
    """They are closed one after the other: while the first of them is, the last is not to be had
    any more."""

    browser: Any = Chromium()
    cache, ways = filled(browser, Context("/a"), Context("/b"))
    browser_set = BrowserSet(PoolOptions(retire_after=1), PoolCounters(), EgressProxy(), cache)
    browser_set.browsers.append(browser)
    looking = asyncio.create_task(browser_set.retire_if_due(browser))
    await browser.closing.wait()
    assert cache.idle == []
    browser.go_on.set()
    await looking
    assert browser.ended and browser_set.browsers == [] and [way.closed for way in ways] == [1, 1]


@pytest.mark.parametrize("end", ["lent", "ready", "failed"])
async def test_a_retired_browser_ends_with_its_opening_context(end: str) -> None:
    """Not before: the episode that waits for the context would fail. And not never."""

    browser: Any = Chromium()
    browser.go_on.set()
    cache, _ = filled(browser)
    browser_set = BrowserSet(PoolOptions(retire_after=1), counters := PoolCounters(), EgressProxy(), cache)
    browser_set.browsers.append(browser)
    browser.opening = 1
    await browser_set.retire_if_due(browser)
    assert browser.retired and browser_set.browsers == [browser] and not browser.ended
    browser.opening = 0
    if end != "failed":
        context: Any = Context("/a")
        browser.contexts.add(context)
        cache.put(context, browser, way := Way())  # type: ignore[arg-type]
    if end == "lent":
        await browser_set.retire_if_due(browser)
        assert not browser.ended
        await cache.close(context)
        await browser_set.remove_if_over(browser)
    else:
        if end == "ready":
            cache.ready.append(context)
        await browser_set.retire_if_due(browser)
    assert browser.ended and browser_set.browsers == [] and cache.ready == []
    assert end == "failed" or way.closed == 1
    assert counters.browsers_retired == 1
