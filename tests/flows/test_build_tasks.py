"""A task set built as a flow: on Dask, with a writer that misbehaves, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from envs.rewards.judge import Structured
from envs.tasks import read_tasks, save_tasks, task_files
from envs.tasks.assembly import build_shard
from envs.types import ConfigError, JudgeError, StorageError, TaskError
from flows.build_tasks import build_tasks
from tasks_lib.building.config import BuildTasksConfig
from tasks_lib.building.shards import SetBuild, open_build
from tasks_lib.commands.command_line import run_command
from tasks_lib.config import PROJECT, resolve
from tasks_lib.config.parameters import parameters_of
from tasks_lib.preflight.flows import check_build
from tests.envs.rewards_judge.fake_judge import FakeJudge, Request, completion, http, text_of
from tests.envs.tasks.sets import LAMPS, WEBGYM, endpoint, graded, lamp_rows, lamps
from tests.flows.services import DaskCluster, PrefectServer
from tests.flows.test_flows import artifact


def sources(folder: Path, count: int = 30, **own: Any) -> list[dict[str, Any]]:
    """Our own tasks with parts, and WebGym rows of which one needs a rubric."""
    save_tasks(folder / "own.jsonl", [graded(number) for number in range(count)])
    (folder / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in WEBGYM))
    return [
        {"kind": "files", "name": "own", "paths": [str(folder / "own.jsonl")], "shards": 3, "decompose": {}, **own},
        {"kind": "import", "name": "web", "format": "webgym", "path": str(folder / "web.jsonl"), "shards": 1, "write_rubrics": True},
    ]  # fmt: skip


def config_of(root: Path, url: str = "http://127.0.0.1:9/v1", **changes: Any) -> BuildTasksConfig:
    limits = {"backoff": 0.001, "max_backoff": 0.01, "timeout": 5.0, "temperature": 0.7, "retries": 0}
    writer = {"endpoint": {"base_url": url, "models": {"default": "m"}, **limits}}
    values = {"root": str(root), "run_id": "Small_Set", "writer": writer, **changes}
    config: BuildTasksConfig = resolve(BuildTasksConfig, values)
    return config


def content(folder: Path) -> dict[str, bytes]:
    """Everything that is equal in two builds of one set."""
    names = ("difficulty", "rejected.jsonl", "manifest.json")
    found = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (folder / path).read_bytes() for path in found if path.parts[0] in names}


def built_without_a_flow(config: BuildTasksConfig) -> dict[str, Any]:
    """The manifest of a set that nothing came in the way of."""
    with open_build(config) as build:
        while build.missing_shards() or build.extend():
            for request in build.missing_shards():
                build_shard(request)
        return build.merge()


@pytest.mark.dask
def test_a_set_is_built_goes_on_after_trouble_and_is_the_same_as_without(
    prefect_api: None, dask_cluster: DaskCluster, tmp_path: Path
) -> None:
    down = True

    def answer(fake: FakeJudge, request: Request) -> bytes | None:
        if down:
            return http(500, "no") if len(fake.requests) % 2 else None
        if "why it was refused:" not in text_of(request):
            return completion("Certainly! Here is the rubric.")
        return completion(json.dumps(LAMPS))

    spec = {"count": 90, "kinds": ["shop-open"], "per_world": 6}
    made = {"kind": "generate", "name": "made", "spec": spec, "shards": 1, "worlds": 9}
    given = [*sources(tmp_path), made]
    with endpoint(answer) as fake:
        config = config_of(tmp_path / "one", fake.url, sources=given, cluster={"address": dask_cluster.address})
        with pytest.raises(JudgeError, match=r"1 shards are not complete:\n.*web, shard 0: 1 questions got no answer"):
            build_tasks(**parameters_of(config))
        built = SetBuild(config)
        assert [request.source.name for request in built.missing_shards()] == ["web"] and not built.finished
        assert not (config.run_dir / "manifest.json").exists()
        kept = {path: path.stat().st_mtime_ns for path in (config.run_dir / "shards" / "own").iterdir()}

        down = False
        manifest = build_tasks(**parameters_of(config))
        assert {path: path.stat().st_mtime_ns for path in kept} == kept, "whole shards are read, not repeated"
        other = config_of(tmp_path / "other", fake.url, sources=given)
        assert built_without_a_flow(other) == manifest
    assert content(config.run_dir) == content(other.run_dir)
    asked = len(fake.requests)
    assert build_tasks(**parameters_of(config)) == manifest and len(fake.requests) == asked, "a finished set is read"

    # 30 tasks with 2 parts each; of WebGym's five rows one is no task, one has bad facts, one needs
    # a rubric
    assert manifest["tasks"] == 93 + 90 and manifest["by_source"]["own"]["parts"] == 60
    assert len(list((config.run_dir / "shards" / "made").glob("*.rejected.jsonl"))) >= 2, "nine worlds were not enough"
    assert manifest["by_source"]["web"] == {
        "read": 3, "written": 1, "parts": 0, "tasks": 3, "rejected": {"read": 2}, "whole": {},
    }  # fmt: skip
    assert manifest["rejected"] == 2 == len((config.run_dir / "rejected.jsonl").read_text().split("\n")) - 1
    read = read_tasks(*task_files("difficulty/**/*.jsonl", root=config.run_dir))
    assert len(read.tasks) == 183 and read.problems == [] and all(task.rubric for task in read.tasks)
    table = {row["what"]: row["count"] for row in json.loads(artifact("small-set-tasks")["data"])}
    assert table["tasks"] == 183 and table["own: parts"] == 60 and table["web: rejected, read"] == 2


@pytest.mark.dask
def test_a_writers_budget_holds_for_the_build_and_an_empty_split_is_told(
    prefect_api: None, dask_cluster: DaskCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four shards on two workers, nine questions each; and three generated tasks, which come of one
    world."""
    path = str(lamp_rows(tmp_path))
    written = {"kind": "import", "name": "web", "format": "webgym", "path": path, "shards": 4, "write_rubrics": True}
    made = {"kind": "generate", "name": "made", "spec": {"count": 3, "kinds": ["shop-open"]}, "shards": 1, "worlds": 1}
    cluster = {"address": dask_cluster.address}

    def config(url: str, most: int, **changes: Any) -> BuildTasksConfig:
        known = config_of(tmp_path, url, sources=[written, made], cluster=cluster, **changes)
        assert known.writer is not None
        limits = known.writer.endpoint.model_copy(update={"budget_requests": most})
        return known.model_copy(update={"writer": known.writer.model_copy(update={"endpoint": limits})})

    with endpoint(lamps) as fake, dask_cluster.worker("second", "--resources", "browser=1"):
        with pytest.raises(JudgeError, match=r"shards are not complete:\n.*the budget of 20 requests is used up"):
            build_tasks(**parameters_of(config(fake.url, 20)))
        assert len(fake.requests) == 20
        spent = config(fake.url, 20).run_dir / "writer_spent.sqlite"
        known = spent.read_bytes()
        spent.write_text('{"requests":')
        with pytest.raises(
            StorageError, match=r"writer_spent\.sqlite: this is no ledger of what was spent .*delete the file"
        ):
            build_tasks(**parameters_of(config(fake.url, 36)))
        assert len(fake.requests) == 20
        spent.write_bytes(known)
        capsys.readouterr()
        manifest = build_tasks(**parameters_of(config(fake.url, 36)))
        assert len(fake.requests) == 36
    said = capsys.readouterr().err
    assert "writer: 20 requests spent (16 left), 2,200 tokens spent\n" in said
    assert "writer: 36 requests spent (0 left), 3,960 tokens spent\n" in said
    assert manifest["by_split"] == {"train": 15} and manifest["tasks"] == 15
    table = {row["what"]: row["count"] for row in json.loads(artifact("small-set-tasks")["data"])}
    assert (table["by_split: train"], table["by_split: validation"], table["by_split: held_out"]) == (15, 0, 0)
    assert "by_split: validation                     0\n" in said
    assert "warning: source made: no task of split validation, held_out: a world belongs to one split" in said
    assert "with per_world 1 each split gets some from a count of " in said


