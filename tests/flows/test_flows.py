"""Flows called in the test process, against the session's one Prefect server: evaluation,
artifacts, the parameter form."""

from __future__ import annotations

import asyncio
import base64
import getpass
import logging
import os
import re
import runpy
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import distributed
import orjson
import pytest
from prefect import flow, tags
from prefect.client.orchestration import get_client
from prefect.utilities.callables import parameter_schema

from envs.types import ConfigError, JudgeError, PolicyError, RollwrightError, StorageError, TrainingError
from flows.evaluate import evaluate
from flows.train import train
from tasks_lib.config import PROJECT, ClusterConfig, EvaluateConfig, TrainConfig, resolve
from tasks_lib.config.parameters import parameters_of
from tasks_lib.folder.lock import run_lock
from tasks_lib.folder.metrics import MetricsLog, describe_success
from tasks_lib.folder.metrics_lines import IterationMetrics
from tasks_lib.monitor.runs import run_row
from tasks_lib.preflight.flows import check_evaluation, check_once, reuse_check
from tasks_lib.processes.dask_clients import worker_settings
from tasks_lib.processes.prefect_run import run_as_task
from tasks_lib.report.artifacts import publish_curve, publish_iteration_table
from tasks_lib.report.data import read_measurements
from tasks_lib.rollouts import cluster
from tasks_lib.rollouts.cluster import tell_workers, use_cluster
from tests.chat_endpoint import completion, endpoint
from training.ledger.store import RunStore, read_json
from training.records.groups import GroupSpec
from training.trainer.control.launch import free_port

from .services import DaskCluster, PrefectServer, state_message

SYNTHETIC_RUN = Path(__file__).parents[1] / "tasks_lib" / "synthetic_run.py"


