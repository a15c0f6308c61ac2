"""How full an asynchronous run's machines are, by its workers' files, and what follows for the
groups under way."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tasks_lib.loops import load
from tasks_lib.loops.load import AdaptiveConcurrency, LoadLook
from tasks_lib.worker.live import Doing, SlotState, WorkerState
from training.ledger.store import RunStore
from training.serving.config import ServingConfig

THREE_PLACES = ServingConfig(engine="vllm", replicas=3, max_turns=1)


def write(store: RunStore, worker: str, turns: int, cpu: float = 0.2, memory: float = 0.3, age: float = 0.0) -> None:
    """The file of a worker with so many episodes that wait for a turn, and one that acts."""
    doing = [*[Doing.TURN, Doing.QUEUE][:turns], *[Doing.TURN] * (turns - 2), Doing.EXECUTE]
    slots = [SlotState(episode_id="e", kind="k", step=0, horizon=9, doing=each, seconds=1.0) for each in doing]
    state = WorkerState(
        worker=worker,
        time=time.time() - age,
        phase="i000000",
        episodes=8,
        finished={},
        slots=tuple(slots),
        browsers={},
        cpu=cpu,
        memory=memory,
    )
    store.live_path(worker).parent.mkdir(parents=True, exist_ok=True)
    store.live_path(worker).write_text(state.model_dump_json())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still but for what a test adds."""
    time_ = [1000.0]
    monkeypatch.setattr(load.time, "monotonic", lambda: time_[0])
    monkeypatch.setattr(load.time, "time", lambda: time_[0])
    return time_


def test_turns_beyond_the_engines_places_queue(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    write(store, "ended", turns=50, cpu=1.0)
    look = LoadLook(store)
    assert look.measure(3, running=2) is None
    write(store, "a", turns=4)
    write(store, "b", turns=2, cpu=0.5, memory=0.7)
    store.live_path("broken").write_text("{")
    found = look.measure(3, running=2)
    assert found is not None
    assert (found.engine_queue, found.browser_load, found.running) == ((4 + 2 - 3) / 3, 0.7, 2)
    assert look.measure(3, running=2) is None, "nobody has written since"
    write(store, "a", turns=4)
    alone = look.measure(0, running=2)
    assert alone is not None and alone.engine_queue == 0.0


@pytest.mark.parametrize("ahead", [-3600.0, -10.0, 10.0, 3600.0])
def test_clocks_of_the_workers_machines_do_not_matter(tmp_path: Path, ahead: float) -> None:
    store = RunStore(tmp_path)
    look = LoadLook(store)
    for _ in range(3):
        write(store, "a", turns=9, age=-ahead)
        found = look.measure(3, running=2)
        assert found is not None and found.engine_queue == 2
    assert look.measure(3, running=2) is None, "its worker has ended"


def test_fewer_groups_are_under_way_while_the_engines_queue(tmp_path: Path, now: list[float]) -> None:
    store = RunStore(tmp_path)
    adaptive = AdaptiveConcurrency(store, THREE_PLACES, max_groups=32)
    assert adaptive.limit == 16
    write(store, "a", turns=9)
    assert adaptive.measure(running=16) < 16
    smaller = adaptive.limit
    write(store, "a", turns=1)
    assert adaptive.measure(running=smaller) == smaller, "measured again too soon"
    for _ in range(20):
        now[0] += load.MEASURE_SECONDS
        write(store, "a", turns=1)
        adaptive.measure(running=adaptive.limit)
    assert smaller < adaptive.limit < 16, "it grows again, and not to what was too much a moment ago"


def test_the_limit_stays_between_its_bounds(tmp_path: Path, now: list[float]) -> None:
    store = RunStore(tmp_path)
    adaptive = AdaptiveConcurrency(store, THREE_PLACES, max_groups=32)
    for _ in range(100):
        now[0] += load.MEASURE_SECONDS
        write(store, "a", turns=90, cpu=1.0)
        adaptive.measure(running=adaptive.limit)
    assert adaptive.limit == 4
