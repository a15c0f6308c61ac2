"""What one episode leaves in a browser is not there in the next thirty."""

from __future__ import annotations

import asyncio

from envs import EnvHost
from envs.browser import PageStep, WebSession
from envs.types import Refresh, Wait
from tests.envs.dynamic import GO, dynamic_pool, page

EPISODES = 30
TEXT = "miniwob/enter-text"
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


async def test_a_middle_click_pastes_nothing_of_another_episode() -> None:
    options = {"horizon": 20, "repeats": 0}
    async with (
        EnvHost(max_sessions=2) as host,
        host.open(TEXT, seed=1, **options) as first,
        host.open(TEXT, seed=2, **options) as second,
    ):
        await first.reset()
        await second.reset()
        await second.step({"type": "type", "element": 1, "text": "SECRET"})
        await second.step({"type": "triple_click", "element": 1})
        box = (await first.reset()).observation.elements[0].box
        width, height = (await first.reset()).observation.viewport
        middle = [(box[0] + box[2] / 2) * 1000 / width, (box[1] + box[3] / 2) * 1000 / height]
        drag = {"type": "drag", "start": {"at": [1, 1]}, "end": {"at": middle}}
        for action in ({"type": "click", "element": 1}, {"type": "click", "at": middle}, drag):
            step = await first.step({**action, "button": "middle"})
            assert "the middle button pastes there" in (step.observation.error or "")
            assert step.observation.elements[0].value == ""
        # What takes no text may be clicked with it.
        button = step.observation.elements[1].index
        assert (await first.step({"type": "click", "button": "middle", "element": button})).observation.error is None
