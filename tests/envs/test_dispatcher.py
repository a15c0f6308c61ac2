"""The dispatcher: order, limits, deadlines and shares, and what one hung episode costs the
others."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.browser.dispatcher import Dispatcher, OperationQueues
from envs.browser.operations import KindMetrics, Limit, Limits, OperationKind
from envs.types import BrowserError

from .dispatching import at_rest, never, now, same, taking
from .simulated_time import run_simulated

NAVIGATION, INPUT, SCREENSHOT = OperationKind.NAVIGATION, OperationKind.INPUT, OperationKind.SCREENSHOT
OBSERVATION = OperationKind.OBSERVATION


def test_operations_of_a_kind_run_one_at_a_time_and_in_order() -> None:
    async def main() -> None:
        queues = Dispatcher(same(Limit(4, 10, 10))).open_queues("a")
        log: list[str] = []

        async def operation(number: int) -> int:
            log.append(f"begin {number}")
            await asyncio.sleep(1)
            log.append(f"end {number}")
            return number

        results = await asyncio.gather(*(queues.run(INPUT, lambda n=n: operation(n)) for n in range(3)))
        assert results == [0, 1, 2]
        assert log == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"]
        assert now() == pytest.approx(3)

    run_simulated(main())


def test_a_screenshot_is_taken_while_a_navigation_hangs() -> None:
    async def main() -> None:
        dispatcher = Dispatcher()
        queues = dispatcher.open_queues("a")
        navigation = asyncio.create_task(queues.run(NAVIGATION, never, deadline=20))
        assert await queues.run(SCREENSHOT, taking(0.05)) == 0.05
        assert await queues.run(OBSERVATION, taking(0.01)) == 0.01
        assert now() == pytest.approx(0.06)
        with pytest.raises(BrowserError, match="navigation of a took longer than 20 s"):
            await navigation
        assert now() == pytest.approx(20)
        assert dispatcher.metrics().kinds[NAVIGATION].timed_out == 1
        assert await at_rest(dispatcher)

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

        async def submit(number: int, queues: OperationQueues) -> int:
            await asyncio.sleep(source.random() * 5)
            kind = source.choice(list(OperationKind))
            return await queues.run(kind, lambda: operation(number, kind, queues.name))

        all_queues = [dispatcher.open_queues(name) for name in "abcd"]
        work = [submit(number, source.choice(all_queues)) for number in range(100)]
        assert await asyncio.gather(*work) == list(range(100))
        assert calls == Counter(range(100))
        assert await at_rest(dispatcher, limits)
        assert sum(metrics.done for metrics in dispatcher.metrics().kinds.values()) == 100

    run_simulated(main())


def test_the_slot_goes_to_the_environment_that_has_used_least() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 100, 100)))
        ends: Counter[str] = Counter()

        async def keep_busy(queues: OperationQueues, seconds: float) -> None:
            while now() < 100:
                await queues.run(INPUT, taking(seconds))
                ends[queues.name] += 1

        async with asyncio.TaskGroup() as group:
            for name, seconds in {"long": 1.0, "short": 0.1, "other": 0.1}.items():
                queues = dispatcher.open_queues(name)
                for _ in range(2):  # two in flight: there is always one more in the queue
                    group.create_task(keep_busy(queues, seconds))
        seconds = dispatcher.metrics().seconds
        shares = {name: used / sum(seconds.values()) for name, used in seconds.items()}
        assert all(abs(share - 1 / 3) < 0.03 for share in shares.values()), shares
        assert ends["short"] > 8 * ends["long"]

    run_simulated(main())


def test_a_stalled_operation_gives_its_slot_back_and_goes_on() -> None:
    async def main() -> None:
        limits = same(Limit(1, 30, 2))
        dispatcher = Dispatcher(limits)
        slow = asyncio.create_task(dispatcher.open_queues("slow").run(INPUT, taking(25)))
        await asyncio.sleep(0)
        assert await dispatcher.open_queues("b").run(INPUT, taking(1)) == 1
        assert now() == pytest.approx(3)
        assert await slow == 25
        assert now() == pytest.approx(25)
        metrics = dispatcher.metrics()
        assert metrics.kinds[INPUT] == KindMetrics(done=2, stalled=1, wait_seconds=2, busy_seconds=26)
        assert metrics.seconds == {"slow": 2, "b": 1}
        assert await at_rest(dispatcher, limits)

    run_simulated(main())


def test_after_a_stalled_operation_the_next_one_of_its_environment_runs() -> None:
    async def main() -> None:
        dispatcher = Dispatcher(same(Limit(1, 10, 2)))
        queues = dispatcher.open_queues("a")
        first = asyncio.create_task(queues.run(INPUT, never))
        await asyncio.sleep(0)
        assert await queues.run(INPUT, taking(1)) == 1
        assert now() == pytest.approx(11)
        with pytest.raises(BrowserError, match="took longer than 10 s"):
            await first

    run_simulated(main())


@pytest.mark.parametrize("hung_in", [NAVIGATION, SCREENSHOT])
def test_a_hung_environment_costs_seven_others_less_than_a_twentieth(hung_in: OperationKind) -> None:
    seconds = 150.0

    async def episodes(hung: bool) -> dict[str, int]:
        limits = Limits(
            navigation=Limit(2, 45, 5),
            input=Limit(8, 30, 2),
            observation=Limit(8, 15, 2),
            screenshot=Limit(2, 15, 2),
            evaluation=Limit(8, 15, 2),
        )
        dispatcher = Dispatcher(limits)
        steps: Counter[str] = Counter()

        async def play(queues: OperationQueues) -> None:
            while now() < seconds:
                await queues.run(NAVIGATION, taking(0.17))
                for _ in range(5):
                    await queues.run(INPUT, taking(0.01))
                    looks = queues.run(SCREENSHOT, taking(0.05)), queues.run(OBSERVATION, taking(0.01))
                    await asyncio.gather(*looks)
                    steps[queues.name] += 1

        async def hang(queues: OperationQueues) -> None:
            while now() < seconds:  # again as soon as it is given up, the worst there is
                with pytest.raises(BrowserError, match="took longer"):
                    await queues.run(hung_in, never)

        async with asyncio.TaskGroup() as group:
            for number in range(7):
                group.create_task(play(dispatcher.open_queues(f"e{number}")))
            group.create_task((hang if hung else play)(dispatcher.open_queues("e7")))
        assert await at_rest(dispatcher, limits)
        del steps["e7"]
        return dict(steps)

    alone, beside = run_simulated(episodes(False)), run_simulated(episodes(True))
    assert len(beside) == 7
    assert sum(beside.values()) >= 0.95 * sum(alone.values())
    assert all(beside[name] >= 0.95 * alone[name] for name in beside)


def test_what_cannot_be_is_refused() -> None:
    dispatcher = Dispatcher()
    dispatcher.open_queues("a")
    with pytest.raises(BrowserError, match="a is open already"):
        dispatcher.open_queues("a")
    with pytest.raises(BrowserError, match="slots must be at least 1"):
        Limit(slots=0, deadline=1, stalled_after=1)
    assert {kind.value for kind in OperationKind} == set(Limits.__slots__)
