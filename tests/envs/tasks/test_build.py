"""Sets built from sources: shards that are pure functions of their orders, a merge without doubles, nothing lost without a reason."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envs.ends import Bucket
from envs.rewards.judge import JudgeConfig, JudgeModels
from envs.tasks import load_tasks, read_tasks, save_tasks
from envs.tasks.build import (
    FileSource,
    GenerateSource,
    ImportSource,
    Layout,
    SetPlan,
    ShardOrder,
    Source,
    Stage,
    build_shard,
    fingerprint,
    merge_shards,
    read_report,
    requests,
)
from envs.tasks.build.rubrics import brought_rubric, right_answer, with_rubric
from envs.tasks.decompose import DecompositionRules, decompose
from envs.tasks.generate import GeneratorSpec, generate, solution_of
from envs.tasks.generate.check import checker
from envs.tasks.tree import Form
from envs.tasks.write import WriterConfig
from envs.types import ConfigError, JudgeError, Rubric, StorageError, TaskError, WebTask, rubric_hash
from tests.envs.rewards_judge.fake_judge import Answerer, FakeJudge, Request, completion, fake_judge, http, text_of
from tests.envs.tasks.making import task

PROJECT = Path(__file__).parents[3]


def graded(number: int, **more: Any) -> WebTask:
    """A task with two groups, one of them large: it has two parts."""
    facts = [{"id": f"f{each}", "type": "text", "text": f"{number} {each}"} for each in range(4)]
    rubric = Rubric.model_validate(
        {
            "fact_groups": [
                {"name": "look", "description": "Look it up", "facts": facts[:3]},
                {"name": "note", "description": "Note it", "facts": facts[3:]},
            ]
        }
    )
    values = {"rubric": rubric, "rubric_hash": rubric_hash(rubric), "difficulty": 4, "horizon": 20}
    return task(number, **{**values, **more})


def order_of(source: Source, folder: Path, shard: int = 0, **more: Any) -> ShardOrder:
    return ShardOrder(
        source=source, shard=shard, seed=0, fingerprint=fingerprint(source, folder), folder=str(folder / "shards"),
        base=str(folder), **more,
    )  # fmt: skip


def orders_of(source: Source, folder: Path, **more: Any) -> list[ShardOrder]:
    return [order_of(source, folder, shard, **more) for shard in range(source.shards)]


def build(
    folder: Path, *sources: Source, layout: Layout = Layout.FILE, form: Form = Form.JSONL, **more: Any
) -> dict[str, Any]:
    orders = [orders_of(source, folder, **more) for source in sources]
    for source_orders in orders:
        for order in source_orders:
            build_shard(order)
    return merge_shards(SetPlan(folder / "set", layout, form, {"seed": 0}), orders)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def rejected(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "set" / "rejected.jsonl").read_text().split("\n")[:-1]]


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
        build(tmp_path / name, source, layout=Layout.TREE, form=Form.PARQUET)
    assert files(tmp_path / "one" / "set") == files(tmp_path / "other" / "set")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "one" / "shards").rglob("*")}
    build(tmp_path / "one", source, layout=Layout.TREE, form=Form.PARQUET)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "one" / "shards").rglob("*")} == before
    assert files(tmp_path / "one" / "set") == files(tmp_path / "other" / "set")


@pytest.mark.parametrize("harm", ["report gone", "tasks torn", "rejected gone", "report torn"])
def test_a_shard_that_is_not_whole_is_built_anew(tmp_path: Path, harm: str) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(number) for number in range(20)])
    source = FileSource(name="own", paths=("own.jsonl",), shards=2)
    build(tmp_path, source)
    whole = files(tmp_path)
    order = order_of(source, tmp_path, 1)
    match harm:
        case "report gone":
            order.path(".json").unlink()
        case "report torn":
            order.path(".json").write_text("{")
        case "rejected gone":
            order.path(".rejected.jsonl").unlink()
        case "tasks torn":
            order.path(".jsonl").write_bytes(order.path(".jsonl").read_bytes()[:-9])
    assert read_report(order) is None
    with pytest.raises(StorageError, match="not there or not whole"):
        merge_shards(SetPlan(tmp_path / "set", Layout.FILE, Form.JSONL, {}), [orders_of(source, tmp_path)])
    build(tmp_path, source)
    assert files(tmp_path) == whole


KILLED = """
import sys
from envs.tasks.build import ShardOrder, build_shard
for order in map(ShardOrder.model_validate_json, sys.stdin):
    build_shard(order)
    print("one", flush=True)
