"""What a worker has written is waited for: a network file system may show it late."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import distributed
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from envs.sites import LiveOptions
from envs.types import ConfigError, DiskError, RollwrightError
from tasks_lib.config import PROJECT, ClusterConfig
from tasks_lib.processes.dask_clients import units_of_shard, worker_options
from tasks_lib.rollouts import shards
from tasks_lib.rollouts.cluster import follow_groups, leave_out_workers, use_cluster
from tasks_lib.rollouts.shards import RunningShard, seconds_of
from tasks_lib.worker.requests import RolloutReport, WorkerUse
from tasks_lib.worker.rollout_worker import RolloutWorker
from tests.flows.services import QUIET, DaskCluster, Services
from training.ledger.store import RunStore, atomic_write_bytes


def ended(folder: Path) -> tuple[RunningShard, Path]:
    """A shard of one group whose task has ended."""
    store = RunStore(folder)
    request = SimpleNamespace(groups=[SimpleNamespace(group_id="i000000-g0000")])
    shard = RunningShard(cast(Any, request), cast(Any, SimpleNamespace(result=lambda: "report")), store, 0.0)
    return shard, store.group_path("i000000-g0000")


def report_of(worker: str, **seconds: float) -> RolloutReport:
    use = WorkerUse(worker=worker, seconds=0.0, slots=1, lent=0.0, generating=0.0)
    return RolloutReport(group_ids=(), already_committed=0, seconds=seconds, use=(use, use))


def test_waiting_for_a_slower_worker_counts_as_idle() -> None:
    seconds = seconds_of([report_of("a", browser=4.0, idle=2.0), report_of("b", browser=10.0)], workers=2)
    assert seconds == {"browser": 7.0, "idle": 1.0 + 2.0}
    assert sum(seconds.values()) == 10.0, "as long as the slower one"


def test_shards_of_one_worker_add_up() -> None:
    both = [report_of("a", browser=4.0), report_of("a", browser=6.0)]
    assert seconds_of(both, workers=1) == {"browser": 10.0, "idle": 0.0}
    assert seconds_of(both, workers=2) == {"browser": 5.0, "idle": 5.0}, "the other one played nothing"


def test_a_worker_that_was_started_again_makes_no_negative_time() -> None:
    seconds = seconds_of([report_of(name, browser=4.0) for name in ("a", "b", "b again")], workers=2)
    assert seconds == {"browser": 6.0, "idle": 0.0}


def failing(error: Exception) -> Any:
    def result() -> None:
        raise error

    return SimpleNamespace(result=result)


def test_a_shard_whose_worker_cannot_write_goes_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, path = ended(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")
    lost = DiskError("cannot write x: the file system is read-only")
    asked: list[Path] = []
    monkeypatch.setattr(shards, "leave_out_workers", asked.append)
    given = [failing(lost), SimpleNamespace(result=lambda: "played elsewhere")]
    monkeypatch.setattr(shards, "submit", lambda request, **options: given.pop(0))
    moved = replace(shard, future=failing(lost))
    assert cast(Any, moved.wait()) == "played elsewhere" and asked == [tmp_path] * 2


def test_a_disk_that_is_everyones_ends_the_run_with_the_workers_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = ended(tmp_path)

    def leave_out(folder: Path) -> None:
        raise DiskError("this process cannot write either")

    monkeypatch.setattr(shards, "leave_out_workers", leave_out)
    with pytest.raises(DiskError, match="cannot write x"):
        replace(shard, future=failing(DiskError("cannot write x"))).wait()


SHARED = Path("/proc/self/cwd/store")
"""One path that is another folder in a process with another working directory, as where a machine
lacks the mount."""


@pytest.mark.dask
def test_workers_that_cannot_write_are_left_out_while_others_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / name for name in ("here", "one", "two")}
    for folder in folders.values():
        (folder / "store").mkdir(parents=True)
    services = Services(tmp_path)

    def break_storage(name: str) -> None:
        (folders[name] / "store").rmdir()
        (folders[name] / "store").symlink_to("/sys/kernel")  # where nobody can write

    monkeypatch.chdir(folders["here"])
    try:
        cluster = DaskCluster(services)
        for name in ("one", "two"):
            command = ("dask", "worker", cluster.address, "--name", name, "--no-nanny", "--resources", "browser=1")
            services.start(name, *command, *QUIET, folder=folders[name], environment={"PYTHONPATH": str(PROJECT)})
        for name in ("one", "two"):
            services.wait_until(name, lambda name=name: "Registered to" in services.log(name))
        nobody = temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"})  # no flow runs here
        with nobody, use_cluster(ClusterConfig(address=cluster.address), None):
            assert leave_out_workers(SHARED) == []
            break_storage("one")
            assert len(leave_out_workers(SHARED)) == 1 and leave_out_workers(SHARED) == []
            break_storage("two")
            with pytest.raises(DiskError, match="no worker can write to /proc/self/cwd/store"):
                leave_out_workers(SHARED)
            break_storage("here")
            with pytest.raises(DiskError, match=r"^cannot write"):
                leave_out_workers(SHARED)
    finally:
        services.stop_all()


PLAYING: list[Places] = []
"""The one that workers of this process play in."""


def play(request: Any) -> None:
    PLAYING[-1].play(request)


class Places:
    """Episodes that Dask tasks play in the places of one worker, in place of browsers."""

    def __init__(self, places: int) -> None:
        self.permits = threading.Semaphore(places)
        self.full = threading.Barrier(places)
        """Passed when every place has an episode at the same moment."""
        self.first = iter(range(places))
        self.go_on = threading.Event()
        """Set for the last group of a shard to end."""

    def play(self, request: Any) -> None:
        """Play a shard as a worker does, and tell of each group that ended."""
        for number, group in enumerate(request.groups):
            with ThreadPoolExecutor(len(group.seeds)) as pool:
                list(pool.map(self.episode, group.seeds))
            if number + 1 == len(request.groups):
                assert self.go_on.wait(60)
            RolloutWorker.of_this_process().announce(request, group.group_id)

    def episode(self, seed: int) -> None:
        with self.permits:
            if next(self.first, None) is not None:
                self.full.wait(60)


def test_a_cluster_s_worker_fills_all_its_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 places and groups of 8: shards of two groups, on a worker as the launchers start it. A
    group is told of while another one of its shard still runs."""
    groups_per_task, size, places = 2, 8, 64
    options = worker_options("browser", places)
    playing = Places(places)
    PLAYING.append(playing)
    names = [[f"i000000-g{task}{number}" for number in range(groups_per_task)] for task in range(9)]
    requests = [
        SimpleNamespace(
            run_dir=str(tmp_path),
            or_newer=True,
            groups=[SimpleNamespace(group_id=name, seeds=range(size)) for name in shard],
            sites=set[str](),
            live=LiveOptions(),
        )
        for shard in names
    ]
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=int(options[1]),
            resources={"browser": int(options[3].partition("=")[2])},
            processes=False,
            dashboard_address=None,
            memory_limit=0,
        ) as cluster,
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}),  # no flow runs here
        use_cluster(ClusterConfig(address=cluster.scheduler_address), None, places),
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        monkeypatch.setattr(
            shards,
            "roll_out_shard",
            SimpleNamespace(submit=lambda request: client.submit(play, request, pure=False)),
        )
        seen = queue.Queue[str]()
        follow_groups(tmp_path, seen.put)
        running: list[Any] = [shards.submit(cast(Any, request), shared=True) for request in requests]
        assert seen.get(timeout=60).endswith("0"), "the first group of a shard"
        assert not any(future.done() for future in running), "the second one holds each of them"
        playing.go_on.set()
        client.gather(running, direct=False)
        told = {seen.get(timeout=60) for _ in range(sum(map(len, names)) - 1)}
        assert len(told) == sum(map(len, names)) - 1


