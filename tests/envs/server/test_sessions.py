"""Sessions of the environment server: leases, places, and steps that are done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from envs import CapacityError, EnvHost, TaskError
from envs.server import SessionError, SessionTable

COUNT = "miniwob/click-button-sequence"
"""Two buttons, to be clicked in turn: a click that is done twice fails."""


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[EnvHost]:
    async with EnvHost(max_sessions=3) as host:
        yield host


@pytest.fixture
async def table(host: EnvHost) -> AsyncIterator[SessionTable]:
    async with SessionTable(host) as table:
        yield table


async def refused(call: Any) -> str:
    with pytest.raises(SessionError) as caught:
        await call
    return caught.value.code.value


async def test_a_step_that_is_asked_for_again_is_answered_and_not_done_twice(table: SessionTable) -> None:
    session = await table.open(COUNT, seed=7)
    assert await refused(table.step(session.session_id, "click [1]")) == "no_episode"
    first = await table.reset(session.session_id)
    numbers = {element.text: element.index for element in first.observation.elements}
    one, two = f"click [{numbers['ONE']}]", f"click [{numbers['TWO']}]"
    answers = await asyncio.gather(*(table.step(session.session_id, one, epoch=1, number=1) for _ in range(3)))
    assert answers[0] is answers[1] is answers[2]
    assert session.env.trajectory is None, "the episode goes on: the button was clicked once"
    last = await table.step(session.session_id, two, epoch=1, number=2)
    assert last.reward == 1.0 and len(session.env.trajectory.steps) == 2  # type: ignore[union-attr]
    assert await table.step(session.session_id, two, epoch=1, number=2) is last
    assert table.counters.steps == 2 and table.counters.repeated == 3


async def test_steps_of_another_epoch_or_out_of_turn_are_refused(table: SessionTable) -> None:
    session = await table.open(COUNT)
    await table.reset(session.session_id)
    await table.step(session.session_id, "wait 1", epoch=1, number=1)
    assert await refused(table.step(session.session_id, "wait 1", epoch=1, number=3)) == "wrong_step"
    await table.reset(session.session_id)
    assert await refused(table.step(session.session_id, "wait 1", epoch=1, number=2)) == "stale_epoch"
    assert session.env.trajectory is None and session.steps == 0


async def test_a_lease_ends_without_calls_and_its_place_is_free_again(table: SessionTable, host: EnvHost) -> None:
    quiet = await table.open(COUNT, lease_seconds=0.4)
    busy = await table.open(COUNT, lease_seconds=0.4, horizon=20, repeats=0)
    await table.reset(busy.session_id)
    for _ in range(6):
        await asyncio.sleep(0.1)
        await table.step(busy.session_id, {"type": "wait"})
    with pytest.raises(SessionError, match="its lease ended") as caught:
        table.find(quiet.session_id)
    assert caught.value.code == "expired_session"
    assert table.sessions.keys() == {busy.session_id} and table.counters.expired == 1
    assert host.pool.metrics()["lent"] <= 1  # the context of the one that is open


async def test_places_and_memory_bound_the_sessions(host: EnvHost) -> None:
    free = 1000.0
    async with SessionTable(host, free_mb=lambda: free, min_free_mb=400) as table:
        opened = await asyncio.gather(*(table.open(COUNT) for _ in range(4)), return_exceptions=True)
        assert [type(result).__name__ for result in opened].count("CapacityError") == 1 and len(table) == 3
        await table.close(next(iter(table.sessions)))
        free = 300.0
        with pytest.raises(CapacityError, match="300 MB of memory are free, and a session needs 400 MB left"):
            await table.open(COUNT)
        assert table.counters.refused == 2


async def test_ids_of_clients_are_used_once(table: SessionTable) -> None:
    await table.open(COUNT, session_id="mine")
    assert await refused(table.open(COUNT, session_id="mine")) == "session_exists"
    assert await table.close("mine") and not await table.close("mine")
    assert await refused(table.open(COUNT, session_id="mine")) == "closed_session"
    assert await refused(table.close("other")) == "unknown_session"
    with pytest.raises(TaskError):
        await table.open("miniwob/no-such-task", session_id="new")
    await table.open(COUNT, session_id="new")  # a refusal uses no id and no place
    assert len(table) == 1


async def test_a_draining_table_opens_nothing_and_waits_for_the_last(table: SessionTable) -> None:
    session = await table.open(COUNT)
    draining = asyncio.create_task(table.drain(10))
    await asyncio.sleep(0.1)
    assert await refused(table.open(COUNT)) == "draining" and not draining.done()
    await table.close(session.session_id)
    assert await draining == 0
