"""Sweeps on the session's Prefect server: arms as subflows, really trained; as flow runs of a
deployment, with a stand-in for its worker."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Completed, Failed, Running
from prefect.utilities.callables import parameter_schema

from envs.types import ConfigError, TrainingError
from flows.sweep import sweep
from flows.train import train
from tasks_lib.config import TrainConfig, resolve, resolve_path
from tasks_lib.config.parameters import parameters_of, values_of
from tasks_lib.sweeps import deployed
from tasks_lib.sweeps.arms import Arm
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.sweeps.sweeping import Log, Sweep
from tests.tasks_lib.swept import Train
from training.ledger.store import RunStore, read_json

from .services import DaskCluster
from .test_flows import artifact

TINY = {
    "preset": "quickstart",
    "iterations": 1,
    "tasks": {"kinds": ["click-test-2", "click-option"]},
    "rollout": {"groups_per_iteration": 2, "concurrency": 4},
    "algorithm": {"group_size": 4},
    "trainer": {"epochs": 1},
    "evaluation": {"episodes": 4},
}


def config(root: Path, **changes: Any) -> SweepConfig:
    found: SweepConfig = resolve(SweepConfig, {"run_id": "swept", "root": str(root), **changes})
    return found


def flow_runs(tag: str = "", name: str = "") -> list[FlowRun]:
    """With a tag or a name, oldest first."""
    filters = FlowRunFilter(tags=FlowRunFilterTags(all_=[tag])) if tag else FlowRunFilter(name={"any_": [name]})
    with get_client(sync_client=True) as client:
        return sorted(client.read_flow_runs(flow_run_filter=filters), key=lambda run: str(run.created))


# ----------------------------------------------------------------------------
# subflows


@pytest.mark.dask
def test_two_arms_are_trained_and_the_one_that_failed_is_tried_again_alone(
    prefect_api: None, dask_cluster: DaskCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = tmp_path / "later"
    base = {**TINY, "cluster": {"address": dask_cluster.address}}
    values = {"base": base, "arms": [{"seed": 1}, {"policy.checkpoint": str(later)}], "run_id": "Two.Arms"}
    good, bad = (arm.run_id for arm in config(tmp_path, **values).all_arms())
    with pytest.raises(
        TrainingError, match=rf"1 of 2 arms failed(.|\n)*\n  {bad}: PolicyError: policy\.checkpoint: .*later"
    ):
        sweep(**parameters_of(config(tmp_path, **values)))
    seconds = [float(found) for found in re.findall(r"(?m)^ *(\d+\.\d) s  ", capsys.readouterr().err)]
    assert len(seconds) > 10 and seconds == sorted(seconds), "one clock for the sweep's lines and those of its arms"
    found = {arm["run_id"]: arm["state"] for arm in read_json(tmp_path / "Two.Arms" / "sweep.json")["arms"]}
    assert found == {good: "finished", bad: "failed"}
    result = RunStore(tmp_path / good).result_path
    before = result.stat().st_mtime_ns

    shutil.copytree(resolve_path("datasets/policies/reader"), later)
    summary = sweep(**parameters_of(config(tmp_path, **values)))
    assert [arm["state"] for arm in summary["arms"]] == ["finished", "finished"]
    assert result.stat().st_mtime_ns == before and len(flow_runs(name=good)) == 1
    assert [run.state_name for run in flow_runs(name=bad)] == ["Failed", "Completed"]
    trained = read_json(result)
    assert summary["arms"][0]["success_after"] == trained["success_after"] and trained["seed"] == 1
    assert (tmp_path / "Two.Arms" / summary["arms"][0]["report"]).exists()

    assert sweep(**parameters_of(config(tmp_path, **values))) == summary
    assert [len(flow_runs(name=name)) for name in (good, bad, "Two.Arms")] == [1, 2, 3]
    table = artifact("two-arms-sweep")
    assert [row["arm"] for row in orjson.loads(table["data"])] == [good, bad]
    parents = [run for run in flow_runs(name="Two.Arms") if run.state_name == "Failed"]
    assert len(parents) == 1 and flow_runs(name=good)[0].parent_task_run_id is not None


# ----------------------------------------------------------------------------
# deployments


class Worker:
    """Takes the flow runs with a tag, and ends one after the other: as `ends` says for its name,
    else as completed."""

    def __init__(self, tag: str, play: Callable[[TrainConfig], None], full: int) -> None:
        """It waits until there are no more of them for a while, and until there were ``full`` of
        them at one time for a long while."""
        self.tag, self.play, self.full = tag, play, full
        self.ends: dict[str, Any] = {}
        self.most = 0
        """Flow runs that had not ended at one time."""
        self._quiet = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="worker")

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with get_client(sync_client=True) as client:
            while not self._over.is_set():
                self._look(client)
                time.sleep(0.1)

    def _look(self, client: SyncPrefectClient) -> None:
        found = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[self.tag])))
        going = [run for run in found if run.state is not None and not run.state.is_final()]
        new = [run for run in going if run.state is not None and run.state.is_scheduled()]
        for run in new:
            client.set_flow_run_state(run.id, Running(), force=True)
        self.most = max(self.most, len(going))
        self._quiet = 0 if new else self._quiet + 1
        patience = 10 if self.most >= self.full else 600
        if going and self._quiet > patience:
            first = min(going, key=lambda run: run.name)
            client.set_flow_run_state(first.id, self._end(first), force=True)
            self._quiet = 0

    def _end(self, run: FlowRun) -> Any:
        if run.state is not None and run.state.is_cancelling():
            return Cancelled()
        if (end := self.ends.get(run.name)) is not None:
            return end
        self.play(TrainConfig.model_validate(values_of(run.parameters)))
        return Completed()


@pytest.fixture
def deployment(prefect_api: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A deployment of the training flow, whose parameters are checked by the server as those of
    prefect.yaml are."""
    with get_client(sync_client=True) as client:
        client.create_deployment(
            flow_id=client.create_flow_from_name("train"),
            name="tiny",
            parameters={"general": {"preset": "quickstart"}},
            parameter_openapi_schema=parameter_schema(train).model_dump_for_openapi(),
            enforce_parameter_schema=True,
        )
    monkeypatch.setattr(deployed, "POLL_SECONDS", 0.1)
    return "train/tiny"


