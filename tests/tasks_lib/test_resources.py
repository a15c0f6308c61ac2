"""What a worker keeps between requests, and the services that use it, without a browser and a
model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.rewards import read_rubric
from envs.types import BrowserError, DiskError, SeedRange, Split, WebTask, rubric_hash
from tasks_lib.config import RolloutConfig
from tasks_lib.folder.regraded import read_regraded
from tasks_lib.worker import resources
from tasks_lib.worker.activity import ACTIVITIES, ActivityClock
from tasks_lib.worker.event_loop import WorkerLoop
from tasks_lib.worker.grading_service import GradingService
from tasks_lib.worker.requests import GradeRequest, RolloutRequest, WorkerNeeds
from tasks_lib.worker.resources import RunResources, WorkerResources
from tasks_lib.worker.rollout_worker import RolloutWorker, serve_version
from tests.envs.rewards.played import trajectory
from training.ledger.store import RunStore
from training.records.groups import GroupSpec
from training.serving.engine import Engine

RUBRIC = read_rubric({"fact_groups": [{"name": "a", "facts": [{"id": "b", "type": "url", "url": "/"}]}]})
TASK = WebTask(
    task_id="shop/a",
    site="shop",
    kind="a",
    path="/",
    difficulty=1,
    horizon=3,
    seeds={Split.TRAIN: SeedRange(start=0, stop=9)},
    rubric=RUBRIC,
    rubric_hash=rubric_hash(RUBRIC),
)


class Recorded(RunResources):
    """Resources without a browser and a model; what happens to them is in ``events``."""

    events: list[str]

    def make_engine(self, checkpoint: Path) -> tuple[Any, Engine]:
        run, events = Path(self.needs.run_dir).name, self.events
        events.append(f"engine of {run}")

        async def publish(version: int, folder: Path, *, or_newer: bool) -> None:
            events.append(f"{run} serves {version} of {folder}")

        async def close() -> None:
            events.append(f"{run} closed")

        return SimpleNamespace(), SimpleNamespace(publish=publish, close=close)  # type: ignore[return-value]

    async def start_web(self, sites: Collection[str]) -> None:
        self.events.append(f"sites {', '.join(sorted(sites))}")
        self.pool = SimpleNamespace(close=closing("pool", []), metrics=dict)  # type: ignore[assignment]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to the resources of the test's workers."""
    monkeypatch.setattr(Recorded, "events", [], raising=False)
    monkeypatch.setattr(resources, "RunResources", Recorded)
    return Recorded.events


@pytest.fixture
def worker(events: list[str]) -> Iterator[WorkerResources]:
    worker = WorkerResources()
    yield worker
    worker.close()


def request(run: str, version: int = 0, **changes: Any) -> RolloutRequest:
    group = GroupSpec(group_id="i000000-g0000", task=TASK, seeds=(1,))
    values: dict[str, Any] = {"run_dir": run, "version": version, "checkpoint": f"v{version}", "groups": (group,)}
    return RolloutRequest(**{**values, "rollout": RolloutConfig(), "seed": 0, **changes})


def prepare(worker: WorkerResources, request: RolloutRequest) -> None:
    with worker.prepared(request):
        pass


def closing(name: str, closed: list[str], *, fails: bool = False) -> Any:
    """The method that closes a part, which says so in ``closed``."""

    async def close(*_: object) -> None:
        closed.append(name)
        if fails:
            raise BrowserError(f"{name} does not close")

    return close


async def test_all_resources_close_even_where_each_of_them_fails() -> None:
    run, closed = RunResources(WorkerNeeds.of(request("one")), ActivityClock(ACTIVITIES)), list[str]()

    def part(name: str) -> Any:
        close = closing(name, closed, fails=True)
        return SimpleNamespace(close=close, __aexit__=close)

    run.judge, run.pool, run.engine = part("judge"), part("pool"), part("engine")
    run.sites.update({name: part(name) for name in ("shop", "wiki")})
    with pytest.raises(BrowserError, match="does not close"):
        await run.close()
    assert closed == ["engine", "judge", "pool", "wiki", "shop"]


def test_requests_with_the_same_needs_share_engine_and_sites(worker: WorkerResources, events: list[str]) -> None:
    prepare(worker, request("one"))
    with worker.prepared(request("one")) as first, worker.prepared(request("one", 1)) as second:
        assert first is second
    sites = "sites shop"
    assert events == [
        "engine of one",
        "one serves 0 of v0",
        sites,
        "one serves 0 of v0",
        sites,
        "one serves 1 of v1",
        sites,
    ]