@pytest.mark.dask
@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.long
def test_a_build_that_is_killed_goes_on_where_it_was(server: PrefectServer, tmp_path: Path) -> None:
    given = sources(tmp_path, 600, shards=8)[:1]
    command = [sys.executable, "-m", "flows.build_tasks", "--set", f"sources={json.dumps(given)}"]
    command += ["--set", "run_id=killed", "--set", f"root={tmp_path}"]
    environment = {**os.environ, **server.environment}

    def start() -> subprocess.Popen[bytes]:
        with open(tmp_path / "log", "ab") as log:
            return subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=log, stderr=log)

    def log() -> str:
        return (tmp_path / "log").read_text()[-3000:]

    folder = tmp_path / "killed"
    shards = folder / "shards" / "own"
    process = start()
    deadline = time.monotonic() + 200
    while not list(shards.glob("*.json")):
        assert process.poll() is None and time.monotonic() < deadline, log()
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in shards.glob("*.json")}
    assert 0 < len(before) < 8 and not (folder / "manifest.json").exists(), "killed in the middle"
    assert start().wait(200) == 0, log()
    whole = config_of(tmp_path, sources=given, run_id="whole", writer=None)
    built_without_a_flow(whole)
    assert content(folder) == content(whole.run_dir)
    assert {path: path.stat().st_mtime_ns for path in before} == before, "whole shards are read, not repeated"
    assert not list(folder.rglob("*.tmp"))


def test_a_set_of_before_a_key_was_there_goes_on_with_its_default(tmp_path: Path) -> None:
    given = sources(tmp_path)
    with open_build(config_of(tmp_path, sources=given)) as build:
        path = build.folder / "config.json"
    written = json.loads(path.read_text())
    del written["config"]["writer"]["endpoint"]["structured"]
    path.write_text(json.dumps(written))
    SetBuild(config_of(tmp_path, sources=given))
    changed = config_of(tmp_path, sources=given)
    assert changed.writer is not None
    endpoint = changed.writer.endpoint.model_copy(update={"structured": Structured.JSON_SCHEMA})
    with pytest.raises(ConfigError, match="started with other values of: writer "):
        SetBuild(changed.model_copy(update={"writer": changed.writer.model_copy(update={"endpoint": endpoint})}))


