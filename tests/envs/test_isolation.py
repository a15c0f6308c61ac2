"""What one episode leaves in a browser is not there in the next thirty."""

from __future__ import annotations

import asyncio

from envs.browser import PageStep, WebSession
from envs.types import Refresh, Wait
from tests.envs.dynamic import GO, dynamic_pool, page

EPISODES = 30
TRACES = ["cookie", "localStorage", "sessionStorage", "indexedDB", "cacheStorage", "httpCache", "history", "windowName"]
LOOKS = 200
"""The stores answer in real time, which no clock of the page holds; a look takes some
milliseconds."""


async def line(session: WebSession, result: PageStep, begin: str) -> str:
    """The line of the page that begins so, once it is there."""
    for _ in range(LOOKS):
        found = [each for each in result.observation.text.split("\n") if each.startswith(begin)]
        if found:
            return found[0]
        result = await session.step(Wait(seconds=0.1))
    raise AssertionError(f"no {begin!r} in {result.observation.text!r}")


async def test_traces_of_one_episode_are_absent_in_the_next_thirty() -> None:
    async with dynamic_pool(max_sessions=4) as (pool, site):

        async def found() -> str:
            async with pool.lease(site) as session:
                return await line(session, await session.reset(page("/canaries.html"), 0), "found:")

        async with pool.lease(site) as session:
            await line(session, await session.reset(page("/canaries.html"), 0), "found:")
            left = await line(session, await session.step(GO), "done")
            kept = await line(session, await session.step(Refresh()), "found:")  # a page sees its own traces
            later = await asyncio.gather(*(found() for _ in range(3)))  # others, while it is still there
        for _ in range((EPISODES - 3) // 4 + 1):
            later += await asyncio.gather(*(found() for _ in range(4)))
        later = set(later)
    assert [trace for trace in TRACES if trace not in kept] == [], left
    assert later == {"found:"}
