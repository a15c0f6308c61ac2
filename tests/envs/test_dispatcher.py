"""The dispatcher: order, limits, deadlines, cancellation and closing, and what one hung environment costs the others."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.browser.dispatcher import Dispatcher, Environment
from envs.browser.operations import KindMetrics, Limit, Limits, OperationKind
from envs.types import BrowserError

from .simulated_time import run_simulated

NAVIGATION, INPUT, SCREENSHOT = OperationKind.NAVIGATION, OperationKind.INPUT, OperationKind.SCREENSHOT
OBSERVATION = OperationKind.OBSERVATION


def taking(seconds: float) -> Callable[[], Awaitable[float]]:
    """An operation that takes so long, and gives that back."""
    return lambda: asyncio.sleep(seconds, seconds)


async def never() -> None:
    """An operation that hangs."""
    await asyncio.get_running_loop().create_future()


def now() -> float:
    """Simulated seconds."""
    return asyncio.get_running_loop().time()


def same(limit: Limit) -> Limits:
    """These limits for every kind."""
    return Limits(limit, limit, limit, limit, limit)


def at_rest(dispatcher: Dispatcher) -> bool:
    """Whether nothing is queued, running or held by anyone."""
    kinds = dispatcher.metrics().kinds.values()
    slots = all(pool._free == pool._limit.slots for pool in dispatcher._pools.values())
    return slots and not any(metrics.queued or metrics.running for metrics in kinds)


def test_operations_of_a_kind_run_one_at_a_time_and_in_order() -> None:
    async def main() -> None:
        environment = Dispatcher(same(Limit(4, 10, 10))).environment("a")
        log: list[str] = []

        async def operation(number: int) -> int:
            log.append(f"begin {number}")
            await asyncio.sleep(1)
            log.append(f"end {number}")
            return number

        results = await asyncio.gather(*(environment.run(INPUT, lambda n=n: operation(n)) for n in range(3)))
        assert results == [0, 1, 2]
        assert log == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"]
        assert now() == pytest.approx(3)

    run_simulated(main())


def test_a_screenshot_is_taken_while_a_navigation_hangs() -> None:
    async def main() -> None:
        dispatcher = Dispatcher()
        environment = dispatcher.environment("a")
        navigation = asyncio.create_task(environment.run(NAVIGATION, never, deadline=20))
        assert await environment.run(SCREENSHOT, taking(0.05)) == 0.05
        assert await environment.run(OBSERVATION, taking(0.01)) == 0.01
        assert now() == pytest.approx(0.06)
        with pytest.raises(BrowserError, match="navigation of a took longer than 20 s"):
            await navigation
        assert now() == pytest.approx(20)
        assert dispatcher.metrics().kinds[NAVIGATION].timed_out == 1
        assert at_rest(dispatcher)

    run_simulated(main())


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**32))
def test_no_kind_runs_more_than_its_slots_and_every_operation_runs_once(slots: int, seed: int) -> None:
    async def main() -> None:
        source = random.Random(seed)
        limits = Limits(**{kind.value: Limit(slots, 1e6, 1e6) for kind in OperationKind})
        dispatcher = Dispatcher(limits)
        running: Counter[str] = Counter()
        calls: Counter[int] = Counter()

        async def operation(number: int, kind: OperationKind, name: str) -> int:
            running[kind] += 1
            running[kind + name] += 1
            calls[number] += 1
            assert running[kind] <= slots and running[kind + name] == 1
            await asyncio.sleep(source.random())
            running[kind] -= 1
            running[kind + name] -= 1
            return number

        async def submit(number: int, environment: Environment) -> int:
            await asyncio.sleep(source.random() * 5)
            kind = source.choice(list(OperationKind))
            return await environment.run(kind, lambda: operation(number, kind, environment.name))

        environments = [dispatcher.environment(name) for name in "abcd"]
        work = [submit(number, source.choice(environments)) for number in range(100)]
        assert await asyncio.gather(*work) == list(range(100))
        assert calls == Counter(range(100))
        assert at_rest(dispatcher)
        assert sum(metrics.done for metrics in dispatcher.metrics().kinds.values()) == 100

    run_simulated(main())


def test_the_slot_goes_to_the_environment_that_has_used_least() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 100, 100)))
        ends: Counter[str] = Counter()

        async def keep_busy(environment: Environment, seconds: float) -> None:
            while now() < 100:
                await environment.run(INPUT, taking(seconds))
                ends[environment.name] += 1

        async with asyncio.TaskGroup() as group:
            for name, seconds in {"long": 1.0, "short": 0.1, "other": 0.1}.items():
                environment = dispatcher.environment(name)
                for _ in range(2):  # two in flight: there is always one more in the queue
                    group.create_task(keep_busy(environment, seconds))
        shares = dispatcher.metrics().shares
        assert sum(shares.values()) == pytest.approx(1)
        assert all(abs(share - 1 / 3) < 0.03 for share in shares.values()), shares
        assert ends["short"] > 8 * ends["long"]

    run_simulated(main())


def test_a_stalled_operation_gives_its_slot_back_and_goes_on() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 30, 2)))
        slow = asyncio.create_task(dispatcher.environment("slow").run(INPUT, taking(25)))
        await asyncio.sleep(0)
        assert await dispatcher.environment("b").run(INPUT, taking(1)) == 1
        assert now() == pytest.approx(3)
        assert await slow == 25
        assert now() == pytest.approx(25)
        metrics = dispatcher.metrics()
        assert metrics.kinds[INPUT] == KindMetrics(done=2, stalled=1, wait_seconds=2, busy_seconds=26)
        assert metrics.seconds == {"slow": 2, "b": 1}
        assert at_rest(dispatcher)

    run_simulated(main())


def test_after_a_stalled_operation_the_next_one_of_its_environment_runs() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 10, 2)))
        environment = dispatcher.environment("a")
        first = asyncio.create_task(environment.run(INPUT, never))
        await asyncio.sleep(0)
        assert await environment.run(INPUT, taking(1)) == 1
        assert now() == pytest.approx(11)
        with pytest.raises(BrowserError, match="took longer than 10 s"):
            await first

    run_simulated(main())


@pytest.mark.parametrize("hung_in", [NAVIGATION, SCREENSHOT])
def test_one_hung_environment_of_eight_costs_the_others_less_than_a_twentieth(hung_in: OperationKind) -> None:
    seconds = 150.0

    async def episodes(hung: bool) -> dict[str, int]:
        dispatcher = Dispatcher(
            Limits(
                navigation=Limit(2, 45, 5),
                input=Limit(8, 30, 2),
                observation=Limit(8, 15, 2),
                screenshot=Limit(4, 15, 2),
                evaluation=Limit(8, 15, 2),
            )
        )
        steps: Counter[str] = Counter()

        async def play(environment: Environment) -> None:
            while now() < seconds:
                await environment.run(NAVIGATION, taking(0.17))
                for _ in range(5):
                    await environment.run(INPUT, taking(0.01))
                    looks = environment.run(SCREENSHOT, taking(0.05)), environment.run(OBSERVATION, taking(0.01))
                    await asyncio.gather(*looks)
                    steps[environment.name] += 1

        async def hang(environment: Environment) -> None:
            while now() < seconds:  # again as soon as it is given up, the worst there is
                with pytest.raises(BrowserError, match="took longer"):
                    await environment.run(hung_in, never)

        async with asyncio.TaskGroup() as group:
            for number in range(7):
                group.create_task(play(dispatcher.environment(f"e{number}")))
            group.create_task((hang if hung else play)(dispatcher.environment("e7")))
        assert at_rest(dispatcher)
        del steps["e7"]
        return dict(steps)

    alone, beside = run_simulated(episodes(False)), run_simulated(episodes(True))
    assert len(beside) == 7
    assert sum(beside.values()) >= 0.95 * sum(alone.values())
    assert all(beside[name] >= 0.95 * alone[name] for name in beside)


def test_cancelling_the_caller_removes_a_queued_operation() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 10, 10)))
        environment, other = dispatcher.environment("a"), dispatcher.environment("b")
        first = asyncio.create_task(environment.run(INPUT, taking(1)))
        behind, elsewhere = (asyncio.create_task(one.run(INPUT, never)) for one in (environment, other))
        await asyncio.sleep(0.5)
        assert dispatcher.metrics().kinds[INPUT].queued == 2
        for task in (behind, elsewhere):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await first == 1
        assert dispatcher.metrics().kinds[INPUT] == KindMetrics(done=1, cancelled=2, busy_seconds=1)
        assert at_rest(dispatcher)
        assert await other.run(INPUT, taking(1)) == 1

    run_simulated(main())


def test_cancelling_the_caller_cancels_a_running_operation() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 10, 10)))
        environment = dispatcher.environment("a")
        ended: list[str] = []

        async def operation() -> None:
            try:
                await never()
            finally:
                ended.append("ended")

        task = asyncio.create_task(environment.run(INPUT, operation))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["ended"] and at_rest(dispatcher)

    run_simulated(main())


def test_cancelled_in_the_moment_in_which_it_is_granted() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 10, 10)))
        environment = dispatcher.environment("a")
        release: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def until_released() -> None:
            await release

        first = asyncio.create_task(environment.run(INPUT, until_released))
        second = asyncio.create_task(environment.run(INPUT, never))
        third = asyncio.create_task(environment.run(INPUT, taking(1)))
        await asyncio.sleep(1)
        release.set_result(None)
        second.cancel()  # first ends and grants second before second hears of it
        assert await third == 1
        await first
        with pytest.raises(asyncio.CancelledError):
            await second
        assert at_rest(dispatcher)

    run_simulated(main())


def test_closing_fails_what_waits_and_what_runs_and_nothing_else() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(2, 100, 5)))
        doomed, other = dispatcher.environment("doomed"), dispatcher.environment("other")
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
        assert at_rest(dispatcher)
        assert list(dispatcher.metrics().seconds) == ["other"]
        assert all(doomed not in pool.turns._accounts for pool in dispatcher._pools.values())
        assert await dispatcher.environment("doomed").run(INPUT, taking(1)) == 1

    run_simulated(main())


def test_closing_in_the_moment_in_which_an_operation_begins() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 100, 5)))
        environment = dispatcher.environment("a")
        called: list[bool] = []

        async def operation() -> None:
            called.append(True)

        task = asyncio.create_task(environment.run(INPUT, operation))
        blocker = asyncio.create_task(dispatcher.environment("b").run(INPUT, taking(1)))
        environment.close(BrowserError("at once"))
        with pytest.raises(BrowserError, match="at once"):
            await task
        await blocker
        assert called == [] and at_rest(dispatcher)

    run_simulated(main())


def test_closing_while_an_operation_that_timed_out_cleans_up() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 5, 5)))
        environment = dispatcher.environment("a")

        async def slow_to_end() -> None:
            try:
                await never()
            finally:
                await asyncio.sleep(2)

        task = asyncio.create_task(environment.run(INPUT, slow_to_end))
        await asyncio.sleep(6)
        environment.close(BrowserError("closed"))
        with pytest.raises(BrowserError, match="given up: closed"):
            await task
        assert now() == pytest.approx(7) and at_rest(dispatcher)

    run_simulated(main())


def test_closing_the_dispatcher_closes_all() -> None:
    async def main() -> None:
        dispatcher = Dispatcher()
        tasks = [asyncio.create_task(dispatcher.environment(name).run(INPUT, never)) for name in "abc"]
        await asyncio.sleep(1)
        dispatcher.close(BrowserError("Chromium is gone"))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [BrowserError] * 3
        assert at_rest(dispatcher) and dispatcher.metrics().seconds == {}

    run_simulated(main())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_left_of_any_mixture_of_ends(seed: int) -> None:
    async def main() -> None:
        source = random.Random(seed)
        dispatcher = Dispatcher(same(Limit(2, 3, 1)))
        environments = [dispatcher.environment(name) for name in "abcd"]

        async def fail() -> None:
            await asyncio.sleep(0.5)
            raise OSError("its own")

        async def call() -> None:
            await asyncio.sleep(source.random() * 10)
            work = source.choice([taking(0.3), taking(2.0), never, fail])
            kind = source.choice([INPUT, SCREENSHOT])
            await source.choice(environments).run(kind, work)

        async def disturb(task: asyncio.Task[None]) -> None:
            await asyncio.sleep(source.random() * 15)
            task.cancel()

        async def close(environment: Environment) -> None:
            await asyncio.sleep(source.random() * 15)
            environment.close(BrowserError("closed"))

        calls = [asyncio.create_task(call()) for _ in range(60)]
        others = [disturb(task) for task in calls[::4]] + [close(environment) for environment in environments[::2]]
        results = await asyncio.gather(*calls, *others, return_exceptions=True)
        kinds = {type(result) for result in results}
        assert kinds <= {type(None), float, BrowserError, OSError, asyncio.CancelledError}
        assert at_rest(dispatcher)
        for pool in dispatcher._pools.values():
            assert len(pool.turns) == 0
            assert not any(account.out for account in pool.turns._accounts.values())

    run_simulated(main())


def test_the_exception_of_an_operation_is_its_callers() -> None:
    async def main() -> None:
        dispatcher = Dispatcher()
        environment = dispatcher.environment("a")

        async def fail() -> None:
            raise TimeoutError("of its own")

        with pytest.raises(TimeoutError, match="of its own"):
            await environment.run(INPUT, fail)
        assert dispatcher.metrics().kinds[INPUT].failed == 1 and dispatcher.metrics().kinds[INPUT].timed_out == 0

    run_simulated(main())


def test_what_cannot_be_is_refused() -> None:
    dispatcher = Dispatcher()
    dispatcher.environment("a")
    with pytest.raises(BrowserError, match="a is open already"):
        dispatcher.environment("a")
    with pytest.raises(BrowserError, match="slots must be at least 1"):
        Limit(slots=0, deadline=1, stalled_after=1)
    assert {kind.value for kind in OperationKind} == set(Limits.__slots__)