def small_evaluation(root: Path, **changes: Any) -> EvaluateConfig:
    """Eight episodes of two kinds."""
    values = {
        "root": str(root),
        "run_id": "Small_Evaluation",
        "episodes": 8,
        "split": "validation",
        "tasks": {"kinds": ["click-test", "click-option"]},
        "rollout": {"concurrency": 4},
        "policy": {"max_new_tokens": 24},
    }
    config: EvaluateConfig = resolve(EvaluateConfig, {**values, **changes})
    return config


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """``(a.b, schema of the field)`` of everything in the flow's parameters, nested models
    resolved."""
    definitions = schema["definitions"]

    def walk(name: str, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for key, field in definitions[name]["properties"].items():
            reference = next((part["$ref"] for part in [field, *field.get("allOf", [])] if "$ref" in part), None)
            if reference:
                yield from walk(reference.rsplit("/", 1)[1], f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", field

    for name, group in schema["properties"].items():
        parts = [group, *group.get("allOf", []), *group.get("anyOf", [])]
        reference = next(part["$ref"] for part in parts if "$ref" in part)
        yield from walk(reference.rsplit("/", 1)[1], f"{path}{name}.")


def artifact(key: str) -> dict[str, Any]:
    """The newest artifact with this key, from the API."""
    with get_client(sync_client=True) as client:
        answer = client.request("POST", "/artifacts/latest/filter", json={"artifacts": {"key": {"any_": [key]}}})
    (found,) = answer.json()
    return dict(found)


@pytest.mark.parametrize("started", [train, evaluate], ids=lambda started: str(started.name))
def test_the_parameter_form_explains_and_bounds_every_field(started: Any) -> None:
    found = dict(fields(parameter_schema(started).model_dump()))
    assert "rollout.concurrency" in found
    for name, field in found.items():
        assert len(field.get("description", "")) > 10, f"{name} has no description"
        if field.get("type") in {"integer", "number"}:
            assert {"minimum", "exclusiveMinimum"} & field.keys(), f"{name} has no lower bound"
    assert (found["rollout.concurrency"]["minimum"], found["rollout.concurrency"]["maximum"]) == (1, 4096)


@pytest.mark.parametrize(
    ("error", "state", "last"),
    [
        (KeyboardInterrupt(), "Cancelled", "interrupted by Ctrl-C; start the same command again to go on"),
        (SystemExit(3), "Crashed", "Crash detected! Execution was aborted by Python system exit call."),
    ],
    ids=["Ctrl-C", "a crash"],
)
def test_only_ctrl_c_is_no_crash(
    server: PrefectServer,
    prefect_api: None,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    state: str,
    last: str,
) -> None:
    """Of a task in a flow that another flow calls, as a sweep does: states and logs of all
    three."""
    caplog.set_level(logging.INFO, "prefect")  # a process that imports `flows` before Prefect logs warnings only
    name = f"ended-{state}"

    def end() -> None:
        raise error

    @flow(persist_result=False, flow_run_name=name)
    def inner() -> None:
        run_as_task("update", name, end)

    @flow(persist_result=False, flow_run_name=name)
    def outer() -> None:
        inner()

    with pytest.raises(type(error)):
        outer()
    runs = server.flow_runs(name)
    assert [run["state_name"] for run in runs] == [state] * 2
    for run in runs:
        entered = [each["name"] for each in server.api(f"flow_run_states/?flow_run_id={run['id']}")]
        assert entered == ["Pending", "Running", state]

    def said() -> list[str]:
        of_runs = {"flow_run_id": {"any_": [run["id"] for run in runs]}}
        return [each["message"] for each in server.api("logs/filter", logs=of_runs)]

    deadline = time.monotonic() + 60  # logs and states of tasks reach the server a little later
    while len([line for line in said() if line.startswith("Finished in state")]) < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert said().count(last) == 3, said()
    assert any("Crash" in line for line in said()) is (state == "Crashed")


def test_a_flow_run_knows_what_its_command_has_looked_at(prefect_api: None, tmp_path: Path) -> None:
    looks = 0

    def check(_config: EvaluateConfig) -> list[str]:
        nonlocal looks
        looks += 1
        return ["looked in the flow"]

    @flow(persist_result=False)
    def started(config: EvaluateConfig) -> list[str]:
        return check_once(check, config)

    config = small_evaluation(tmp_path)
    with reuse_check(config, ["looked before"]):
        assert started(config) == ["looked before"] and not looks
        assert started(small_evaluation(tmp_path, episodes=9)) == ["looked in the flow"]
    assert started(config) == ["looked in the flow"] and looks == 2


@pytest.mark.dask
def test_an_evaluation_without_any_reward_is_no_success_of_nought(
    prefect_api: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLWRIGHT_CHROMIUM", "/bin/false")
    with pytest.raises(JudgeError, match=r"no episode has a reward; .* flows\.regrade --set run="):
        evaluate(**parameters_of(small_evaluation(tmp_path)))
    found = read_json(RunStore(tmp_path / "Small_Evaluation").evaluation_path(0))
    assert found["n"] == 0 and found["abstained"] == sum(found["causes"].values()) > 0
    assert all("/bin/false did not start" in cause for cause in found["causes"])
    assert all(entry[name] is None for entry in (found, *found["by_kind"].values()) for name in ("mean", "low", "high"))
    page = (RunStore(tmp_path / "Small_Evaluation").report_path / "index.html").read_text()
    assert "Success <b>unknown</b>" in page


@pytest.mark.dask
def test_a_run_that_ends_with_an_error_leaves_a_report(
    prefect_api: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLWRIGHT_CHROMIUM", "/bin/false")
    values = {
        "preset": "quickstart",
        "root": str(tmp_path),
        "run_id": "broken",
        "tasks": {"kinds": ["click-test"]},
        "rollout": {"groups_per_iteration": 1, "attempts": 1},
        "algorithm": {"group_size": 2},
        "evaluation": {"episodes": 2},
    }
    with pytest.raises(RollwrightError, match="nothing is known of the policy; look at them in the report"):
        train(**parameters_of(resolve(TrainConfig, values)))
    assert "/bin/false did not start" in (tmp_path / "broken" / "report" / "index.html").read_text()


def test_a_model_at_an_endpoint_is_evaluated_as_a_policy_is(
    prefect_api: None, dask_cluster: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(body: dict[str, Any]) -> tuple[int, Any]:
        """Clicks the first button; a refusal of every page of another kind."""
        text = body["messages"][-1]["content"][-1]["text"]
        button = re.search(r"\[(\d+)\] button", text)
        return 200, completion(f"click [{button[1]}]" if button and "Click the button" in text else "I cannot.")

    values = {"run_id": "model", "cluster": {"address": dask_cluster.address}}
    with endpoint(says) as (address, served):
        asked = {"address": address, "model": "big", "api_key": "A_KEY_THAT_IS_NOT_SET"}
        config = small_evaluation(tmp_path, **values, policy_endpoint=asked)
        with pytest.raises(
            ConfigError, match=r"policy_endpoint\.api_key: the variable A_KEY_THAT_IS_NOT_SET is not set"
        ):
            evaluate(**parameters_of(config))
        config = small_evaluation(tmp_path, **values, policy_endpoint={**asked, "api_key": ""})
        result = evaluate(**parameters_of(config))
    assert {kind: entry["mean"] for kind, entry in result["by_kind"].items()} == {
        "click-option": 0.0,
        "click-test": 1.0,
    }
    assert result["model"] == "big" and result["n"] == 8 and result["abstained"] == 0
    store = RunStore(tmp_path / "model")
    steps = [step for episode_id in result["episodes"] for step in store.trajectory(episode_id).steps]
    assert len(served.asked) == len(steps) and {body["model"] for body in served.asked} == {"big"}


def test_an_evaluation_of_eight_episodes(
    prefect_api: None, dask_cluster: DaskCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = RunStore(tmp_path / "trained")
    trained.publish_policy(10, PROJECT / "datasets/policies/reader", {"parent": 9, "source": "reader"})
    policy = {"max_new_tokens": 24, "checkpoint": str(trained.policy_path(10))}
    told = {"monitor": True, "alerts": {"disk_gb": 1e6}, "cluster": {"address": dask_cluster.address}}
    config = small_evaluation(tmp_path, policy=policy, **told)
    with tags("nightly"), patch("tasks_lib.loops.alerts.LOOK_SECONDS", 0.1):
        result = evaluate(**parameters_of(config))
    assert re.search(r"monitor: http://127\.0\.0\.1:\d+\n(.*\n)*.*alerts\.disk_gb", capsys.readouterr().err)
    assert (result["version"], result["n"], result["abstained"], result["split"]) == (10, 8, 0, "validation")
    assert {kind: entry["n"] for kind, entry in result["by_kind"].items()} == {"click-option": 4, "click-test": 4}
    assert 0 <= result["low"] <= result["mean"] <= result["high"] <= 1
    store = RunStore(tmp_path / "Small_Evaluation")
    document = read_json(store.config_path)
    assert state_message(document["started"]["flow_run"]) == f"success {describe_success(result)}, n = 8"
    row = run_row(store, read_measurements(store.root))
    assert (row["started_by"], row["tags"], row["deployment"]) == (getpass.getuser(), ["nightly"], "")
    assert row["flow_run"] == document["started"]["flow_run"] != "" and "Chrome/" in document["versions"]["chromium"]
    assert [path.name for path in (store.root / "evaluations").iterdir()] == ["v000010.json"]
    assert read_json(store.evaluation_path(10)) == result and store.versions() == [10]
    for episode_id in result["episodes"]:
        trajectory = store.trajectory(episode_id)
        assert trajectory.policy_version == 10 and trajectory.seed >= 2_000_000
        assert all(store.blob(step.screenshot) for step in trajectory.steps)

    table = artifact("small-evaluation-evaluation")
    assert table["type"] == "table"
    assert {row["kind"]: row["n"] for row in orjson.loads(table["data"])} == {"click-option": 4, "click-test": 4}

    shown = next(iter(result["episodes"]))
    assert (
        f"](http://127.0.0.1:8711/runs/Small_Evaluation/episodes/{shown})"
        in artifact("small-evaluation-report")["data"]
    )

    written = {path: path.stat().st_mtime_ns for path in store.root.glob("*/**/*.json")}
    assert evaluate(**parameters_of(config)) == result
    assert {path: path.stat().st_mtime_ns for path in store.root.glob("*/**/*.json")} == written, "read, not repeated"

    page = (store.report_path / "index.html").read_text()
    assert "Rollwright evaluation" in page and "finished" in page and "Learning curve" not in page
    assert read_json(store.config_path)["started"] == document["started"], "by whom it was started first"
    with pytest.raises(ConfigError, match="was started with other values of: greedy"):
        evaluate(**parameters_of(config.model_copy(update={"greedy": not config.greedy})))
    (trained.policy_path(10) / "tokenizer_config.json").write_text("{}")
    with pytest.raises(PolicyError, match=r"v000010 is not what .*: tokenizer_config\.json changed .*another run_id"):
        evaluate(**parameters_of(config))


def test_a_folder_that_is_no_checkpoint_is_named(prefect_api: None, tmp_path: Path) -> None:
    config = small_evaluation(tmp_path, policy={"checkpoint": str(tmp_path / "nothing")})
    with pytest.raises(PolicyError, match=r"policy\.checkpoint: .*nothing is no Hugging Face checkpoint"):
        evaluate(**parameters_of(config))


@pytest.mark.dask
def test_a_missing_cluster_leaves_the_run_name_unused(prefect_api: None, tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(ConfigError, match=rf"^cluster\.address: no Dask scheduler answers at {address}"),
    ):
        evaluate(**parameters_of(small_evaluation(tmp_path, cluster={"address": address})))
    corrected = small_evaluation(tmp_path, greedy=False, policy={"checkpoint": "datasets/policies/reader"})
    assert check_evaluation(corrected) == ["2 tasks of 2 kinds on 1 site"]


def test_a_folder_in_use_is_left_alone(prefect_api: None, tmp_path: Path) -> None:
    config = small_evaluation(tmp_path)
    with run_lock(config.run_dir), pytest.raises(StorageError, match="another process is working on"):
        evaluate(**parameters_of(config))


def test_more_episodes_than_seeds_are_refused(prefect_api: None, tmp_path: Path) -> None:
    from envs.types import Split
    from tasks_lib.config import resolve_path
    from tasks_lib.folder.task_sets import select_kinds
    from tasks_lib.rollouts.evaluation import evaluation_groups

    config = small_evaluation(tmp_path)
    tasks = select_kinds(resolve_path(config.tasks.file), ["click-test"])
    with pytest.raises(ConfigError, match="lower the number of episodes to 10000,"):
        evaluation_groups(tasks, phase="e000000", episodes=20_000, split=Split.VALIDATION)


def test_no_cluster_is_made_outside_of_use_cluster(prefect_api: None) -> None:
    from prefect import flow

    from tasks_lib.config import resolve_path
    from tasks_lib.folder.task_sets import select_kinds
    from tasks_lib.rollouts.cluster import RolloutTaskRunner
    from tasks_lib.rollouts.evaluation import evaluation_groups
    from tasks_lib.rollouts.shards import Rollouts, roll_out_shard

    config = resolve(EvaluateConfig, {"run_id": "x"})
    tasks = select_kinds(resolve_path(config.tasks.file), ["click-test"])
    groups: list[GroupSpec] = evaluation_groups(tasks, phase="e000000", episodes=1)
    request = Rollouts(RunStore(Path("x")), config.policy, config.rollout, seed=0).request(groups, 0)

    @flow(task_runner=RolloutTaskRunner(), persist_result=False)
    def careless() -> None:
        roll_out_shard.submit(request).result()

    with pytest.raises(ConfigError, match="inside `with use_cluster"):
        careless()


def test_a_cluster_with_too_few_units_is_refused_before_anything_starts(
    prefect_api: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("something of the run starts")

    for name in ("publish_base", "Trainer", "serve_policy", "use_cluster"):
        monkeypatch.setattr(f"{'tasks_lib.loops.run' if name == 'serve_policy' else 'flows.train'}.{name}", start)
    with distributed.LocalCluster(
        n_workers=1, resources={"browser": 1}, processes=False, dashboard_address=None, memory_limit=0
    ) as cluster:
        values = {
            "root": str(tmp_path),
            "run_id": "narrow",
            "preset": "quickstart",
            "mode": "async",
            "cluster": {"address": cluster.scheduler_address},
            "evaluation": {"where": "replica"},
            "trainer": {"nodes": 1},
            "rollout": {"concurrency": 8},
        }
        with pytest.raises(ConfigError) as refused:
            train(**parameters_of(resolve(TrainConfig, values)))
    browser, evaluation, trainer = str(refused.value).split("; also: ")
    assert "offers browser=1, and rollout.concurrency is 8" in browser and "--resources browser=8" in browser
    assert "no worker" in evaluation and "'evaluation'" in evaluation
    assert "trainer.nodes: 1, but 0 workers" in trainer and "--resources trainer=1" in trainer
    assert not (tmp_path / "narrow" / "config.json").exists(), "it can be started again with other values"


@pytest.mark.dask
def test_tasks_know_their_flow_by_name_and_its_code_stays_here(prefect_api: None, dask_cluster: DaskCluster) -> None:
    import cloudpickle
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE

    from tasks_lib.rollouts.cluster import RolloutTaskRunner

    heavy = os.urandom(100_000)

    def seen() -> tuple[list[object], int]:
        from prefect.context import FlowRunContext
        from prefect.runtime import flow_run

        context = FlowRunContext.get()
        assert context is not None
        named = [flow_run.flow_name, flow_run.flow_version, flow_run.id, flow_run.parameters]
        return named, len(cloudpickle.dumps(context.flow))

    tell = task(seen, cache_policy=NO_CACHE, persist_result=False)

    @flow(name="heavy", version="7", task_runner=RolloutTaskRunner(), persist_result=False)
    def ask(number: int) -> tuple[list[object], int, tuple[list[object], int]]:
        assert len(heavy) > number
        return *seen(), tell.submit().result()

    with use_cluster(ClusterConfig(address=dask_cluster.address), None):
        here, whole, (there, sent) = ask(3)
    assert here == there and [here[0], here[1], here[3]] == ["heavy", "7", {"number": 3}]
    assert whole > len(heavy) > 10_000 > sent


def test_the_iteration_table_and_the_curve_are_artifacts(prefect_api: None, tmp_path: Path) -> None:
    run = runpy.run_path(str(SYNTHETIC_RUN))["SyntheticRun"](tmp_path / "Curve_1")
    lines = [orjson.loads(line) for line in (run.root / "metrics.jsonl").read_bytes().splitlines()]
    line = next(line for line in lines if line["kind"] == "iteration")
    publish_iteration_table("Curve_1", IterationMetrics.model_validate(line, extra="ignore"))
    table = artifact("curve-1-iteration")
    assert table["description"].startswith(f"Iteration {line['iteration']}: success")
    rows = {row["what"]: row["value"] for row in orjson.loads(table["data"])}
    assert rows["groups: total"] == line["groups"]["total"]
    assert set(line["success_by_kind"]) <= rows.keys()

    with closing(MetricsLog(run.root / "metrics.jsonl", run.root / "tensorboard")) as metrics:
        publish_curve(RunStore(run.root), metrics)
    image = artifact("curve-1-learning-curve")
    assert image["type"] == "image"
    head, data = str(image["data"]).split(",", 1)
    assert head == "data:image/png;base64" and base64.b64decode(data).startswith(b"\x89PNG")


def test_a_scheduler_that_is_not_there_is_a_configuration_error(prefect_api: None) -> None:
    import dask

    from training.trainer.control.launch import free_port

    config = ClusterConfig(address=f"tcp://127.0.0.1:{free_port()}")
    patience = dask.config.set({"distributed.comm.timeouts.connect": "2s"})
    with patience, pytest.raises(ConfigError, match=r"127\.0\.0\.1"), use_cluster(config, None):
        pass


@pytest.mark.dask
def test_workers_have_the_settings_of_ours() -> None:
    """Not those of Dask's files, nor of the environment."""
    with (
        dask.config.set(worker_settings(2)),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        (said,) = client.run(lambda: (dask.config.config, dict(os.environ))).values()
    settings, environment = said
    assert settings["distributed"]["worker"]["profile"]["enabled"] is False
    assert settings["distributed"]["admin"]["tick"]["interval"] == "100ms"
    assert environment["OMP_NUM_THREADS"] == str(max(1, (os.cpu_count() or 1) // 2))


@pytest.mark.dask
def test_a_killed_worker_comes_back_however_long_its_start_takes(
    prefect_api: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask gives a worker up that is not back in time: here at once, on a busy machine after 15 s.
    One that hangs is named."""

    async def hang() -> None:
        await asyncio.Event().wait()

    async def tell_pid(folder: str) -> None:
        Path(folder, str(os.getpid())).touch()

    def workers() -> set[str]:
        tell_workers(tell_pid, str(tmp_path))
        return {path.name for path in tmp_path.iterdir()}

    with dask.config.set({"distributed.deploy.lost-worker-timeout": "100ms"}), use_cluster(ClusterConfig(), None):
        (killed,) = workers()
        os.kill(int(killed), signal.SIGKILL)
        deadline = time.monotonic() + 60
        while workers() == {killed}:
            assert time.monotonic() < deadline, "no worker came back"
            time.sleep(0.2)
        time.sleep(6)  # Dask gives a nanny that it closes five seconds
        for path in tmp_path.iterdir():
            path.unlink()
        assert len(workers()) == 1, "the new worker was closed again"
        monkeypatch.setattr(cluster, "TELL_SECONDS", 0.5)
        with pytest.raises(TrainingError, match=r"no worker has run hang in 0\.5 s; those that hang: tcp://127"):
            tell_workers(hang)


@pytest.mark.dask
def test_a_second_cluster_on_a_machine_starts_without_a_word(prefect_api: None) -> None:
    with socket.socket() as taken:
        with suppress(OSError):  # of Dask's dashboard; somebody else may have it
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        with warnings.catch_warnings(record=True) as said, use_cluster(ClusterConfig(), None) as workers:
            assert workers == 1
    assert not [str(each.message) for each in said if "8787" in str(each.message)]
