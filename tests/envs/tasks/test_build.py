"""Sets built from sources: shards that are pure functions of their orders, a merge without doubles,
nothing lost without a reason."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envs.bundled.generate import GeneratorSpec, generate, solution_of
from envs.bundled.generate.check import checker
from envs.ends import Bucket
from envs.rewards.formats import asks_only_reference
from envs.tasks import load_tasks, read_tasks, save_tasks
from envs.tasks.assembly import (
    FileSource,
    GenerateSource,
    ImportSource,
    Layout,
    SetPlan,
    build_shard,
    count_writer_requests,
    fingerprint,
    merge_shards,
    read_report,
)
from envs.tasks.assembly.finish import read_reference_answer, with_rubric
from envs.tasks.decompose import DecompositionRules, decompose, not_decomposed
from envs.tasks.tree import TreeLayout
from envs.types import ConfigError, StorageError, TaskError
from tests.envs.tasks.making import task
from tests.envs.tasks.sets import (
    WEBGYM,
    build,
    files,
    graded,
    rejected,
    request_of,
    requests_of,
)

PROJECT = Path(__file__).parents[3]


def test_files_become_a_set_in_their_order_whatever_the_shards(tmp_path: Path) -> None:
    tasks = [graded(number) for number in range(50)]
    save_tasks(tmp_path / "own.jsonl", tasks)
    for shards in (1, 4, 7):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        manifest = build(tmp_path, FileSource(name=f"own{shards}", paths=("own.jsonl",), shards=shards))
        assert load_tasks(tmp_path / "set" / "tasks.jsonl") == tasks
        assert manifest["tasks"] == 50 and manifest["rejected"] == 0
        assert manifest["by_source"][f"own{shards}"]["read"] == 50


def test_the_manifest_by_hand(tmp_path: Path) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(0), task(1, difficulty=1), task(6, difficulty=7)])
    with (tmp_path / "own.jsonl").open("a") as file:
        file.write('{"task_id": 3}\n')
    source = FileSource(name="own", paths=("*.jsonl",), shards=2, decompose=DecompositionRules())
    manifest = build(tmp_path, source, layout=Layout.TREE)
    assert manifest["tasks"] == 5 and manifest["by_difficulty"] == {"1": 2, "2-3": 1, "4-6": 1, "7+": 1}
    assert manifest["by_site"] == {"mail": 2, "shop": 3} and manifest["by_split"] == {"held_out": 5, "train": 5}
    assert manifest["by_source"]["own"] == {
        "read": 3,
        "written": 0,
        "parts": 2,
        "tasks": 5,
        "rejected": {"read": 1},
        "whole": {"rubric: there is none": 2},
    }
    assert manifest["files"].keys() == {f"difficulty/{bucket}/part-00000.jsonl" for bucket in ("1", "2-3", "4-6", "7+")}
    assert read_tasks(*(tmp_path / "set" / name for name in manifest["files"])).problems == []
    assert {(row["stage"], row["where"]) for row in rejected(tmp_path)} == {("read", "own.jsonl:4")}
    assert manifest["reasons"]["read: task_id"] == 1


def test_doubles_are_left_out_and_said(tmp_path: Path) -> None:
    one, other = graded(1), graded(2)
    again = one.model_copy(update={"task_id": "renamed", "seeds": graded(1).seeds})
    save_tasks(tmp_path / "a.jsonl", [one, again])
    save_tasks(tmp_path / "b.jsonl", [other, one, other.model_copy(update={"task_id": "x", "path": "/y"})])
    rules = DecompositionRules()
    manifest = build(
        tmp_path,
        FileSource(name="a", paths=("a.jsonl",), decompose=rules),
        FileSource(name="b", paths=("b.jsonl",)),
    )
    # one and its two parts, other, x; the double's two parts go with it
    assert manifest["tasks"] == 5 and manifest["by_source"]["a"]["rejected"] == {"duplicate": 3}
    found = {row["task_id"].split("~")[0]: row["reason"] for row in rejected(tmp_path) if row["source"] == "b"}
    assert found == {one.task_id: "task_id: is used already, in source a"}
    reasons = [row["reason"] for row in rejected(tmp_path) if row["source"] == "a"]
    assert reasons == [f"content: the same as {one.task_id}", *["part: of renamed, which was left out"] * 2]
    assert all(row["task"]["site"] for row in rejected(tmp_path))


def test_tasks_whose_parts_contradict_are_rejected(tmp_path: Path) -> None:
    good = graded(1)
    unfrozen = graded(2, rubric_hash="")
    miscounted = graded(3, difficulty=9)
    save_tasks(tmp_path / "own.jsonl", [good, unfrozen, miscounted])
    manifest = build(tmp_path, FileSource(name="own", paths=("own.jsonl",)))
    assert manifest["tasks"] == 1 and manifest["by_source"]["own"]["rejected"] == {"check": 2}
    assert sorted(row["reason"] for row in rejected(tmp_path)) == [
        "difficulty: is 9, and the rubric has 4 facts",
        "rubric_hash: is empty: the rubric was not frozen",
    ]


def test_two_builds_have_the_same_bytes_and_a_rerun_writes_nothing(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        save_tasks(tmp_path / name / "own.jsonl", [graded(number) for number in range(40)])
        source = FileSource(name="own", paths=("own.jsonl",), decompose=DecompositionRules(), shards=3)
        build(tmp_path / name, source, layout=Layout.TREE, form=TreeLayout.PARQUET)
    assert files(tmp_path / "one" / "set") == files(tmp_path / "other" / "set")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "one" / "shards").rglob("*")}
    build(tmp_path / "one", source, layout=Layout.TREE, form=TreeLayout.PARQUET)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "one" / "shards").rglob("*")} == before
    assert files(tmp_path / "one" / "set") == files(tmp_path / "other" / "set")


@pytest.mark.parametrize("harm", ["report gone", "tasks torn", "rejected gone", "report torn"])
def test_a_shard_that_is_not_whole_is_built_anew(tmp_path: Path, harm: str) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(number) for number in range(20)])
    source = FileSource(name="own", paths=("own.jsonl",), shards=2)
    build(tmp_path, source)
    whole = files(tmp_path)
    request = request_of(source, tmp_path, 1)
    match harm:
        case "report gone":
            request.path(".json").unlink()
        case "report torn":
            request.path(".json").write_text("{")
        case "rejected gone":
            request.path(".rejected.jsonl").unlink()
        case "tasks torn":
            request.path(".jsonl").write_bytes(request.path(".jsonl").read_bytes()[:-9])
    assert read_report(request) is None
    with pytest.raises(StorageError, match="not there or not whole"):
        merge_shards(SetPlan(tmp_path / "set", Layout.FILE, TreeLayout.JSONL, {}), [requests_of(source, tmp_path)])
    build(tmp_path, source)
    assert files(tmp_path) == whole


KILLED = """
import sys
from envs.tasks.assembly import ShardRequest, build_shard
for request in map(ShardRequest.model_validate_json, sys.stdin):
    build_shard(request)
    print("one", flush=True)
