"""Batches of the local engine: who shares one with whom, and what happens to those who leave."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envs.types import EngineError
from training.policy.rendered import RenderedPrompt
from training.serving.engine import Generation, GenerationRequest, VersionSpan
from training.serving.local import LocalEngine


class RecordingModel:
    """A model that remembers its batches. (The real one is tested in test_local_engine.py.)"""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[str]] = []
        self._alone = threading.Lock()
        self._seconds = seconds
        self._version = 0

    def load(self, version: int, folder: Path) -> None:
        self.batches.append([f"version {version}"])
        self._version = version

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        assert self._alone.acquire(blocking=False), "two batches at a time"
        self.batches.append([request.key for request in requests])
        span = (VersionSpan(self._version, 0, 1),)
        try:
            time.sleep(self._seconds)
        finally:
            self._alone.release()
        if any(request.key == "broken/0" for request in requests):
            raise RuntimeError("no such policy")
        return [Generation((ord(request.key[-1]),), (0.0,), span, "stop") for request in requests]


def request(key: str) -> GenerationRequest:
    prompt = RenderedPrompt((1,), (1,), ())
    return GenerationRequest(prompt, (), key, key.split("/")[0], seed=0, max_new_tokens=1, temperature=1.0)


def make(model: RecordingModel, **options: Any) -> LocalEngine:
    return LocalEngine(model, **{"deadline": 5.0} | options)


async def play(engine: LocalEngine, name: str, steps: int, random_: random.Random, longest: float) -> list[str]:
    """The last letters of the keys of a session's turns."""
    turns = []
    async with engine.session(name):
        for step in range(steps):
            await asyncio.sleep(random_.random() * longest)  # a browser of uneven speed
            turns.append(chr((await engine.generate(request(f"{name}/{step}"))).token_ids[0]))
    return turns


async def run(seed: int, steps: Sequence[int], **options: Any) -> list[list[str]]:
    """The batches of sessions e0, e1, … with so many turns each."""
    model = RecordingModel()
    engine = make(model, **options)
    random_ = random.Random(seed)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play(engine, f"e{n}", count, random_, 0.01)) for n, count in enumerate(steps)]
    await engine.close()
    for task, count in zip(tasks, steps, strict=True):
        assert task.result() == [str(step) for step in range(count)], "each has its own turns, in order"
    assert engine.statistics.turns == sum(steps) and engine.statistics.batches == len(model.batches)
    return model.batches


async def test_membership_does_not_depend_on_timing():
    steps = [1 + n % 3 for n in range(7)]
    first = await run(1, steps)
    assert first[0] == [f"e{n}/0" for n in range(7)]
    assert [len(batch) for batch in first] == [7, 4, 2]
    for seed in range(2, 6):
        assert await run(seed, steps) == first


async def test_cohorts_take_turns_at_one_model():
    """Two cohorts never share a batch, and the model is never asked twice at a time."""
    batches = await run(0, [3] * 6, cohorts=2)
    assert sorted(batches) == sorted([f"e{n}/{step}" for n in range(c, 6, 2)] for c in range(2) for step in range(3)), (
        "sessions go to cohorts in turn"
    )


async def test_free_batches_take_what_waits_and_wait_for_nobody():
    model = RecordingModel(seconds=0.05)
    engine = make(model, deterministic=False)
    async with asyncio.timeout(10), engine.session("slow"):  # an open session that asks for nothing
        first = asyncio.create_task(engine.generate(request("a/0")))
        await asyncio.sleep(0.01)
        later = [asyncio.create_task(engine.generate(request(f"{name}/0"))) for name in "bcd"]
        await asyncio.sleep(0.01)
        later[1].cancel()
        await asyncio.gather(first, later[0], later[2])
    assert model.batches == [["a/0"], ["b/0", "d/0"]]
    assert engine.statistics.late_batches == 0
    await engine.generate(request("e/0"))
    assert model.batches[-1] == ["e/0"], "it begins again after a pause"
    await engine.close()