def test_arms_are_flow_runs_of_a_deployment_some_at_a_time(deployment: str, tmp_path: Path) -> None:
    values = {"base": {"preset": "quickstart", "iterations": 2}, "grid": {"seed": [0, 1, 2, 3]}}
    given = config(tmp_path, **values, deployment=deployment, parallel=2)
    played = Train()
    with Worker("sweep:swept", played, full=2) as worker:
        worker.ends = {"swept-seed1": Failed(message="no\nChromium"), "swept-seed2": Cancelled()}
        with pytest.raises(TrainingError, match="2 of 4 arms failed") as found:
            sweep(**parameters_of(given))
        first, second = str(found.value).splitlines()[1:]
        assert first.startswith("  swept-seed1: flow run ") and first.endswith(" ended as Failed: no Chromium")
        assert second.startswith("  swept-seed2: flow run ") and " ended as Cancelled" in second
        assert worker.most == 2 and sorted(played.played) == ["swept-seed0", "swept-seed3"]
        worker.ends = {}
        summary = sweep(**parameters_of(given))
    assert {arm["state"] for arm in summary["arms"]} == {"finished"}
    runs = flow_runs("sweep:swept")
    assert sorted(run.name for run in runs) == [
        "swept-seed0",
        *["swept-seed1"] * 2,
        *["swept-seed2"] * 2,
        "swept-seed3",
    ]
    for run in runs:
        (arm,) = (arm for arm in given.all_arms() if arm.run_id == run.name)
        assert run.parameters == parameters_of(arm.config)
        assert run.parameters["general"]["root"] == str(tmp_path)
        assert run.tags == ["sweep:swept"] and run.parent_task_run_id is not None and run.deployment_id is not None


