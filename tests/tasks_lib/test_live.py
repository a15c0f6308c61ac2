"""The live file of a worker: slots, lag and shards, without a worker around it."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from envs.browser import PageWork
from tasks_lib.worker.live import (
    KEPT,
    MAX_TIMES,
    Doing,
    LiveFile,
    LiveState,
    PlayedEpisode,
    WorkerState,
    update_live_file,
)
from training.ledger.store import RunStore


def read_live(store: RunStore) -> list[WorkerState]:
    """The newest state of every worker of a run."""
    files = sorted((store.root / "live").glob("*.json"))
    return [WorkerState.model_validate_json(path.read_bytes()) for path in files]


async def test_what_a_worker_does_is_written_while_it_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.worker.live.WRITE_SECONDS", 0.01)
    live, store = LiveState("i000003", 8, dict), RunStore(tmp_path)
    slot = live.take_slot()

    def now() -> WorkerState:
        return read_live(store)[0]

    async with update_live_file(live, store):
        slot.begin("i000003-g0001-s02-a0", "click-link", 3, "click-link/3", 12)
        slot.set_doing(Doing.EXECUTE, 2)
        async with asyncio.timeout(10):
            while not read_live(store) or now().slots[0].step != 2:
                await asyncio.sleep(0.01)
        assert now().slots[0].model_dump(exclude={"seconds"}) == {
            "episode_id": "i000003-g0001-s02-a0",
            "kind": "click-link",
            "step": 2,
            "horizon": 3,
            "doing": Doing.EXECUTE,
            "task_id": "click-link/3",
            "version": 12,
            "slow": False,
            "screenshot": "",
        }
        slot.set_free()
    assert now().slots[0].doing is Doing.IDLE and now().slots[0].episode_id == ""


async def test_a_state_that_cannot_be_written_is_logged_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tasks_lib.worker.live.WRITE_SECONDS", 0.01)
    monkeypatch.setattr("tasks_lib.worker.live.MAX_LAG", 60)
    live, store = LiveState("i000003", 8, dict), RunStore(tmp_path)
    folder = store.live_path("w").parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where the folder should be")

    async with update_live_file(live, store):
        async with asyncio.timeout(30):
            while not caplog.records:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # further tries, of which nothing is said
        folder.unlink()
    assert read_live(store)[0].phase == "i000003", "it is tried again"
    assert [record.levelname for record in caplog.records if record.name == "tasks_lib.worker.live"] == ["WARNING"], (
        "once"
    )
    assert "cannot be written" in caplog.text and str(folder) in caplog.text


async def test_an_event_loop_that_is_late_is_measured_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tasks_lib.worker.live.WRITE_SECONDS", 0.05)
    monkeypatch.setattr("tasks_lib.worker.live.MAX_LAG", 0.3)
    live, store = LiveState("i000003", 8, dict), RunStore(tmp_path)
    lags = []
    async with update_live_file(live, store):
        await asyncio.sleep(0.1)
        time.sleep(0.6)  # what an episode must never do
        async with asyncio.timeout(10):
            while not lags or lags[-1] < 0.3:
                await asyncio.sleep(0.01)
                lags.append(live.lag)
    assert "event loop of this worker was" in caplog.text


async def test_shards_that_overlap_share_one_file_and_its_slots(tmp_path: Path) -> None:
    store, file = RunStore(tmp_path), LiveFile()
    async with file.shard(LiveState("i000003", 8, dict), store) as first:
        first.take_slot().begin("a", "click", 3)
        async with file.shard(LiveState("i000004", 4, dict), store) as second:
            assert second is first and (second.phase, second.episodes) == ("i000004", 12)
            slot = second.take_slot()
            slot.set_free()
            assert second.take_slot() is slot and len(second.slots) == 2, "a slot that is free is used again"
    (state,) = read_live(store)
    assert (state.phase, state.episodes) == ("i000004", 12)
    async with file.shard(LiveState("i000005", 2, dict), store) as third:
        assert third is not first and third.episodes == 2


def test_an_operation_is_slow_beyond_the_99th_percentile_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tasks_lib.worker.live.time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    live = LiveState("i000003", 8, dict)
    slot = live.take_slot()
    slot.begin("a", "click", 3)
    for seconds in range(1, 100):
        slot.set_doing(Doing.SETTLE)
        now += seconds
        slot.set_doing(Doing.OBSERVE)
    slot.set_doing(Doing.SETTLE)
    now += 1000
    assert not slot.state().slow, "99 operations say nothing yet"
    slot.set_doing(Doing.OBSERVE)
    now += 2000
    assert not slot.state().slow, "it is the longest of its kind, which has had only short ones since"
    slot.set_doing(Doing.SETTLE)
    now += 999
    assert not slot.state().slow
    now += 2
    assert slot.state().slow and live.state().slots[0].slow


def test_of_many_operations_few_times_are_kept_and_the_percentile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tasks_lib.worker.live.time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    live, draw = LiveState("i000003", 8, dict), random.Random(1)
    slot, times = live.take_slot(), [draw.random() for _ in range(40_000)]
    for seconds in times:
        slot.set_doing(Doing.SETTLE)
        now += seconds
        slot.set_doing(Doing.OBSERVE)
    kept = list(live.times.kinds[Doing.SETTLE].seconds)
    assert kept == pytest.approx(times[KEPT - 1 :: KEPT][-MAX_TIMES:], abs=1e-6)
    assert live.times.is_slow(Doing.SETTLE, 0.999) and not live.times.is_slow(Doing.SETTLE, 0.97)


def test_each_name_of_a_sessions_work_is_an_operation() -> None:
    slot = LiveState("i000003", 8, dict).take_slot()
    for work in get_args(PageWork):
        slot.tell(work)
        assert slot.doing == work


async def test_a_state_is_sent_only_when_an_episode_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.worker.live.WRITE_SECONDS", 0.001)
    store, sent = RunStore(tmp_path), list[WorkerState]()

    def send(run_dir: str, state: str) -> None:
        assert run_dir == str(store.root)
        sent.append(WorkerState.model_validate_json(state))

    async def written() -> None:
        """Wait until the file is written twice more, of which the second begins after this call."""
        async with asyncio.timeout(10):
            for _ in range(2):
                (before,) = read_live(store)
                while read_live(store)[0].time == before.time:
                    await asyncio.sleep(0.001)

    live = LiveState("i000003", 8, dict)
    slot = live.take_slot()
    async with update_live_file(live, store, send):
        async with asyncio.timeout(10):
            while not read_live(store):
                await asyncio.sleep(0.001)
        await written()
        slot.begin("a", "click", 3, "click/1", 4)
        await written()
        await written()
        slot.set_doing(Doing.TURN)
        await written()
        await written()
    assert [state.slots[0].doing for state in sent] == [Doing.IDLE, Doing.RESET, Doing.TURN]


async def test_a_running_episode_is_seen_from_outside(tmp_path: Path) -> None:
    file, played = LiveFile(), PlayedEpisode("press it", (), b"jpeg")
    assert file.view(0) is None
    async with file.shard(LiveState("i000003", 8, dict), RunStore(tmp_path)) as live:
        slot = live.take_slot()
        assert file.view(0) is None and file.view(1) is None and file.view(-1) is None
        slot.begin("a", "click", 3, view=lambda: played)
        assert file.view(0) == (slot, played)
        slot.set_free()
        assert file.view(0) is None