def test_a_set_of_other_values_or_files_is_refused(tmp_path: Path) -> None:
    given = sources(tmp_path)
    for same in ({}, {"cluster": {"workers": 2}}):
        with open_build(config_of(tmp_path, sources=given, **same)):
            pass
    with pytest.raises(ConfigError, match=r"started with other values of: seed \(see .*config\.json\)"):
        SetBuild(config_of(tmp_path, sources=given, seed=1))
    save_tasks(tmp_path / "own.jsonl", [graded(1)])
    with pytest.raises(ConfigError, match="other values of: the files of source own"):
        SetBuild(config_of(tmp_path, sources=given))


def test_what_may_be_spent_and_giving_up_may_change_when_a_build_goes_on(tmp_path: Path) -> None:
    given = sources(tmp_path)

    def config(**limits: int) -> BuildTasksConfig:
        known = config_of(tmp_path, sources=given)
        assert known.writer is not None
        endpoint = known.writer.endpoint.model_copy(update=limits)
        return known.model_copy(update={"writer": known.writer.model_copy(update={"endpoint": endpoint})})

    with open_build(config(budget_requests=5)) as built:
        pass
    assert {request.spent for request in built.missing_shards()} == {str(built.folder / "writer_spent.sqlite")}
    assert built.spending() == "writer: 0 requests spent (5 left), 0 tokens spent"
    assert SetBuild(config(budget_requests=6, budget_tokens=10)).writer_account() == {
        "requests": {"spent": 0, "left": 6}, "tokens": {"spent": 0, "left": 10},
    }  # fmt: skip
    assert SetBuild(config_of(tmp_path, sources=given, give_up=True)).missing_shards()[0].give_up
    with pytest.raises(ConfigError, match="started with other values of: writer "):
        SetBuild(config(max_tokens=99))
    with open_build(config_of(tmp_path / "other", sources=given[:1], writer=None)) as unwritten:
        assert unwritten.spending() == ""


def test_a_generator_that_has_no_more_is_an_error(tmp_path: Path) -> None:
    made = {
        "kind": "generate",
        "name": "made",
        "spec": {"count": 9, "kinds": ["shop-open"], "per_world": 1},
        "shards": 2,
        "worlds": 1,
    }
    with open_build(config_of(tmp_path, sources=[made], writer=None)) as build:
        for request in build.missing_shards():
            build_shard(request)
        assert build.extend() and len(build.requests[0]) == 4 and len(build.missing_shards()) == 2
        for request in build.missing_shards():
            build_shard(request)
        # as if the last two had only repeated the others
        for last, first in zip(build.requests[0][2:], build.requests[0], strict=False):
            last.path(".jsonl").write_bytes(first.path(".jsonl").read_bytes())
        with pytest.raises(TaskError, match=r"source made: there are \d different tasks .* 9 are wanted; ask for more"):
            build.extend()
    with open_build(config_of(tmp_path, sources=[made], writer=None)) as build:
        assert build.missing_shards() == build.requests[0][2:], "a shard that was tampered with is built anew"


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, sources=sources(tmp_path))
    (config.run_dir / "difficulty").mkdir(parents=True)
    with pytest.raises(StorageError, match="holds difficulty and is no task set"):
        SetBuild(config)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sources": []}, "sources: .*at least 1 item"),
        ({"sources": [{"kind": "magic", "name": "x"}]}, "sources.0: .*'magic'"),
        ({"sources": [{"kind": "files", "name": "x", "paths": ["a"]}] * 2}, "two are named 'x'"),
        ({"sources": [{"kind": "files", "name": "../x", "paths": ["a"]}]}, r"sources\.0\.name: "),
        (
            {"sources": [{"kind": "import", "name": "x", "path": "a", "format": "y"}]},
            "there is no format 'y'; there are",
        ),
        ({"writer": None}, "source 'web' has something written; give writer.endpoint"),
        ({"layout": "file", "form": "json"}, "for layout file choose jsonl or parquet"),
    ],
)
def test_a_bad_configuration_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config_of(tmp_path, **{"sources": sources(tmp_path), **changes})


def test_a_dry_run_says_what_would_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [{"kind": "files", "name": "own", "paths": ["datasets/tasks/miniwob.jsonl"]}]
    arguments = ["--set", f"sources={json.dumps(given)}", "--set", f"root={tmp_path}", "--dry-run"]
    assert run_command(build_tasks, BuildTasksConfig, check_build, arguments) == 0
    assert "# would build tasks from own (files, 4 shards), as a tree of jsonl files in" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_parameter_form_explains_every_field() -> None:
    schema = parameter_schema(build_tasks).model_dump()
    for name, field in schema["definitions"]["General"]["properties"].items():
        assert len(field.get("description", "")) > 10 or "$ref" in str(field), f"{name} has no description"