"""


def test_a_killed_build_leaves_whole_shards_for_the_next(tmp_path: Path) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(number) for number in range(420)])
    source = FileSource(name="own", paths=("own.jsonl",), shards=6, decompose=DecompositionRules())
    requests = requests_of(source, tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("".join(f"{request.model_dump_json()}\n" for request in requests))
    child.stdin.close()
    assert child.stdout.readline() == "one\n" and child.stdout.readline() == "one\n"
    while not list((tmp_path / "shards" / "own").glob(".*.tmp")) and child.poll() is None:
        pass  # in the middle of a shard
    child.kill()
    child.wait()
    whole = [request for request in requests if read_report(request) is not None]
    assert 2 <= len(whole) < 6
    times = {request.shard: request.path(".json").stat().st_mtime_ns for request in whole}
    for request in requests:
        build_shard(request)
    manifest = merge_shards(SetPlan(tmp_path / "set", Layout.TREE, TreeLayout.JSONL, {}), [requests])
    assert {request.shard: request.path(".json").stat().st_mtime_ns for request in whole} == times
    assert manifest["tasks"] == 1260 and not list(tmp_path.rglob("*.tmp"))
    (tmp_path / "again").mkdir()
    shutil.copy(tmp_path / "own.jsonl", tmp_path / "again")
    again = requests_of(source, tmp_path / "again")
    for request in again:
        build_shard(request)
    merge_shards(SetPlan(tmp_path / "again" / "set", Layout.TREE, TreeLayout.JSONL, {}), [again])
    assert files(tmp_path / "again" / "set") == files(tmp_path / "set")
    assert files(tmp_path / "again" / "shards") == files(tmp_path / "shards")


def test_a_changed_source_or_order_is_noticed(tmp_path: Path) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(1)])
    source = FileSource(name="own", paths=("own.jsonl",), shards=1)
    build_shard(request_of(source, tmp_path))
    assert read_report(request_of(source, tmp_path)) is not None
    assert read_report(request_of(source.model_copy(update={"decompose": DecompositionRules()}), tmp_path)) is None
    save_tasks(tmp_path / "own.jsonl", [graded(2)])
    assert read_report(request_of(source, tmp_path)) is None


def test_a_draft_that_was_interrupted_is_in_nobodys_way(tmp_path: Path) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(1)])
    source = FileSource(name="own", paths=("own.jsonl",), shards=1)
    build(tmp_path, source, layout=Layout.TREE)
    whole = files(tmp_path / "set")
    (tmp_path / "set" / "manifest.json").unlink()
    (tmp_path / "set" / ".draft" / "difficulty" / "1").mkdir(parents=True)
    (tmp_path / "set" / ".draft" / "difficulty" / "1" / "part-00000.jsonl").write_text("half of")
    build(tmp_path, source, layout=Layout.TREE)
    assert files(tmp_path / "set") == whole


def test_nothing_left_is_an_error_that_names_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text("{}\n")
    with pytest.raises(TaskError, match=r"no task is left: .*rejected\.jsonl"):
        build(tmp_path, FileSource(name="own", paths=("own.jsonl",)))


def test_a_source_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source own: no task file matches 'gone/\*'"):
        fingerprint(FileSource(name="own", paths=("gone/*",)), tmp_path)
    with pytest.raises(ConfigError, match=r"source web: .*No such file.*gone"):
        fingerprint(ImportSource(name="web", format="webgym", path="gone"), tmp_path)
    with pytest.raises(ValueError, match=r"there is no format 'web'; did you mean webgym.* there are miniwob"):
        ImportSource(name="web", format="web", path="x")


def test_webgyms_rows_bring_their_rubrics(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in WEBGYM))
    source = ImportSource(name="web", format="webgym", path="train.jsonl", decompose=DecompositionRules(), shards=2)
    manifest = build(tmp_path, source)
    by_id = {each.task_id: each for each in load_tasks(tmp_path / "set" / "tasks.jsonl")}
    assert [name for name in by_id if "~" not in name] == ["webgym/t-1", "webgym/t-2", "webgym/t-3"]
    assert (by_id["webgym/t-1"].difficulty, by_id["webgym/t-2"].difficulty) == (4, 2)
    assert by_id["webgym/t-3"].rubric is None
    parts = [each for name, each in by_id.items() if name.startswith("webgym/t-1~")]
    assert sorted(part.difficulty for part in parts) == [1, 3]
    assert [part for name, part in by_id.items() if name.startswith("webgym/t-2~")] == [], "no group of three facts"
    assert manifest["by_source"]["web"]["rejected"] == {"read": 2}
    facts, empty = rejected(tmp_path)
    assert facts["where"] == "train.jsonl:4" and facts["reason"].startswith("evaluator_reference.0")
    assert empty["where"] == "train.jsonl:5" and empty["reason"].startswith("task_name: ")


def test_tasks_that_nothing_says_how_to_grade_are_given_to_the_judge(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in WEBGYM[:3]))
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write(json.dumps({**WEBGYM[2], "task_id": "t-6", "task_name": "Count", "reference_answer": "7"}) + "\n")
    made = ImportSource(name="web", format="webgym", path="train.jsonl", judged=True, shards=2)
    assert build(tmp_path, made)["rejected"] == 0
    by_id = {each.task_id: each for each in load_tasks(tmp_path / "set" / "tasks.jsonl")}
    assert by_id["webgym/t-1"].difficulty == 4, "it has facts of its own"
    counted = by_id["webgym/t-6"]
    assert counted.difficulty == 2 and counted.rubric is not None and asks_only_reference(counted.rubric)
    judged = by_id["webgym/t-3"]
    assert judged.rubric is not None and [fact.id for fact in judged.rubric.facts()] == ["done", "grounded"]
    assert judged.difficulty == 2 and judged.rubric_hash, "the row's level"
    with pytest.raises(ValueError, match="choose one of them"):
        ImportSource(name="web", format="webgym", path="x", judged=True, write_rubrics=True)


def test_a_part_with_the_right_answer_does_not_say_it(tmp_path: Path) -> None:
    row = {**WEBGYM[0], "reference_answer": "12 km and 7 km"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    rules = DecompositionRules(most=100)
    build(tmp_path, ImportSource(name="web", format="webgym", path="train.jsonl", decompose=rules, shards=1))
    parts = load_tasks(tmp_path / "set" / "tasks.jsonl")[1:]
    assert len(parts) == 6 and not [part for part in parts if "7 km" in (part.instruction or "")]
    assert [part for part in parts if "Give the answer that is asked for" in (part.instruction or "")]


def test_a_generated_set_is_what_the_generator_gives_whatever_the_shards(tmp_path: Path) -> None:
    spec = GeneratorSpec(count=150)
    wanted = list(generate(spec))
    for shards, many in ((1, 0), (3, 1)):
        folder = tmp_path / f"{shards}"
        folder.mkdir()
        source = GenerateSource(name="made", spec=spec, shards=shards, worlds=many)
        requests = requests_of(source, folder)
        for request in requests:
            build_shard(request)
        assert count_writer_requests(requests) >= 150
        manifest = merge_shards(SetPlan(folder / "set", Layout.FILE, TreeLayout.PARQUET, {}), [requests])
        assert load_tasks(folder / "set" / "tasks.parquet") == wanted
        assert manifest["by_source"]["made"]["tasks"] == 150 and manifest["rejected"] == 0
    with pytest.raises(ConfigError, match="source made: kinds: there is no 'dance'"):
        fingerprint(GenerateSource(name="made", spec=GeneratorSpec(kinds=("dance",))), tmp_path)


async def test_parts_of_generated_tasks_are_solved_by_the_whole_tasks_solution(tmp_path: Path) -> None:
    spec = GeneratorSpec(count=400, buckets=(Bucket.SOME, Bucket.MANY))
    whole = {task.kind: task for task in generate(spec)}
    rules = DecompositionRules(most=3)
    fit = [task for task in whole.values() if not_decomposed(task, rules) is None]
    pairs = [(task, part) for task in fit for part in decompose(task, rules).tasks]
    assert len({task.kind for task, _ in pairs}) >= 2 and len(pairs) >= 5
    async with checker() as check:
        played = [(await check.play(part, solution_of(task))).score for task, part in pairs]
    assert played == [1.0] * len(pairs)


def test_right_answers_and_horizons() -> None:
    assert (
        read_reference_answer("webgym", {"reference_answer": "x"}) == "x"
        and read_reference_answer("webgym", None) is None
    )
    assert (
        read_reference_answer("webgym", {"reference_answer": " "}) is None
        and read_reference_answer("webgym", {}) is None
    )
    assert read_reference_answer("webvoyager", {"reference_answer": "x"}) is None
    rubric = graded(1).rubric
    assert rubric is not None and rubric.fact_count == 4
    assert with_rubric(task(1, difficulty=1, horizon=10), rubric).horizon == 20
    assert with_rubric(task(1, difficulty=1, horizon=30), rubric).horizon == 30
