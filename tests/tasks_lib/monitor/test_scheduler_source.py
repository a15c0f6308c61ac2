"""Workers' states from a real Dask scheduler, and one that restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
import httpx
import orjson
import pytest

from envs.types import Click
from tasks_lib.monitor import scheduler_source
from tasks_lib.monitor.followed_run import FollowedFigures, serve_monitor
from tasks_lib.monitor.scheduler_source import SchedulerSource
from tasks_lib.monitor.serving import PageServer
from tasks_lib.worker.live import Doing, LiveState, PlayedEpisode
from tasks_lib.worker.rollout_worker import RolloutWorker
from tests.builders import make_step

RUN = "/runs/live"


def cluster(port: int = 0) -> distributed.LocalCluster:
    return distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", scheduler_port=port, dashboard_address=None
    )


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SchedulerSource]]:
    """``sources(address, run_dir="")``: sources that look at each call, closed at the end."""
    monkeypatch.setattr(scheduler_source, "CHECK_SECONDS", 0.0)
    made: list[SchedulerSource] = []

    def make(*arguments: str) -> SchedulerSource:
        made.append(SchedulerSource(*arguments))
        return made[-1]

    yield make
    for source in made:
        source.close()


def wait_for(look: Callable[[], Any]) -> Any:
    """Return what ``look`` finds, however slow the machine is."""
    deadline = time.monotonic() + 120
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def playing(step: int = 1) -> LiveState:
    live = LiveState("i000003", 8, dict)
    slot = live.take_slot()
    slot.begin("i000003-g0000-s00-a0", "click", 5, "click/1", 3)
    slot.set_doing(Doing.TURN, step)
    return live


def tell(run_dir: str, live: LiveState) -> None:
    RolloutWorker.of_this_process().send(run_dir, live.state().model_dump_json())


def test_what_workers_tell_is_known_and_a_restart_is_survived(
    sources: Callable[..., SchedulerSource], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    live = playing()
    played = PlayedEpisode("press it", (make_step(action=Click(element=1)),), b"jpeg")
    monkeypatch.setattr(RolloutWorker, "view", lambda self, slot: (live.slots[slot], played))
    with cluster() as first, distributed.Client(first, set_as_default=False) as client:
        client.register_plugin(RolloutWorker())
        tell(RUN, live)
        tell("/runs/another", playing(4))
        wait_for(lambda: len(client.get_events("rollwright-live")) == 2)
        source = sources(first.scheduler_address, RUN)
        ((worker, data),) = wait_for(source.changes)
        assert orjson.loads(data)["slots"][0]["step"] == 1, "told before the monitor began"
        tell(RUN, playing(2))
        ((_, data),) = wait_for(source.changes)
        assert orjson.loads(data)["slots"][0]["step"] == 2 and source.changes() == []
        shown = source.episode(worker, 0)
        assert shown is not None and (shown["instruction"], shown["steps"][0]["action"]) == ("press it", "click [1]")
        assert source.screenshot(worker, 0) == b"jpeg"
        assert source.episode(worker, 9) is None and source.episode("nobody", 0) is None
        assert source.problem is None and source.run_dir == RUN
        port = int(first.scheduler_address.rpartition(":")[2])
    assert wait_for(source.changes) == [(worker, orjson.dumps({"worker": worker, "gone": True}))]
    source.changes()
    assert "does not answer" in (source.problem or "") and source.states() == []
    with cluster(port) as second, distributed.Client(second, set_as_default=False) as client:
        client.register_plugin(RolloutWorker())
        tell(RUN, playing(3))
        ((again, data),) = wait_for(source.changes)
        assert again == worker and orjson.loads(data)["slots"][0]["step"] == 3
        assert source.problem is None


def test_a_scheduler_that_is_not_there_is_named(
    sources: Callable[..., SchedulerSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_source, "ANSWER_SECONDS", 0.2)
    source = sources("tcp://127.0.0.1:9")
    figures = FollowedFigures(source)
    assert source.changes() == []
    assert "127.0.0.1:9 does not answer" in (source.problem or "")
    assert figures.measure(source.states())["state"] == "unknown"


def test_a_run_whose_folder_is_elsewhere_shows_its_workers(sources: Callable[..., SchedulerSource]) -> None:
    figures = FollowedFigures(sources("tcp://127.0.0.1:9", "/nowhere/run-3")).measure([playing().state()])
    assert (figures["run_id"], figures["state"], figures["cells"]) == ("run-3", "running", {"turn": 1})
    assert "not on this machine" in figures["problem"]


def test_a_run_serves_its_own_monitor(make_run: Callable[..., Any]) -> None:
    store = make_run("live-run", finished=False).store
    with cluster() as workers, distributed.Client(workers, set_as_default=False) as client:
        client.register_plugin(RolloutWorker())
        with serve_monitor(store, workers.scheduler_address, PageServer()) as address:
            tell(str(store.root), playing())
            with httpx.stream("GET", f"{address}/events", timeout=120) as answer:
                shown = next(line for line in answer.iter_lines() if line.startswith("data: ["))
            assert orjson.loads(shown[6:])[0]["slots"][0]["kind"] == "click"
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