def test_a_worker_with_too_few_places_is_refused(tmp_path: Path) -> None:
    with (
        distributed.LocalCluster(
            n_workers=1, resources={"browser": 1}, processes=False, dashboard_address=None, memory_limit=0
        ) as cluster,
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}),
    ):
        found = ClusterConfig(address=cluster.scheduler_address)
        with (
            pytest.raises(
                ConfigError,
                match=r"offers browser=1, and rollout\.concurrency is 8: .*--nthreads 9 --resources browser=8",
            ),
            use_cluster(found, None, 8),
        ):
            pass


@pytest.mark.parametrize("places", [1, 2, 3, 24, 64])
@pytest.mark.parametrize("size", [1, 4, 8, 32, 4096])
def test_what_fits_a_worker_is_never_refused_by_it(places: int, size: int) -> None:
    """And two shards do side by side, so that one fills the places that the other leaves."""
    units = units_of_shard(size, places, shared=True)
    assert 1 <= units <= places and (2 * units <= places or places == 1)
    assert units <= max(1, size // 3), "three times as many episodes as places are at the worker"
    assert units_of_shard(size, places, shared=False) == places, "others wait for the whole worker"


def test_a_record_that_shows_late_is_waited_for(tmp_path: Path) -> None:
    shard, path = ended(tmp_path)
    path.parent.mkdir(parents=True)
    threading.Timer(0.4, atomic_write_bytes, (path, b"{}")).start()
    assert cast(Any, shard.wait()) == "report" and path.exists()


def test_one_that_never_shows_is_named_with_the_question_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "VISIBLE_SECONDS", 0.2)
    shard, _ = ended(tmp_path)
    with pytest.raises(
        RollwrightError, match=r"groups \['i000000-g0000'\] .* is \S+ the same folder on every worker\?"
    ):
        shard.wait()


def test_tasks_are_told_the_settings_that_prefect_would_tell_them() -> None:
    from prefect.context import get_settings_context, serialize_context

    from tasks_lib.rollouts.cluster import _TaskSettings

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        expected = get_settings_context().serialize()
        with _TaskSettings.current():
            assert get_settings_context().settings.api.url == "http://127.0.0.1:1/api"
            assert serialize_context()["settings_context"] == expected
            assert serialize_context()["settings_context"] == expected, "from memory"
        assert get_settings_context().serialize() == expected