def ended_by(error: BaseException, given: SweepConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the sweep until it has begun what it may begin and looked once; then it ends by that."""

    def end(_: float) -> None:
        raise error

    with monkeypatch.context() as patched, pytest.raises(type(error)):
        patched.setattr(deployed, "time", SimpleNamespace(sleep=end, monotonic=time.monotonic))
        sweep(**parameters_of(given))


def arm_states(given: SweepConfig) -> dict[str, str]:
    return {arm["run_id"]: arm["state"] for arm in read_json(given.run_dir / "sweep.json")["arms"]}


def names_and_states(tag: str) -> list[tuple[str, str | None]]:
    return sorted((run.name, run.state_name) for run in flow_runs(tag))


def test_a_stopped_sweep_cancels_its_flow_runs_and_restarts_them(
    deployment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "stopped"
    given = config(
        tmp_path, run_id=name, base={"iterations": 2}, grid={"seed": [0, 1]}, deployment=deployment, parallel=2
    )
    first, second = (arm.run_id for arm in given.all_arms())
    begin = deployed._begin

    def begin_and_take(sweep: Sweep, arm: Arm, before: FlowRun | None, log: Log) -> Any:
        begun = begin(sweep, arm, before, log)
        if arm.run_id == first:
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(begun.flow_run.id, Running(), force=True)  # as a worker does
        return begun

    with monkeypatch.context() as patched:
        patched.setattr(deployed, "_begin", begin_and_take)
        ended_by(KeyboardInterrupt(), given, patched)
    said = " ".join(capsys.readouterr().err.split())
    assert "the sweep is stopped, and with it its arms; start it again and they go on" in said
    assert f"arm {first}: its flow run is being ended by its worker (Cancelling)" in said
    assert f"arm {second}: its flow run has ended (Cancelled)" in said
    assert names_and_states(f"sweep:{name}") == [(first, "Cancelling"), (second, "Cancelled")]
    assert arm_states(given) == {first: "interrupted", second: "interrupted"}

    played = Train()
    with Worker(f"sweep:{name}", played, full=2) as worker:
        summary = sweep(**parameters_of(given))
    assert {arm["state"] for arm in summary["arms"]} == {"finished"}
    assert f"arm {first}: its flow run of before is being cancelled" in capsys.readouterr().err
    assert sorted(played.played) == [first, second] and worker.most == 2, "its place is taken until it has ended"
    cancelled, completed = "Cancelled", "Completed"
    assert names_and_states(f"sweep:{name}") == [
        (run, state) for run in (first, second) for state in (cancelled, completed)
    ]


def test_flow_runs_outlive_a_failed_sweep_and_are_awaited_later(
    deployment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = config(
        tmp_path, run_id="ended", base={"iterations": 2}, grid={"seed": [0, 1]}, deployment=deployment, parallel=2
    )
    monkeypatch.setattr(deployed, "FIRST_MESSAGE_SECONDS", 0.0)
    ended_by(httpx.ConnectError("no server"), given, monkeypatch)
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(
        r"arm ended-seed0: Scheduled for \S+ s; no worker has taken it: is one running \(a process that serves tiny\)",
        said,
    )
    assert "arm ended-seed1: its flow run goes on without the sweep (Scheduled)" in said
    assert set(arm_states(given).values()) == {"interrupted"}
    with Worker("sweep:ended", Train(), full=2):
        summary = sweep(**parameters_of(given))
    assert {arm["state"] for arm in summary["arms"]} == {"finished"}
    assert len(flow_runs("sweep:ended")) == 2, "none was created again"


def test_flow_runs_that_cannot_be_cancelled_are_named_with_a_command(
    deployment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = config(tmp_path, run_id="deaf", base={"iterations": 2}, grid={"seed": [0]}, deployment=deployment)

    def refuse(*_: Any) -> None:
        raise httpx.ConnectError("no server")

    with monkeypatch.context() as patched:
        patched.setattr(deployed, "_cancel", refuse)
        ended_by(KeyboardInterrupt(), given, patched)
    said = " ".join(capsys.readouterr().err.split())
    (run,) = flow_runs("sweep:deaf")
    assert "the flow runs cannot be cancelled: no server" in said
    assert (
        f"goes on without the sweep (Scheduled); start the sweep again to wait for it, or end it with: prefect flow-run cancel {run.id}"
        in said
    )


def test_flow_runs_of_arms_that_were_dropped_or_changed_are_cancelled(
    deployment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"run_id": "other", "grid": {"seed": [0, 1]}, "deployment": deployment, "parallel": 2}
    ended_by(httpx.ConnectError("no server"), config(tmp_path, **values, base={"iterations": 2}), monkeypatch)
    given = config(tmp_path, **{**values, "grid": {"seed": [1, 2]}}, base={"iterations": 3})
    ended_by(httpx.ConnectError("no server"), given, monkeypatch)
    said = " ".join(capsys.readouterr().err.split())
    assert "arm other-seed0: its arm is not in the sweep any more" in said
    assert "arm other-seed1: its arm has other values now" in said
    assert names_and_states("sweep:other") == [
        ("other-seed0", "Cancelled"),
        ("other-seed1", "Cancelled"),
        ("other-seed1", "Scheduled"),
        ("other-seed2", "Scheduled"),
    ]
    assert [run.parameters["general"]["iterations"] for run in flow_runs("sweep:other")] == [2, 2, 3, 3]
    assert arm_states(given) == {"other-seed1": "interrupted", "other-seed2": "interrupted", "other-seed0": "dropped"}


def test_an_arm_that_the_server_refuses_is_a_failed_one(deployment: str, tmp_path: Path) -> None:
    schema = parameter_schema(train).model_dump_for_openapi()
    schema["definitions"]["General"]["properties"]["seed"]["maximum"] = 0  # as of an older version
    with get_client(sync_client=True) as client:
        client.create_deployment(
            flow_id=client.create_flow_from_name("train"),
            name="older",
            parameter_openapi_schema=schema,
            enforce_parameter_schema=True,
        )
    given = config(tmp_path, run_id="refused", grid={"seed": [1, 0]}, deployment="train/older")
    with (
        Worker("sweep:refused", Train(), full=1),
        pytest.raises(
            TrainingError, match=r"1 of 2 arms failed(.|\n)* refused-seed1: its flow run could not be created: .*seed"
        ),
    ):
        sweep(**parameters_of(given))
    assert [run.name for run in flow_runs("sweep:refused")] == ["refused-seed0"]


@pytest.mark.usefixtures("prefect_api")
def test_a_deployment_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    given = config(tmp_path, run_id="nowhere", grid={"seed": [0]}, deployment="train/nowhere")
    with pytest.raises(ConfigError, match=r"has no 'train/nowhere'; `prefect deployment ls` lists"):
        sweep(**parameters_of(given))
    assert flow_runs("sweep:nowhere") == []