"""


def test_a_process_that_is_killed_leaves_whole_shards_and_the_rest_is_built_by_another(tmp_path: Path) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(number) for number in range(420)])
    source = FileSource(name="own", paths=("own.jsonl",), shards=6, decompose=DecompositionRules())
    orders = orders_of(source, tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("".join(f"{order.model_dump_json()}\n" for order in orders))
    child.stdin.close()
    assert child.stdout.readline() == "one\n" and child.stdout.readline() == "one\n"
    while not list((tmp_path / "shards" / "own").glob(".*.tmp")) and child.poll() is None:
        pass  # in the middle of a shard
    child.kill()
    child.wait()
    whole = [order for order in orders if read_report(order) is not None]
    assert 2 <= len(whole) < 6
    times = {order.shard: order.path(".json").stat().st_mtime_ns for order in whole}
    for order in orders:
        build_shard(order)
    manifest = merge_shards(SetPlan(tmp_path / "set", Layout.TREE, Form.JSONL, {}), [orders])
    assert {order.shard: order.path(".json").stat().st_mtime_ns for order in whole} == times
    assert manifest["tasks"] == 1260 and not list(tmp_path.rglob("*.tmp"))
    (tmp_path / "again").mkdir()
    shutil.copy(tmp_path / "own.jsonl", tmp_path / "again")
    again = orders_of(source, tmp_path / "again")
    for order in again:
        build_shard(order)
    merge_shards(SetPlan(tmp_path / "again" / "set", Layout.TREE, Form.JSONL, {}), [again])
    assert files(tmp_path / "again" / "set") == files(tmp_path / "set")
    assert files(tmp_path / "again" / "shards") == files(tmp_path / "shards")


def test_a_changed_source_or_order_is_noticed(tmp_path: Path) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(1)])
    source = FileSource(name="own", paths=("own.jsonl",), shards=1)
    build_shard(order_of(source, tmp_path))
    assert read_report(order_of(source, tmp_path)) is not None
    assert read_report(order_of(source.model_copy(update={"decompose": DecompositionRules()}), tmp_path)) is None
    save_tasks(tmp_path / "own.jsonl", [graded(2)])
    assert read_report(order_of(source, tmp_path)) is None


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
    with pytest.raises(ValueError, match="there is no format 'web'; there are miniwob"):
        ImportSource(name="web", format="web", path="x")


WEBGYM = [
    {
        "task_name": "Find two trails near Oslo and say how long each is",
        "website": "https://www.trails.example",
        "subdomain": "Hiking",
        "evaluator_reference": [
            {"id": 1, "description": "Trails", "facts": ["one trail", "another trail", "both near Oslo"]},
            {"id": 2, "description": "Lengths", "facts": ["both lengths are said"]},
        ],
        "task_id": "t-1",
    },
    {
        "task_name": "Open the menu and tell me the price of the soup",
        "website": "cafe.example/menu",
        "evaluator_reference": ["The menu is shown"],
        "reference_answer": "4.50",
        "task_id": "t-2",
    },
    {"task_name": "List the cheapest lamps sorted by price", "website": "https://shop.example/", "difficulty": 2, "task_id": "t-3"},
    {"task_name": "Bad facts", "website": "a.example", "evaluator_reference": [{"description": "", "facts": [7]}], "task_id": "t-4"},
    {"task_name": "", "website": "https://shop.example/", "task_id": "t-5"},
]  # fmt: skip


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
    assert manifest["by_source"]["web"]["rejected"] == {"read": 1, "rubric": 1}
    bad = {row["stage"]: row for row in rejected(tmp_path)}
    assert bad["rubric"]["task_id"] == "webgym/t-4" and "facts.0: expected a text, not 7" in bad["rubric"]["reason"]
    assert bad["read"]["where"] == "train.jsonl:5" and bad["read"]["reason"].startswith("task_name: ")


def test_a_generated_set_is_what_the_generator_gives_whatever_the_shards(tmp_path: Path) -> None:
    spec = GeneratorSpec(count=150)
    wanted = list(generate(spec))
    for shards, many in ((1, 0), (3, 1)):
        folder = tmp_path / f"{shards}"
        folder.mkdir()
        source = GenerateSource(name="made", spec=spec, shards=shards, worlds=many)
        orders = orders_of(source, folder)
        for order in orders:
            build_shard(order)
        assert requests(orders) >= 150
        manifest = merge_shards(SetPlan(folder / "set", Layout.FILE, Form.PARQUET, {}), [orders])
        assert load_tasks(folder / "set" / "tasks.parquet") == wanted
        assert manifest["by_source"]["made"]["tasks"] == 150 and manifest["rejected"] == 0
    with pytest.raises(ConfigError, match="source made: kinds: there is no 'dance'"):
        fingerprint(GenerateSource(name="made", spec=GeneratorSpec(kinds=("dance",))), tmp_path)


def test_parts_of_generated_tasks_are_solved_by_the_whole_tasks_solution(tmp_path: Path) -> None:
    spec = GeneratorSpec(count=400, buckets=(Bucket.SOME, Bucket.MANY))
    whole = {task.kind: task for task in generate(spec)}
    pairs = [(task, part) for task in whole.values() for part in decompose(task, DecompositionRules(most=3)).tasks]
    assert len({task.kind for task, _ in pairs}) >= 2 and len(pairs) >= 5

    async def play() -> list[float | None]:
        async with checker() as check:
            return [(await check.play(part, solution_of(task))).score for task, part in pairs]

    assert asyncio.run(play()) == [1.0] * len(pairs)


def test_right_answers_and_horizons() -> None:
    assert right_answer("webgym", {"reference_answer": " "}) is None and right_answer("miniwob", {"x": 1}) is None
    assert right_answer("webarena", {"eval": {"reference_answers": {"must_include": ["a", "b"]}}}) == "a; b"
    assert right_answer("webarena", {"eval": {"reference_answers": None}}) is None
    rubric = brought_rubric("webgym", WEBGYM[0])
    assert rubric is not None and rubric.fact_count == 4
    assert with_rubric(task(1, difficulty=1, horizon=10), rubric).horizon == 20
    assert with_rubric(task(1, difficulty=1, horizon=30), rubric).horizon == 30
    alike = brought_rubric(
        "webgym", {"evaluator_reference": [{"id": 1, "facts": ["x"]}, {"id": 1, "facts": ["y"]}, "z"]}
    )
    assert alike is not None and [fact.id for fact in alike.facts()] == ["1.1", "2.1", "3.1", "grounded"]


@contextmanager
def endpoint(answer: Answerer) -> Iterator[FakeJudge]:
    """A fake endpoint in a thread of its own: a shard has a loop of its own."""
    ready, done = threading.Event(), None
    made: list[FakeJudge] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        nonlocal done
        done = asyncio.Event()
        async with fake_judge(answer) as fake:
            made.append(fake)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield made[0]
    finally:
        assert done is not None
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()


def writer(url: str, **changes: Any) -> WriterConfig:
    limits = {"backoff": 0.001, "max_backoff": 0.01, "timeout": 5.0, "temperature": 0.7, "retries": 0}
    return WriterConfig(endpoint=JudgeConfig(base_url=url, models=JudgeModels(default="m"), **limits), **changes)


LAMPS = {
    "fact_groups": [
        {
            "description": "List lamps by price",
            "facts": [
                {"text": "Lamps are listed", "asked": "List the cheapest lamps"},
                {"text": "The list is sorted by price", "asked": "sorted by price"},
            ],
        }
    ]
}


def lamps(fake: FakeJudge, request: Request) -> bytes:
    """Knows about lamps; writes rubbish about everything else."""
    return completion(json.dumps(LAMPS) if "lamps" in text_of(request) else "I'd rather not.")


ASKED = ImportSource(name="web", format="webgym", path="train.jsonl", write_rubrics=True, shards=1)
SOME = [WEBGYM[2], {**WEBGYM[2], "task_name": "Do something else", "task_id": "t-9"}]


def some_rows(folder: Path) -> None:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SOME))


def test_rubrics_are_written_for_tasks_without_and_refusals_are_kept(tmp_path: Path) -> None:
    some_rows(tmp_path)
    with endpoint(lamps) as fake:
        manifest = build(tmp_path, ASKED, writer=writer(fake.url, attempts=2), cache=str(tmp_path / "replies"))
        asked = len(fake.requests)
    (made,) = load_tasks(tmp_path / "set" / "tasks.jsonl")
    assert made.rubric is not None and (made.difficulty, made.horizon) == (2, 10)
    assert made.rubric_hash == rubric_hash(made.rubric)
    assert manifest["by_source"]["web"] == {
        "read": 2, "written": 1, "parts": 0, "tasks": 1, "rejected": {"rubric": 1}, "whole": {},
    }  # fmt: skip
    (row,) = rejected(tmp_path)
    assert row["task_id"] == "webgym/t-9" and "3 of 3 samples refused: expected one JSON object" in row["reason"]
    assert row["task"]["instruction"] == "Do something else" and asked == 3 + 6


def test_a_shard_without_answers_is_left_to_another_time_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    some_rows(tmp_path)
    down = True

    def sometimes(fake: FakeJudge, request: Request) -> bytes:
        return http(503, "later") if down and "lamps" not in text_of(request) else lamps(fake, request)

    cache = str(tmp_path / "replies")
    with endpoint(sometimes) as fake:
        order = order_of(ASKED, tmp_path, writer=writer(fake.url), cache=cache)
        with pytest.raises(
            JudgeError, match=r"source web, shard 0: 1 questions got no answer .*server_error: HTTP 503"
        ):
            build_shard(order)
        assert list((tmp_path / "shards").rglob("*.json*")) == []
        down, before = False, len(fake.requests)
        report = build_shard(order)
        assert (report.tasks, report.rejected) == (1, {Stage.RUBRIC: 1})
        assert not [request for request in fake.requests[before:] if "lamps" in text_of(request)]
    shutil.rmtree(tmp_path / "shards")
    with endpoint(lamps) as fake:
        again = build_shard(order_of(ASKED, tmp_path, writer=writer(fake.url), cache=cache))
    assert (again.tasks_sha256, again.rejected_sha256, again.digest) == (
        report.tasks_sha256, report.rejected_sha256, report.digest,
    )  # fmt: skip


def test_give_up_rejects_what_was_not_answered(tmp_path: Path) -> None:
    some_rows(tmp_path)
    with endpoint(lambda fake, request: None) as fake:
        report = build_shard(order_of(ASKED, tmp_path, writer=writer(fake.url), give_up=True))
    assert report.tasks == 0 and report.rejected == {Stage.RUBRIC: 2}
    assert "no answer: unreachable" in order_of(ASKED, tmp_path).path(".rejected.jsonl").read_text()


def test_instructions_of_parts_are_written(tmp_path: Path) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(1)])

    def answer(fake: FakeJudge, request: Request) -> bytes:
        said = "Look up item 1" if "kept demands:\n| Look it up" in text_of(request) else "Write down the answer 42"
        return completion(json.dumps({"instruction": said}))

    source = FileSource(
        name="own", paths=("own.jsonl",), decompose=DecompositionRules(), part_words="written", shards=1
    )
    with endpoint(answer) as fake:
        manifest = build(tmp_path, source, writer=writer(fake.url, attempts=2))
    whole, part = load_tasks(tmp_path / "set" / "tasks.jsonl")
    assert whole == graded(1) and part.instruction == "Look up item 1" and part.difficulty == 3
    assert manifest["by_source"]["own"]["rejected"] == {"part": 1}
    (row,) = rejected(tmp_path)
    assert row["task_id"].startswith(f"{whole.task_id}~") and "names 42" in row["reason"]


def test_writing_without_a_writer_is_a_configuration_error(tmp_path: Path) -> None:
    some_rows(tmp_path)
    with pytest.raises(ConfigError, match="no writer is configured"):
        build_shard(order_of(ASKED, tmp_path))
