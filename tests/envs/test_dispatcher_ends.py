"""How operations end before they are done: cancelled, closed, failed; nothing is left of them."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.browser.dispatcher import Dispatcher, OperationQueues
from envs.browser.operations import KindMetrics, Limit, OperationKind
from envs.types import BrowserError

from .dispatching import at_rest, never, now, same, taking
from .simulated_time import run_simulated

NAVIGATION, INPUT, SCREENSHOT = OperationKind.NAVIGATION, OperationKind.INPUT, OperationKind.SCREENSHOT


def test_cancelling_the_caller_removes_a_queued_operation() -> None:
    async def main() -> None:
        limits = same(Limit(1, 10, 10))
        dispatcher = Dispatcher(limits)
        queues, other = dispatcher.open_queues("a"), dispatcher.open_queues("b")
        first = asyncio.create_task(queues.run(INPUT, taking(1)))
        behind, elsewhere = (asyncio.create_task(one.run(INPUT, never)) for one in (queues, other))
        await asyncio.sleep(0.5)
        assert dispatcher.metrics().kinds[INPUT].queued == 2
        for task in (behind, elsewhere):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await first == 1
        assert dispatcher.metrics().kinds[INPUT] == KindMetrics(done=1, cancelled=2, busy_seconds=1)
        assert await at_rest(dispatcher, limits)
        assert await other.run(INPUT, taking(1)) == 1

    run_simulated(main())


def test_cancelling_the_caller_cancels_a_running_operation() -> None:
    async def main() -> None:
        limits = same(Limit(1, 10, 10))
        dispatcher = Dispatcher(limits)
        queues = dispatcher.open_queues("a")
        ended: list[str] = []

        async def operation() -> None:
            try:
                await never()
            finally:
                ended.append("ended")

        task = asyncio.create_task(queues.run(INPUT, operation))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["ended"] and await at_rest(dispatcher, limits)

    run_simulated(main())


def test_cancelled_in_the_moment_in_which_it_is_granted() -> None:
    async def main() -> None:
        limits = same(Limit(1, 10, 10))
        dispatcher = Dispatcher(limits)
        queues = dispatcher.open_queues("a")
        release: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def until_released() -> None:
            await release

        first = asyncio.create_task(queues.run(INPUT, until_released))
        second = asyncio.create_task(queues.run(INPUT, never))
        third = asyncio.create_task(queues.run(INPUT, taking(1)))
        await asyncio.sleep(1)
        release.set_result(None)
        second.cancel()  # first ends and grants second before second hears of it
        assert await third == 1
        await first
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await at_rest(dispatcher, limits)

    run_simulated(main())


def test_closing_fails_what_waits_and_what_runs_and_nothing_else() -> None:
    async def main() -> None:
        limits = same(Limit(2, 100, 5))
        dispatcher = Dispatcher(limits)
        doomed, other = dispatcher.open_queues("doomed"), dispatcher.open_queues("other")
        tasks = [
            asyncio.create_task(doomed.run(kind, never)) for kind in (NAVIGATION, NAVIGATION, SCREENSHOT, INPUT, INPUT)
        ]
        beside = asyncio.create_task(other.run(NAVIGATION, taking(30)))
        await asyncio.sleep(10)  # the running ones have stalled by now
        doomed.close(BrowserError("the renderer crashed"))
        doomed.close(BrowserError("said twice"))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert now() == pytest.approx(10)
        for result in results:
            assert isinstance(result, BrowserError)
            assert "of doomed was given up: the renderer crashed" in str(result)
        with pytest.raises(BrowserError, match="given up: the renderer crashed"):
            await doomed.run(INPUT, never)
        assert await beside == 30
        assert await at_rest(dispatcher, limits)
        assert list(dispatcher.metrics().seconds) == ["other"]
        assert await dispatcher.open_queues("doomed").run(INPUT, taking(1)) == 1
        closed = weakref.ref(doomed)
        del doomed, tasks, results, result
        gc.collect()
        assert closed() is None, "the dispatcher keeps nothing of it"

    run_simulated(main())


def test_closing_in_the_moment_in_which_an_operation_begins() -> None:
    async def main() -> None:
        limits = same(Limit(1, 100, 5))
        dispatcher = Dispatcher(limits)
        queues = dispatcher.open_queues("a")
        called: list[bool] = []

        async def operation() -> None:
            called.append(True)

        task = asyncio.create_task(queues.run(INPUT, operation))
        blocker = asyncio.create_task(dispatcher.open_queues("b").run(INPUT, taking(1)))
        queues.close(BrowserError("at once"))
        with pytest.raises(BrowserError, match="at once"):
            await task
        await blocker
        assert called == [] and await at_rest(dispatcher, limits)

    run_simulated(main())


def test_closing_while_an_operation_that_timed_out_cleans_up() -> None:
    async def main() -> None:
        limits = same(Limit(1, 5, 5))
        dispatcher = Dispatcher(limits)
        queues = dispatcher.open_queues("a")

        async def slow_to_end() -> None:
            try:
                await never()
            finally:
                await asyncio.sleep(2)

        task = asyncio.create_task(queues.run(INPUT, slow_to_end))
        await asyncio.sleep(6)
        queues.close(BrowserError("closed"))
        with pytest.raises(BrowserError, match="given up: closed"):
            await task
        assert now() == pytest.approx(7) and await at_rest(dispatcher, limits)

    run_simulated(main())


def test_closing_the_dispatcher_closes_all() -> None:
    async def main() -> None:
        dispatcher = Dispatcher()
        tasks = [asyncio.create_task(dispatcher.open_queues(name).run(INPUT, never)) for name in "abc"]
        await asyncio.sleep(1)
        dispatcher.close(BrowserError("Chromium is gone"))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [BrowserError] * 3
        assert await at_rest(dispatcher) and dispatcher.metrics().seconds == {}

    run_simulated(main())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_left_of_any_mixture_of_ends(seed: int) -> None:
    async def main() -> None:
        source = random.Random(seed)
        limits = same(Limit(2, 3, 1))
        dispatcher = Dispatcher(limits)
        all_queues = [dispatcher.open_queues(name) for name in "abcd"]

        async def fail() -> None:
            await asyncio.sleep(0.5)
            raise OSError("its own")

        async def call() -> None:
            await asyncio.sleep(source.random() * 10)
            work = source.choice([taking(0.3), taking(2.0), never, fail])
            kind = source.choice([INPUT, SCREENSHOT])
            await source.choice(all_queues).run(kind, work)

        async def disturb(task: asyncio.Task[None]) -> None:
            await asyncio.sleep(source.random() * 15)
            task.cancel()

        async def close(queues: OperationQueues) -> None:
            await asyncio.sleep(source.random() * 15)
            queues.close(BrowserError("closed"))

        calls = [asyncio.create_task(call()) for _ in range(60)]
        others = [disturb(task) for task in calls[::4]] + [close(queues) for queues in all_queues[::2]]
        results = await asyncio.gather(*calls, *others, return_exceptions=True)
        kinds = {type(result) for result in results}
        assert kinds <= {type(None), float, BrowserError, OSError, asyncio.CancelledError}
        assert await at_rest(dispatcher, limits)
        for queues in all_queues[1::2]:  # those that were not closed
            assert [await queues.run(kind, taking(0.5)) for kind in (INPUT, SCREENSHOT)] == [0.5, 0.5]

    run_simulated(main())


def test_the_exception_of_an_operation_is_its_callers() -> None:
    async def main() -> None:
        dispatcher = Dispatcher()
        queues = dispatcher.open_queues("a")

        async def fail() -> None:
            raise TimeoutError("of its own")

        with pytest.raises(TimeoutError, match="of its own"):
            await queues.run(INPUT, fail)
        assert dispatcher.metrics().kinds[INPUT].failed == 1 and dispatcher.metrics().kinds[INPUT].timed_out == 0

    run_simulated(main())
