"""Episodes of a shard in the slots of a worker, and who chooses their actions: no browser, no
model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from envs.types import StopReason, WebTask
from tasks_lib.worker.live import Doing, LiveState, SlotStatus
from tasks_lib.worker.permits import Permits
from tasks_lib.worker.rollout_service import ShardPlayer
from training.records.groups import GroupSpec

GROUPS = [
    GroupSpec(
        group_id=f"i000000-g{number:04d}",
        task=WebTask(task_id=f"a/{number}", site="a", kind="k", path="/", difficulty=1, horizon=number + 1, seeds={}),
        seeds=(0,) * 4,
    )
    for number in range(3)
]
ALL = {(group.group_id, sample) for group in GROUPS for sample in range(4)}


class Slots:
    """Plays episodes that take a turn of the event loop, and commits them, in place of a browser
    and of files."""

    def __init__(self, commit: Callable[[], Any] = lambda: asyncio.sleep(0)) -> None:
        self.sites = {"a": SimpleNamespace(stateless_pages=False)}
        self.actor = self
        self.sessions: dict[str, list[tuple[str, int]]] = {}
        """Episodes of each session, in the order in which they were played."""
        self.committed: Counter[tuple[str, int]] = Counter()
        self.most = 0
        """Most episodes that were played at once."""
        self._open: Counter[str] = Counter()
        self._commit = commit

    @asynccontextmanager
    async def session(self, name: str) -> AsyncIterator[None]:
        self.sessions[name] = []
        self._open[name] += 1
        yield
        self._open[name] -= 1

    async def run(self, group: GroupSpec, sample: int, slot: SlotStatus, session: str) -> list[Any]:
        assert self._open[session] == 1
        slot.begin(group.episode_id(sample, 0), group.task.kind, group.task.horizon)
        self.sessions[session].append((group.group_id, sample))
        self.most = max(self.most, self._open.total())
        await asyncio.sleep(0)
        return [SimpleNamespace(group=group.group_id, sample=sample, stop_reason=StopReason.DONE)]

    async def add(self, group: GroupSpec, attempts: list[Any]) -> None:
        await self._commit()
        self.committed[(group.group_id, attempts[-1].sample)] += 1


async def play(slots: Any, count: int, *, fixed: bool) -> ShardPlayer:
    """Play the groups in so many slots."""
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        live = LiveState("i000000", len(ALL), dict)
        shard = ShardPlayer(GROUPS, slots, slots, live, tasks, Permits(count))
        for slot in shard.slots(count, fixed=fixed):
            tasks.create_task(slot)
    return shard


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("count", [1, 3, 50])
async def test_every_episode_is_played_and_committed_once(count: int, fixed: bool) -> None:
    slots = Slots()
    shard = await play(slots, count, fixed=fixed)
    assert slots.committed == dict.fromkeys(ALL, 1)
    assert sorted(episode for played in slots.sessions.values() for episode in played) == sorted(ALL)
    assert slots.most <= count and shard.counts.done == len(ALL) and shard.counts.waiting_seconds > 0
    assert shard.live.finished == {StopReason.DONE: len(ALL)}
    assert {(slot.doing, slot.free) for slot in shard.live.slots} == {(Doing.IDLE, True)}


async def test_a_fixed_slot_is_one_session_and_a_free_episode_another() -> None:
    slots = Slots()
    await play(slots, 2, fixed=True)
    assert list(slots.sessions) == ["i000000-g0000-slot-0", "i000000-g0000-slot-1"]
    again = Slots()
    await play(again, 2, fixed=False)
    assert {name: len(played) for name, played in again.sessions.items()} == {
        f"{group}-s{sample:02d}": 1 for group, sample in ALL
    }
    first = next(iter(again.sessions.values()))
    assert first == [("i000000-g0002", 0)], "the longest episodes are played first"


@pytest.mark.parametrize("fixed", [True, False])
async def test_a_slot_plays_on_while_its_last_episode_is_graded(fixed: bool) -> None:
    """Nothing is committed before all episodes were played; one slot plays them."""
    slots = Slots(commit=lambda: all_played.wait())
    all_played, playing = asyncio.Event(), asyncio.create_task(play(slots, 1, fixed=fixed))
    async with asyncio.timeout(10):
        while sum(map(len, slots.sessions.values())) < len(ALL):
            await asyncio.sleep(0)
        assert not slots.committed
        all_played.set()
        await playing
    assert slots.committed.total() == len(ALL)
