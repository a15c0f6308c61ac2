"""Waves: who is batched with whom depends on the episodes alone."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from training.inference.engine import Generation, GenerationRequest
from training.inference.waves import InferenceBatcher


class RecordingEngine:
    """An engine that remembers its batches. (The real one is tested in test_transformers_engine.py.)"""

    policy_version = 0

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def load(self, version: int, checkpoint: Path) -> None: ...

    def encode(self, text: str, image_size: tuple[int, int]) -> list[int]:
        return [1]

    def encode_response(self, text: str) -> list[int]:
        return [1]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.batches.append([request.key for request in requests])
        if any(request.key == "broken/0" for request in requests):
            raise RuntimeError("no such policy")
        return [Generation((1,), (0.0,), 0, request.key) for request in requests]


class SlowEngine(RecordingEngine):
    """Takes its time, and fails when it is not left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.alone = threading.Lock()

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        assert self.alone.acquire(blocking=False), "two batches at a time"
        time.sleep(0.01)
        try:
            return super().generate(requests)
        finally:
            self.alone.release()


def request(key: str) -> GenerationRequest:
    return GenerationRequest((1,), (), key, seed=0, max_new_tokens=1, temperature=1.0)


async def play(batcher: InferenceBatcher, name: str, steps: int, random_: random.Random, longest: float) -> list[str]:
    turns = []
    async with batcher.slot():
        for step in range(steps):
            await asyncio.sleep(random_.random() * longest)  # a browser of uneven speed
            turns.append((await batcher.generate(request(f"{name}/{step}"))).text)
    return turns


def run(seed: int) -> list[list[str]]:
    async def main() -> list[list[str]]:
        engine = RecordingEngine()
        batcher = InferenceBatcher(engine, deadline=5)
        random_ = random.Random(seed)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(play(batcher, f"e{n}", 1 + n % 3, random_, 0.01)) for n in range(7)]
        batcher.close()
        for n, task in enumerate(tasks):
            assert task.result() == [f"e{n}/{step}" for step in range(1 + n % 3)]
        return engine.batches

    return asyncio.run(main())


def test_membership_does_not_depend_on_timing():
    first = run(1)
    assert first[0] == [f"e{n}/0" for n in range(7)]
    assert [len(batch) for batch in first] == [7, 4, 2]
    assert all(run(seed) == first for seed in range(2, 6))


async def test_a_slow_slot_holds_the_others_for_the_deadline_only():
    batcher = InferenceBatcher(RecordingEngine(), deadline=0.05)

    async def slow() -> None:
        async with batcher.slot():
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as group:
        group.create_task(slow())
        turns = group.create_task(play(batcher, "quick", 2, random.Random(0), 0.0))
    assert turns.result() == ["quick/0", "quick/1"]
    batcher.close()
    assert batcher.statistics.late_waves == 2


async def test_a_failing_engine_fails_every_turn_of_its_wave():
    batcher = InferenceBatcher(RecordingEngine(), deadline=5)
    results = await asyncio.gather(
        *(play(batcher, name, 1, random.Random(0), 0.0) for name in ("broken", "e1")), return_exceptions=True
    )
    batcher.close()
    assert [str(result) for result in results] == ["no such policy"] * 2


@pytest.mark.parametrize("leaver", ["quits", "fails"])
async def test_a_slot_that_leaves_lets_the_wave_go(leaver):
    batcher = InferenceBatcher(RecordingEngine(), deadline=60)

    async def leave() -> None:
        async with batcher.slot():
            await asyncio.sleep(0.02)
            if leaver == "fails":
                raise ConnectionError("the browser is gone")

    async with asyncio.timeout(5):
        await asyncio.gather(leave(), play(batcher, "e1", 1, random.Random(0), 0.0), return_exceptions=True)
    batcher.close()


async def test_a_turn_that_is_given_up_is_not_in_the_wave_and_its_slot_comes_with_the_next():
    engine = RecordingEngine()
    batcher = InferenceBatcher(engine, deadline=0.2)
    async with asyncio.timeout(5), batcher.slot(), batcher.slot():
        given_up = asyncio.create_task(batcher.generate(request("e0/0")))
        await asyncio.sleep(0.15)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        first = asyncio.create_task(batcher.generate(request("e1/0")))
        await asyncio.sleep(0.1)
        assert not first.done(), "the deadline is that of this batch, not of the turn that was given up"
        await asyncio.gather(first, batcher.generate(request("e2/0")))
    batcher.close()
    assert batcher.statistics.late_waves == 0
    assert engine.batches == [["e1/0", "e2/0"]]


def test_cohorts_take_turns_at_one_engine():
    """Two batchers never batch each other's turns, and the engine is never asked twice at a time."""

    async def main() -> list[list[str]]:
        engine = SlowEngine()
        thread = ThreadPoolExecutor(1)
        cohorts = [InferenceBatcher(engine, deadline=5, executor=thread) for _ in range(2)]
        random_ = random.Random(0)
        await asyncio.gather(*(play(cohorts[n % 2], f"e{n}", 3, random_, 0.01) for n in range(6)))
        thread.shutdown()
        return engine.batches

    batches = asyncio.run(main())
    assert sorted(batches) == sorted([f"e{n}/{step}" for n in range(c, 6, 2)] for c in range(2) for step in range(3))
