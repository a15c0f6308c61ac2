"""Permits of a worker: never too many, none lost, nobody passed over for long, and few pages loaded
again."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tasks_lib.worker.permits import PASSED_OVER, Permits

PAGES = st.sampled_from(["a", "b", "c", None])
EPISODES = st.lists(st.tuples(PAGES, st.integers(0, 5), st.integers(1, 4), st.booleans()), min_size=1, max_size=30)
"""Page, turn of the event loop at which it comes, turns that it plays, and whether it is cancelled
two turns after it came."""


@given(EPISODES, st.integers(1, 3))
def test_every_episode_plays_and_never_too_many_at_once(
    episodes: list[tuple[str | None, int, int, bool]], count: int
) -> None:
    held: Counter[str] = Counter()
    played, most = [], 0

    async def play(permits: Permits, number: int, page: str | None, comes: int, turns: int) -> None:
        nonlocal most
        for _ in range(comes):
            await asyncio.sleep(0)
        async with permits.hold(page):
            held["now"] += 1
            most = max(most, held["now"])
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
                played.append(number)
            finally:
                held["now"] -= 1

    async def all_of_them() -> None:
        permits = Permits(count)
        tasks = []
        for number, (page, comes, turns, _) in enumerate(episodes):
            tasks.append(asyncio.create_task(play(permits, number, page, comes, turns)))
        for turn in range(12):
            for task, (_, comes, _, cancelled) in zip(tasks, episodes, strict=True):
                if cancelled and turn == comes + 2:
                    task.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(10):  # a permit that was lost, or given to who had gone, leaves others waiting
            await asyncio.gather(*tasks, return_exceptions=True)
        assert held["now"] == 0
        for _ in range(count):  # all are there again
            await asyncio.wait_for(permits.hold(None).__aenter__(), 1)

    asyncio.run(all_of_them())
    assert most <= count
    assert {number for number, episode in enumerate(episodes) if not episode[3]} <= set(played)


def order(pages: list[str | None]) -> list[int]:
    """In which order episodes that came in this one play, one at a time, after one of page
    ``a``."""
    played: list[int] = []

    async def play(permits: Permits, number: int) -> None:
        async with permits.hold(pages[number]):
            played.append(number)

    async def all_of_them() -> None:
        permits = Permits(1)
        async with permits.hold("a"):
            tasks = [asyncio.create_task(play(permits, number)) for number in range(len(pages))]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    asyncio.run(all_of_them())
    return played


@given(st.lists(st.sampled_from(["a", "a", "a", "b", None]), min_size=20, max_size=60))
def test_an_episode_behind_k_others_waits_at_most_k_limits(pages: list[str | None]) -> None:
    for place, number in enumerate(order(pages)):
        assert place <= (number + 1) * (PASSED_OVER + 1) - 1


@given(st.lists(PAGES, min_size=1, max_size=40))
def test_episodes_of_one_page_keep_their_order(pages: list[str | None]) -> None:
    played = order(pages)
    for page in set(pages):
        assert [number for number in played if pages[number] == page] == sorted(
            number for number in played if pages[number] == page
        )


def test_groups_that_came_mixed_load_their_pages_a_quarter_as_often() -> None:
    mixed: list[str | None] = ["a", "b"] * 20
    played = [mixed[number] for number in order(mixed)]
    loads = sum(page != before for page, before in zip(played, ["a", *played[:-1]], strict=True))
    assert loads <= 40 / PASSED_OVER  # in the order in which they came: 39


def test_without_pages_that_stay_the_first_to_come_is_the_first_to_play() -> None:
    assert order([None] * 12) == list(range(12))