def test_a_request_with_other_needs_waits_until_the_others_end(worker: WorkerResources, events: list[str]) -> None:
    began = threading.Event()

    def other() -> None:
        began.set()
        with worker.prepared(request("two")):
            events.append("two began")

    with ThreadPoolExecutor(1) as thread:
        with worker.prepared(request("one")):
            waiting = thread.submit(other)
            began.wait()
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
            events.append("one ends")
        waiting.result(timeout=10)
    assert events[2:] == [
        "sites shop",
        "one ends",
        "one closed",
        "engine of two",
        "two serves 0 of v0",
        "sites shop",
        "two began",
    ]


def test_only_a_newer_version_of_the_same_run_is_served(worker: WorkerResources, events: list[str]) -> None:
    worker.serve("one", 5, Path("v5"))
    assert events == [], "there is no engine yet"
    prepare(worker, request("one", 2))
    events.clear()
    for run, version in (("one", 1), ("one", 2), ("two", 3), ("one", 4), ("one", 3)):
        worker.serve(run, version, Path(f"v{version}"))
    assert events == ["one serves 4 of v4"]
    events.clear()
    prepare(worker, request("one", 3, or_newer=True))
    assert events == ["sites shop"], "an asynchronous run keeps the newer version"
    prepare(worker, request("one", 3))
    assert events[1:] == ["one serves 3 of v3", "sites shop"]


async def test_a_flow_has_the_plugin_of_each_worker_serve_a_version(events: list[str]) -> None:
    with pytest.raises(BrowserError, match="no rollwright-rollout plugin in this process"):
        RolloutWorker.of_this_process()
    plugin = RolloutWorker()
    plugin.setup(None)
    try:
        assert RolloutWorker.of_this_process() is plugin
        await asyncio.to_thread(plugin.warm_up, request("one"))
        await serve_version("one", 1, "v1")
    finally:
        await asyncio.to_thread(plugin.teardown, None)
    assert events[-2:] == ["one serves 1 of v1", "one closed"]


def test_an_ended_loop_cancels_requests_and_refuses_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.worker.event_loop.LAST_SECONDS", 0.0)
    loop, running, cancelled = WorkerLoop(), threading.Event(), list[bool]()

    async def play() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)  # closes what it has open
            cancelled.append(True)
            raise

    with ThreadPoolExecutor(1) as thread:
        playing = thread.submit(lambda: loop.carry_out(play()))
        running.wait(10)
        loop.cancel_requests()
        assert cancelled == [True], "it waits for the request's end"
        with pytest.raises(BrowserError, match="was ended in the middle of its work"):
            playing.result(timeout=10)
    with pytest.raises(BrowserError, match="was ended in the middle of its work"):
        loop.carry_out(asyncio.sleep(0))
    assert loop.wait(asyncio.sleep(0, "closed")) == "closed", "what closes the worker still runs"
    loop.stop()


def test_of_several_errors_a_loop_raises_the_disk_s_first() -> None:
    loop = WorkerLoop()

    async def fail(error: Exception) -> None:
        raise error

    async def fail_at_once(*errors: Exception) -> None:
        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(fail(error))

    with pytest.raises(DiskError, match="full"):
        loop.wait(fail_at_once(ValueError(), BrowserError("gone"), DiskError("full")))
    with pytest.raises(BrowserError, match="gone"):
        loop.wait(fail_at_once(ValueError(), BrowserError("gone")))
    with pytest.raises(ExceptionGroup):
        loop.wait(fail_at_once(ValueError(), KeyError()))
    loop.stop()


def test_stored_episodes_are_graded_once_and_without_a_policy(
    worker: WorkerResources, events: list[str], tmp_path: Path
) -> None:
    store, name = RunStore(tmp_path), "again"
    names = [f"e000000-g0000-s0{sample}-a0" for sample in (0, 1)]
    for sample, episode_id in enumerate(names):
        store.put_trajectory(trajectory(episode_id=episode_id, task_id="shop/a", sample=sample))
    batch = GradeRequest(
        run_dir=str(tmp_path), rollout=RolloutConfig(), name=name, episodes=tuple(names[:1]), tasks={"shop/a": TASK}
    )
    service = GradingService(worker)
    first = service.grade(batch)
    assert (first.graded, first.already_graded, first.stage["graded"]) == (1, 0, 1)
    second = service.grade(batch.model_copy(update={"episodes": tuple(names)}))
    assert (second.graded, second.already_graded, second.stage["graded"]) == (1, 1, 1)
    assert service.grade(batch).stage == {}
    assert events == ["sites shop", "sites shop"], "no engine was made, and nothing prepared for nothing"
    for episode_id in names:
        result, stored = read_regraded(store.regraded_path(name, episode_id)), store.trajectory(episode_id)
        assert (result.episode_id, result.task_id, result.before) == (episode_id, "shop/a", stored.reward)
        assert result.reward.rubric_hash == rubric_hash(RUBRIC)
