"""Task sets, and an endpoint that writes for them, for the tests of builds."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envs.rewards.judge import JudgeConfig, JudgeModels
from envs.tasks.assembly import (
    ImportSource,
    Layout,
    SetPlan,
    ShardRequest,
    Source,
    build_shard,
    fingerprint,
    merge_shards,
)
from envs.tasks.authoring import WriterConfig
from envs.tasks.tree import TreeLayout
from envs.types import JudgeError, Rubric, WebTask, rubric_hash
from tests.envs.rewards_judge.fake_judge import Answerer, FakeJudge, Request, completion, fake_judge, text_of
from tests.envs.tasks.making import task


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


def request_of(source: Source, folder: Path, shard: int = 0, **more: Any) -> ShardRequest:
    return ShardRequest(
        source=source, shard=shard, seed=0, fingerprint=fingerprint(source, folder), folder=str(folder / "shards"),
        base=str(folder), **more,
    )  # fmt: skip


def requests_of(source: Source, folder: Path, **more: Any) -> list[ShardRequest]:
    return [request_of(source, folder, shard, **more) for shard in range(source.shards)]


def try_shard(request: ShardRequest) -> str:
    """In a process of its own: what is wrong, if anything is."""
    try:
        build_shard(request)
    except JudgeError as error:
        return str(error)
    return ""


def build(
    folder: Path, *sources: Source, layout: Layout = Layout.FILE, form: TreeLayout = TreeLayout.JSONL, **more: Any
) -> dict[str, Any]:
    requests = [requests_of(source, folder, **more) for source in sources]
    for source_orders in requests:
        for request in source_orders:
            build_shard(request)
    return merge_shards(SetPlan(folder / "set", layout, form, {"seed": 0}), requests)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def rejected(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "set" / "rejected.jsonl").read_text().split("\n")[:-1]]


WEBGYM: list[dict[str, Any]] = [
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


LAMP_ROWS = [
    {**WEBGYM[2], "website": f"https://shop-{number}.example/", "task_id": f"l-{number}"} for number in range(12)
]
"""Each needs a rubric, which is three questions to a writer who knows about lamps."""


def lamp_rows(folder: Path) -> Path:
    path = folder / "lamps.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in LAMP_ROWS))
    return path


def some_rows(folder: Path) -> None:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SOME))