@pytest.mark.parametrize("deterministic", [False, True])
async def test_turns_wait_from_their_request_to_their_batch(deterministic: bool) -> None:
    """Two turns wait for a batch of another cohort, which is under way for as long as we hold it;
    its own turn waits for nobody."""
    held, began = threading.Event(), threading.Event()

    class HeldModel(RecordingModel):
        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            began.set()
            assert held.wait(10)
            return super().generate(requests)

    engine = make(HeldModel(), deterministic=deterministic, cohorts=3)
    asked = time.perf_counter()
    async with asyncio.timeout(20), engine.session("a"), engine.session("b"), engine.session("c"):
        first = asyncio.create_task(engine.generate(request("a/0")))
        await asyncio.to_thread(began.wait, 10)
        later = [asyncio.create_task(engine.generate(request(f"{name}/0"))) for name in "bc"]
        await asyncio.sleep(0)
        waiting = time.perf_counter()
        await asyncio.sleep(0.2)
        waiting = time.perf_counter() - waiting
        held.set()
        await asyncio.gather(first, *later)
    whole = time.perf_counter() - asked
    assert 2 * waiting <= engine.statistics.waited_seconds <= 2 * whole + (whole - waiting)
    assert waiting <= engine.statistics.seconds <= whole, "a batch that waits for the model is not being generated"
    await engine.close()


async def test_free_batches_answer_each_with_its_own_turn():
    batches = await run(0, [1 + n % 5 for n in range(9)], deterministic=False)
    assert sorted(key for batch in batches for key in batch) == sorted(
        f"e{n}/{step}" for n in range(9) for step in range(1 + n % 5)
    )


async def test_a_slow_session_holds_the_others_for_the_deadline_only():
    engine = make(RecordingModel(), deadline=0.05)

    async def slow() -> None:
        async with engine.session("slow"):
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as group:
        group.create_task(slow())
        turns = group.create_task(play(engine, "quick", 2, random.Random(0), 0.0))
    assert turns.result() == ["0", "1"]
    await engine.close()
    assert engine.statistics.late_batches == 2


@pytest.mark.parametrize("deterministic", [True, False])
async def test_a_turn_that_the_model_cannot_make_fails_alone(deterministic):
    """Its company of the batch has its turns, and so have those who come later."""
    engine = make(RecordingModel(), deterministic=deterministic)
    broken, *others = await asyncio.gather(
        *(play(engine, name, 1, random.Random(0), 0.0) for name in ("broken", "e1", "e2")), return_exceptions=True
    )
    assert isinstance(broken, EngineError) and str(broken) == "RuntimeError: no such policy"
    assert others == [["0"], ["0"]]
    assert await play(engine, "e3", 2, random.Random(0), 0.0) == ["0", "1"]
    await engine.close()


@pytest.mark.parametrize("leaver", ["quits", "fails"])
async def test_a_session_that_leaves_lets_the_batch_go(leaver):
    engine = make(RecordingModel(), deadline=60.0)

    async def leave() -> None:
        async with engine.session("leaver"):
            await asyncio.sleep(0.02)
            if leaver == "fails":
                raise ConnectionError("the browser is gone")

    async with asyncio.timeout(60):
        await asyncio.gather(leave(), play(engine, "e1", 1, random.Random(0), 0.0), return_exceptions=True)
    await engine.close()


async def test_a_cancelled_turn_leaves_the_batch_and_its_session_goes_on():
    model = RecordingModel()
    engine = make(model, deadline=0.2)
    async with asyncio.timeout(60), engine.session("e0"), engine.session("e1"):
        given_up = asyncio.create_task(engine.generate(request("e0/0")))
        await asyncio.sleep(0.15)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        first = asyncio.create_task(engine.generate(request("e1/0")))
        await asyncio.sleep(0.1)
        assert not first.done(), "the deadline is that of this batch, not of the turn that was given up"
        await asyncio.gather(first, engine.generate(request("e0/1")))
    await engine.close()
    assert engine.statistics.late_batches == 0
    assert model.batches == [["e0/1", "e1/0"]]


@pytest.mark.parametrize("deterministic", [True, False])
async def test_a_model_is_told_a_version_at_once_and_later_batches_are_of_it(deterministic):
    model = RecordingModel(seconds=0.5)
    engine = make(model, deterministic=deterministic)
    async with engine.session("e0"):
        before = asyncio.create_task(engine.generate(request("e0/0")))
        await asyncio.sleep(0.1)
        await engine.publish(7, Path("policies/v000007"))
        assert not before.done(), "it waits for no batch: the model itself knows when to change"
        after = await engine.generate(request("e0/1"))
    assert [turn.version_spans[0].version for turn in (await before, after)] == [0, 7]
    assert model.batches == [["e0/0"], ["version 7"], ["e0/1"]]
    await engine.close()
