"""What a worker has written is waited for: a network file system may show it late."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from envs.types import DiskError, RollwrightError
from tasks_lib.config import PROJECT, ClusterConfig
from tasks_lib.rollouts import shards
from tasks_lib.rollouts.cluster import leave_out_workers, use_cluster
from tasks_lib.rollouts.shards import RunningShard, seconds_of
from tasks_lib.worker.requests import RolloutReport, WorkerUse
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
    monkeypatch.setattr(shards, "submit", lambda request, resource: given.pop(0))
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
