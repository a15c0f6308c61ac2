"""A Prefect server, a worker and a Dask cluster of the user's own, as in prefect.yaml and
docs/scaling.md."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import orjson
import pytest
import yaml

from tasks_lib.config import PROJECT, FolderConfig, TrainConfig, load_preset, merge, parse_assignments
from tasks_lib.config.parameters import grouped, values_of
from tasks_lib.folder.lock import check_unlocked
from tasks_lib.sweeps.config import SweepConfig
from training.ledger.store import RunStore, read_json

from .conftest import SMALL
from .services import DaskCluster, PrefectServer, Services

pytestmark = [pytest.mark.slow, pytest.mark.dask, pytest.mark.timeout(900)]

TINY = {
    **SMALL,
    "iterations": 1,
    "rollout.groups_per_iteration": 2,
    "rollout.concurrency": 4,
    "evaluation.episodes": 4,
}


def given(model: type[FolderConfig], values: dict[str, Any]) -> list[str]:
    """``-p`` options of ``prefect deployment run`` that give these values, as a user writes them:
    group by group."""
    return [
        part
        for name, group in grouped(model, values).items()
        for part in ("-p", f"{name}={orjson.dumps(group, default=str).decode()}")
    ]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    started = Services(tmp_path_factory.mktemp("services"))
    yield started
    started.stop_all()


def test_deployments_carry_the_preset_and_no_copy_of_it(deployed: PrefectServer) -> None:
    deployment = deployed.api("deployments/name/train/quickstart")
    assert values_of(deployment["parameters"]) == load_preset("quickstart")
    assert TrainConfig.model_validate(values_of(deployment["parameters"])).run_id == "quickstart-seed0"
    assert deployment["pull_steps"] == [
        {"prefect.deployments.steps.set_working_directory": {"directory": str(PROJECT)}}
    ]
    sweep = values_of(deployed.api("deployments/name/sweep/quickstart-seeds")["parameters"])
    assert sweep == load_preset("quickstart-seeds")
    assert [arm.run_id for arm in SweepConfig.model_validate(sweep).all_arms()] == [
        f"quickstart-seeds-seed{seed}" for seed in range(3)
    ]
    evaluation = deployed.api("deployments/name/evaluate/default")
    assert [schedule["active"] for schedule in evaluation["schedules"]] == [False]
    for entry in yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]:
        assert entry["description"] and entry["tags"]


def test_an_active_schedule_creates_runs(deployed: PrefectServer) -> None:
    """The example of prefect.yaml, switched on as its comment says. No worker runs, so that nothing
    is evaluated."""
    deployment = deployed.api("deployments/name/evaluate/default")
    chosen = {"deployments": {"id": {"any_": [deployment["id"]]}}}
    assert deployed.api("flow_runs/filter", **chosen) == []
    schedule = deployment["schedules"][0]["id"]
    code, output = deployed.cli("deployment", "schedule", "resume", "evaluate/default", schedule)
    assert code == 0, output
    deadline = time.monotonic() + 60  # passes are 5 s apart
    while not (runs := deployed.api("flow_runs/filter", **chosen)) and time.monotonic() < deadline:
        time.sleep(0.5)
    deployed.api(f"deployments/{deployment['id']}/schedules/{schedule}", method="PATCH", active=False)
    assert {run["state_type"] for run in runs} == {"SCHEDULED"} and len(runs) >= 3, deployed.errors()
    assert {run["next_scheduled_start_time"][11:19] for run in runs} == {"03:00:00"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("iterations=0", "iterations"),
        ("algorithm.clip_low=1.5", "clip_low"),
        ("trainer.lerning_rate=1", "lerning_rate"),
    ],
)
def test_a_bad_parameter_is_refused_by_name_before_a_run_exists(
    deployed: PrefectServer, change: str, named: str
) -> None:
    """By the server, whoever asks for the run; the command line says what the server says."""
    values = merge({"preset": "quickstart", "run_id": "bad-parameter"}, parse_assignments([change]))
    deployment = deployed.api("deployments/name/train/quickstart")
    with pytest.raises(HTTPError) as refused:
        parameters = grouped(TrainConfig, values)
        deployed.api(f"deployments/{deployment['id']}/create_flow_run", name="bad-parameter", parameters=parameters)
    assert refused.value.code == 409 and named in refused.value.read().decode()
    if named == "iterations":
        code, output = deployed.cli("deployment", "run", "train/quickstart", *given(TrainConfig, values))
        assert code != 0 and named in output
    assert deployed.flow_runs("bad-parameter") == []


def tiny_base(cluster: DaskCluster) -> dict[str, object]:
    """Of a sweep whose arms run on a cluster that is warm."""
    changes = {**TINY, "cluster.address": cluster.address}
    return {"preset": "quickstart", **parse_assignments([f"{key}={value}" for key, value in changes.items()])}


@pytest.mark.long
def test_a_worker_runs_a_sweep_and_its_arms(
    deployed: PrefectServer, dask_cluster: DaskCluster, services: Services, tmp_path: Path
) -> None:
    base = tiny_base(dask_cluster)
    pair = {"run_id": "pair", "root": str(tmp_path), "base": base, "grid": {"seed": [0, 1]}, "parallel": 2}
    parameters = given(SweepConfig, {**pair, "deployment": "train/quickstart"})
    services.start("sweeper", "prefect", "worker", "start", "--pool", "local", environment=deployed.environment)
    code, output = deployed.cli("deployment", "run", "sweep/quickstart-seeds", *parameters, "--watch", timeout=600)
    services.stop("sweeper")
    assert code == 0, output + services.log("sweeper")
    summary = read_json(tmp_path / "pair" / "sweep.json")
    assert [(arm["run_id"], arm["state"]) for arm in summary["arms"]] == [
        ("pair-seed0", "finished"),
        ("pair-seed1", "finished"),
    ]
    (sweep,) = deployed.flow_runs("pair")
    for arm in summary["arms"]:
        assert read_json(RunStore(tmp_path / arm["run_id"]).result_path)["success_after"] == arm["success_after"]
        (run,) = deployed.flow_runs(arm["run_id"])
        assert run["state_name"] == "Completed" and "sweep:pair" in run["tags"]
        parent = deployed.api(f"task_runs/{run['parent_task_run_id']}")
        assert parent["flow_run_id"] == sweep["id"], "the page of the sweep's flow run leads to its arms'"


def check_shown(deployed: PrefectServer, name: str, run: dict[str, Any], log: str, *, measured: int = 0) -> None:
    """What Prefect shows of a flow run of the training run ``name``, whose worker wrote ``log``.

    Args:
        measured: Evaluations of an earlier flow run that was cancelled; their events may be lost
            with its process.
    """
    artifacts = deployed.api("artifacts/latest/filter", artifacts={"flow_run_id": {"any_": [run["id"]]}})
    assert {artifact["key"]: artifact["type"] for artifact in artifacts} == {
        f"{name}-iteration": "table",
        f"{name}-learning-curve": "image",
        f"{name}-progress": "progress",
        f"{name}-report": "markdown",
    }
    (links,) = (artifact["data"] for artifact in artifacts if artifact["type"] == "markdown")
    assert "e000001-g0000-s00" in links and f"http://127.0.0.1:8711/runs/{name}/episodes/" in links
    started = [each["id"] for each in deployed.flow_runs(name)]  # what was done before an interrupt is not done again
    names = {task["name"] for task in deployed.api("task_runs/filter", flow_runs={"id": {"any_": started}})}
    versions = {f"{what}-v{version:06d}" for what in ("evaluate", "publish") for version in (0, 1)}
    assert versions | {"warm-up-0", "roll-out-i000000-g0000", "update-v000001"} <= names
    shown = [line.partition(" s  ")[2] for line in log.splitlines() if " s  " in line]
    deadline, ours = time.monotonic() + 60, [""]
    while not ours[-1].startswith("held-out success") and time.monotonic() < deadline:  # sent as the process ends
        time.sleep(0.2)
        logged = deployed.api("logs/filter", logs={"flow_run_id": {"any_": [run["id"]]}}, sort="TIMESTAMP_ASC")
        ours = [line["message"] for line in logged if line["name"] == "rollwright.flow_runs"] or [""]
    assert len(ours) > 8 and set(ours) <= set(shown), "the flow run's log has the terminal's lines"
    deadline, counts = time.monotonic() + 60, Counter[str]()  # events are sent as the process ends, too
    while counts["rollwright.evaluation.finished"] < 2 - measured and time.monotonic() < deadline:
        events = deployed.api("events/filter", filter={"event": {"prefix": ["rollwright."]}})["events"]
        mine = [event for event in events if event["resource"]["prefect.resource.name"] == name]
        counts = Counter(event["event"] for event in mine)
        time.sleep(0.2)
    counts.pop("rollwright.disk.low", None)  # of this machine
    assert set(counts) == {f"rollwright.{what}" for what in ("run.started", "evaluation.finished", "version.published")}
    assert counts["rollwright.version.published"] == 1
    assert 2 - measured <= counts["rollwright.evaluation.finished"] <= 2
    for event in mine:
        kinds = {related["prefect.resource.role"]: related["prefect.resource.id"] for related in event["related"]}
        assert kinds["flow-run"].removeprefix("prefect.flow-run.") in started and "task-run" not in kinds


def test_a_worker_builds_recipes_of_its_machine(deployed: PrefectServer, services: Services, tmp_path: Path) -> None:
    seed = ["python", "-c", "open('made', 'w').write('here')"]
    recipe = {
        "kind": "process",
        "build": {"seed": seed},
        "start": {"command": ["python", "-m", "http.server", "{port}"]},
    }
    (tmp_path / "pages.yaml").write_text(yaml.safe_dump(recipe))
    folders = {"ROLLWRIGHT_SITES": str(tmp_path), "ROLLWRIGHT_SITE_BUILDS": str(tmp_path / "builds")}
    environment = {**deployed.environment, **folders}
    services.start("builder", "prefect", "worker", "start", "--pool", "local", environment=environment)
    ends = [
        deployed.cli("deployment", "run", "build-sites/recipes", "-p", f'names=["{name}"]', "--watch")
        for name in ("pages", "page")
    ]
    services.stop("builder")
    assert [code for code, _ in ends] == [0, 1], services.log("builder")
    (build,) = (tmp_path / "builds").glob("pages-*")
    assert (build / "state" / "made").read_text() == "here" and (build / "manifest.json").is_file()
    deployment = deployed.api("deployments/name/build-sites/recipes")
    runs = deployed.api("flow_runs/filter", deployments={"id": {"any_": [deployment["id"]]}}, sort="START_TIME_ASC")
    messages = [run["state"]["message"] for run in runs]
    assert messages[0] == "1 sites are built" and "no recipe 'page'; did you mean pages?" in messages[1]
    (task,) = deployed.api("task_runs/filter", flow_runs={"id": {"any_": [run["id"] for run in runs]}})
    assert task["name"] == "build-site-pages" and task["state_type"] == "COMPLETED"


def test_ctrl_c_of_a_sweep_ends_its_arm_which_goes_on_next_time(
    deployed: PrefectServer, dask_cluster: DaskCluster, services: Services, tmp_path: Path
) -> None:
    base = tiny_base(dask_cluster)
    given = {"run_id": "left", "root": str(tmp_path), "base": base, "grid": {"seed": [0]}}
    command = ["python", "-m", "flows.sweep", "--set", "deployment=train/quickstart"]
    command += [part for key, value in given.items() for part in ("--set", f"{key}={orjson.dumps(value).decode()}")]
    services.start("worker", "prefect", "worker", "start", "--pool", "local", environment=deployed.environment)
    services.start("left", *command, environment=deployed.environment)

    def states() -> list[str]:
        return sorted(run["state_name"] for run in deployed.flow_runs("left-seed0"))

    played = RunStore(tmp_path / "left-seed0")
    services.wait_until("left", lambda: any(played.root.glob("trajectories/*/*")))
    assert services.interrupt("left") == 130, services.log("left")
    log = services.log("left")
    assert "the sweep is stopped, and with it its arms" in log and "is being ended by its worker" in log
    services.wait_until("worker", lambda: states() == ["Cancelled"], timeout=120)
    assert not played.result_path.exists()
    check_unlocked(played.root)  # nobody works on it any more
    measured = int(played.evaluation_path(0).exists())
    services.start("left", *command, environment=deployed.environment)
    services.wait_until("worker", lambda: states() == ["Cancelled", "Completed"], timeout=400)
    (completed,) = (run for run in deployed.flow_runs("left-seed0") if run["state_name"] == "Completed")
    check_shown(deployed, "left-seed0", completed, services.whole_log("worker"), measured=measured)
    services.stop("worker")  # before, it would end the process that still sends its log


def test_a_cluster_without_fitting_workers_is_refused_with_the_command(
    server: PrefectServer, services: Services, make_run
) -> None:
    """A run on one that has some: test_server_outage.py."""
    cluster = DaskCluster(services)
    refused = make_run("unfitting", **{**TINY, "cluster.address": cluster.address})
    with (
        cluster.worker("plain"),
        pytest.raises(AssertionError, match=r"error: no worker of the Dask cluster .* --resources browser=1"),
    ):
        refused.finish()
    assert [run["state_name"] for run in server.flow_runs("unfitting")] == ["Failed"]


def test_no_service_of_the_server_failed_meanwhile(deployed: PrefectServer) -> None:
    """The last of this file, after flow runs, schedules and cancellations: loops of the server only
    show in its log that they fail."""
    assert deployed.errors() == []
