"""Shards for which a model writes: what it refuses, what it does not answer, what is kept of it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import shutil
import sqlite3
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from envs.chat import DamagedLedger, Ledger, Spent
from envs.chat import ledger as ledger_module
from envs.rewards.judge import JudgeConfig
from envs.tasks import load_tasks, save_tasks
from envs.tasks.assembly import (
    FileSource,
    ImportSource,
    RejectionStage,
    ShardRequest,
    build_shard,
)
from envs.tasks.decompose import DecompositionRules
from envs.types import ConfigError, JudgeError, rubric_hash
from tests.envs.rewards_judge.fake_judge import FakeJudge, Request, completion, http, text_of
from tests.envs.tasks.sets import (
    ASKED,
    build,
    endpoint,
    graded,
    lamp_rows,
    lamps,
    rejected,
    request_of,
    requests_of,
    some_rows,
    try_shard,
    writer,
)


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


def test_a_shard_without_answers_is_left_for_later(tmp_path: Path) -> None:
    some_rows(tmp_path)
    down = True

    def sometimes(fake: FakeJudge, request: Request) -> bytes:
        return http(503, "later") if down and "lamps" not in text_of(request) else lamps(fake, request)

    cache = str(tmp_path / "replies")
    with endpoint(sometimes) as fake:
        request = request_of(ASKED, tmp_path, writer=writer(fake.url), cache=cache)
        with pytest.raises(
            JudgeError, match=r"source web, shard 0: 1 questions got no answer .*server_error: HTTP 503"
        ):
            build_shard(request)
        assert list((tmp_path / "shards").rglob("*.json*")) == []
        down, before = False, len(fake.requests)
        report = build_shard(request)
        assert (report.tasks, report.rejected) == (1, {RejectionStage.RUBRIC: 1})
        assert not [request for request in fake.requests[before:] if "lamps" in text_of(request)]
    shutil.rmtree(tmp_path / "shards")
    with endpoint(lamps) as fake:
        again = build_shard(request_of(ASKED, tmp_path, writer=writer(fake.url), cache=cache))
    assert (again.tasks_sha256, again.rejected_sha256, again.digest) == (
        report.tasks_sha256, report.rejected_sha256, report.digest,
    )  # fmt: skip


def test_give_up_rejects_what_was_not_answered(tmp_path: Path) -> None:
    some_rows(tmp_path)
    with endpoint(lambda fake, request: None) as fake:
        report = build_shard(request_of(ASKED, tmp_path, writer=writer(fake.url), give_up=True))
    assert report.tasks == 0 and report.rejected == {RejectionStage.RUBRIC: 2}
    assert "no answer: unreachable" in request_of(ASKED, tmp_path).path(".rejected.jsonl").read_text()


def test_a_set_does_not_depend_on_which_samples_were_lost(tmp_path: Path) -> None:
    some_rows(tmp_path)
    down = True

    def but_one(fake: FakeJudge, request: Request) -> bytes:
        """Three samples have three seeds that follow one another."""
        return http(503, "later") if down and request["seed"] % 3 == 0 else lamps(fake, request)

    with endpoint(but_one) as fake:
        request = request_of(ASKED, tmp_path, writer=writer(fake.url), cache=str(tmp_path / "replies"))
        with pytest.raises(JudgeError, match=r"2 questions got no answer .*server_error: HTTP 503"):
            build_shard(request)
        assert build_shard(request.model_copy(update={"give_up": True})).written == 1, "two of three agree"
        shutil.rmtree(tmp_path / "shards")
        down = False
        before = len(fake.requests)
        assert build_shard(request).written == 1
        asked = fake.requests[before:]
        assert asked and all(request["seed"] % 3 == 0 for request in asked), "only what was lost is asked"


def test_instructions_of_parts_are_written(tmp_path: Path) -> None:
    save_tasks(tmp_path / "own.jsonl", [graded(1)])

    def answer(fake: FakeJudge, request: Request) -> bytes:
        said = (
            "Look up item 1" if "kept requirements:\n| Look it up" in text_of(request) else "Write down the answer 42"
        )
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
        build_shard(request_of(ASKED, tmp_path))


def test_schemas_decide_shards_and_endpoint_settings_do_not(tmp_path: Path) -> None:
    some_rows(tmp_path)

    def digest(**limits: object) -> str:
        known = writer("http://127.0.0.1:9/v1")
        endpoint = JudgeConfig.model_validate({**known.endpoint.model_dump(), **limits})
        return request_of(ASKED, tmp_path, writer=known.model_copy(update={"endpoint": endpoint})).digest

    assert digest() == digest(timeout=7.0, budget_requests=9) == digest(structured="none")
    elsewhere = request_of(ASKED, tmp_path, writer=writer("http://127.0.0.1:9/v1"), spent="/somewhere")
    assert digest() == elsewhere.digest, "nor does where it is counted"
    assert digest() != digest(structured="json_schema")


LAMPS = ImportSource(name="lamps", format="webgym", path="lamps.jsonl", write_rubrics=True, shards=4)
"""Nine questions a shard."""


def lamp_requests(folder: Path, url: str, budget: int | None) -> list[ShardRequest]:
    known = writer(url)
    endpoint = known.endpoint.model_copy(update={"budget_requests": budget})
    more = {"cache": str(folder / "replies"), "spent": str(folder / "writer_spent.sqlite")}
    return requests_of(LAMPS, folder, writer=known.model_copy(update={"endpoint": endpoint}), **more)


def test_workers_of_one_build_share_one_budget(tmp_path: Path) -> None:
    lamp_rows(tmp_path)
    spent = Ledger(tmp_path / "writer_spent.sqlite")
    two = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    with endpoint(lamps) as fake, two as workers:
        said = list(workers.map(try_shard, lamp_requests(tmp_path, fake.url, 20)))
        assert len(fake.requests) == 20 == spent.read().requests and spent.read().tokens == 20 * 110
        assert any("the budget of 20 requests is used up (budget_requests)" in each for each in said)
        said = list(workers.map(try_shard, lamp_requests(tmp_path, fake.url, 20)))
        assert len(fake.requests) == 20 and any("start the build again (with a greater budget" in each for each in said)
        assert list(workers.map(try_shard, lamp_requests(tmp_path, fake.url, 36))) == [""] * 4
        assert len(fake.requests) == 36 == spent.read().requests, "what was answered is not asked again"


def test_a_build_that_is_killed_goes_on_with_what_is_left_of_its_budget(tmp_path: Path) -> None:
    lamp_rows(tmp_path)
    spent, enough, killed = Ledger(tmp_path / "writer_spent.sqlite"), threading.Event(), threading.Event()

    async def answer(fake: FakeJudge, request: Request) -> bytes:
        if len(fake.requests) >= 5 and not killed.is_set():
            enough.set()
            while not killed.is_set():
                await asyncio.sleep(0.05)
        return lamps(fake, request)

    with endpoint(answer) as fake:
        requests = lamp_requests(tmp_path, fake.url, 30)
        first = multiprocessing.get_context("spawn").Process(target=build_shard, args=(requests[0],))
        first.start()
        assert enough.wait(60)
        first.kill()
        first.join()
        killed.set()
        before, sent = spent.read().requests, len(fake.requests)
        assert 5 <= sent <= before <= 9
        said = [try_shard(request) for request in requests]
        assert len(fake.requests) - sent == 30 - before and spent.read().requests == 30
    assert said[0] == "" and "budget of 30 requests is used up" in said[-1]


def test_no_task_is_given_up_because_it_cannot_be_counted_what_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lamp_rows(tmp_path)
    path = tmp_path / "writer_spent.sqlite"
    with endpoint(lamps) as fake:
        request = lamp_requests(tmp_path, fake.url, 20)[0].model_copy(update={"give_up": True})
        path.write_text('{"requests": 7, "tok')
        with pytest.raises(DamagedLedger, match=r"writer_spent\.sqlite: this is no ledger .*delete the file"):
            build_shard(request)
        path.unlink()
        monkeypatch.setattr(ledger_module, "LOCK_SECONDS", 0.05)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(JudgeError, match=r"3 questions got no answer .*uncounted: .*another process has held"):
                build_shard(request)
        assert not fake.requests and not list((tmp_path / "shards").rglob("*.json*"))
        assert build_shard(request).written == 3 and Ledger(path).read() == Spent(requests=9, tokens=990)
