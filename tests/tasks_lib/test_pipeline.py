"""The pipeline: overlap, back-pressure, errors and cancellation."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.types import ConfigError
from tasks_lib.worker.pipeline import QUEUE, Pipeline, Stage
from tests.envs.simulated_time import run_simulated


def taking(seconds: float) -> Callable[[int], Awaitable[int]]:
    """Work that takes so long and changes nothing."""
    return lambda item: asyncio.sleep(seconds, item)


def now() -> float:
    """Simulated seconds."""
    return asyncio.get_running_loop().time()


async def at_rest(pipeline: Pipeline[int, int]) -> bool:
    """Whether nothing is in it, and the queue of each stage takes as many items as it may hold."""
    rests = all((stage.metrics.queued, stage.metrics.running) == (0, 0) for stage in pipeline.stages)
    async with asyncio.timeout(1):
        for stage in pipeline.stages:
            for _ in range(stage.queue):
                await stage.enter()
    return rests


def test_stages_overlap_and_the_slowest_sets_the_pace() -> None:
    async def main() -> None:
        pipeline = (
            Pipeline.of(Stage("capture", taking(1))).then(Stage("encode", taking(0.5))).then(Stage("g", taking(2)))
        )
        assert await asyncio.gather(*map(pipeline.run, range(20))) == list(range(20))
        assert now() == pytest.approx(1 + 0.5 + 20 * 2)
        assert await at_rest(pipeline)

    run_simulated(main())


def test_items_wait_for_a_stage_before_its_queue_and_in_it() -> None:
    async def main() -> None:
        stage = Stage("encode", taking(1), queue=2)
        await asyncio.gather(*map(Pipeline.of(stage).run, range(5)))
        assert stage.metrics.waiting_seconds == pytest.approx(0 + 1 + 2 + 3 + 4)
        alone = Stage("encode", taking(1))
        for item in range(5):
            await Pipeline.of(alone).run(item)
        assert alone.metrics.waiting_seconds == 0

    run_simulated(main())


def test_a_slow_stage_holds_back_those_before_it() -> None:
    async def main() -> None:
        captured: list[int] = []

        async def capture(item: int) -> int:
            captured.append(item)
            return await asyncio.sleep(1, item)

        generate = Stage("generate", taking(100))
        pipeline = Pipeline.of(Stage("capture", capture)).then(generate)
        episodes = [asyncio.create_task(pipeline.run(item)) for item in range(50)]
        await asyncio.sleep(99)
        # One at the model, a full queue, and one that is captured but has no place yet.
        assert captured == list(range(1 + QUEUE + 1))
        assert (generate.metrics.queued, generate.metrics.most_queued) == (QUEUE, QUEUE)
        for episode in episodes:
            episode.cancel()
        await asyncio.wait(episodes)
        assert await at_rest(pipeline)
        assert pipeline.stages[0].metrics.blocked_seconds > 90

    run_simulated(main())


def test_an_error_concerns_its_own_item_only() -> None:
    async def main() -> None:
        async def encode(item: int) -> int:
            if item % 3 == 0:
                raise ValueError(f"item {item}")
            return await asyncio.sleep(1, item)

        pipeline = Pipeline.of(Stage("capture", taking(1))).then(Stage("encode", encode))
        results = await asyncio.gather(*map(pipeline.run, range(10)), return_exceptions=True)
        assert [str(result) for result in results] == [f"item {n}" if n % 3 == 0 else str(n) for n in range(10)]
        assert (pipeline.stages[1].metrics.failed, pipeline.stages[1].metrics.done) == (4, 6)
        assert await at_rest(pipeline)

    run_simulated(main())


@pytest.mark.parametrize("after", [0.5, 1.5, 50.5], ids=["queued", "in the second stage", "waiting for a place"])
def test_a_cancelled_caller_takes_its_item_out(after: float) -> None:
    async def main() -> None:
        pipeline = Pipeline.of(Stage("a", taking(1))).then(Stage("b", taking(60)))
        episodes = [asyncio.create_task(pipeline.run(item)) for item in range(8)]
        await asyncio.sleep(after)
        for number in (0, 3, 5, 7):
            episodes[number].cancel()
        results = await asyncio.gather(*episodes, return_exceptions=True)
        assert [result for result in results if isinstance(result, int)] == [1, 2, 4, 6]
        assert await at_rest(pipeline)

    run_simulated(main())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 5))
def test_bounds_hold_and_nothing_is_lost_whatever_happens(seed: int, workers: int, queue: int) -> None:
    async def main() -> None:
        source = random.Random(seed)
        running = [0, 0, 0]

        def stage(number: int) -> Stage[int, int]:
            async def work(item: int) -> int:
                running[number] += 1
                assert running[number] <= workers
                try:
                    await asyncio.sleep(source.random())
                    if source.random() < 0.1:
                        raise OSError("its own")
                finally:
                    running[number] -= 1
                return item + 1

            return Stage(str(number), work, workers, queue)

        pipeline = Pipeline.of(stage(0)).then(stage(1)).then(stage(2))

        async def disturb(task: asyncio.Task[int]) -> None:
            await asyncio.sleep(source.random() * 10)
            task.cancel()

        tasks = [asyncio.create_task(pipeline.run(item)) for item in range(60)]
        results = await asyncio.gather(*tasks, *map(disturb, tasks[::5]), return_exceptions=True)
        for item, result in enumerate(results[:60]):
            assert result == item + 3 or isinstance(result, OSError | asyncio.CancelledError)
        assert all(stage.metrics.most_queued <= queue for stage in pipeline.stages)
        assert await at_rest(pipeline)

    run_simulated(main())


async def test_work_in_threads_leaves_the_event_loop_free() -> None:
    seen, inside = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def encode(item: int) -> int:
        loop.call_soon_threadsafe(seen.set)
        assert inside.wait(10), "the event loop did not run while a thread worked"
        return item * 2

    with ThreadPoolExecutor(1) as executor:
        pipeline = Pipeline.of(Stage.in_threads("encode", encode, executor))
        task = asyncio.create_task(pipeline.run(21))
        await seen.wait()
        inside.set()
        found = await task, await at_rest(pipeline)
    assert found == (42, True)


def test_a_stage_needs_room() -> None:
    with pytest.raises(ConfigError, match="stage x: workers and queue must be at least 1"):
        Stage("x", taking(1), queue=0)
