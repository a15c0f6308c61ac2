"""Operations on pages, queued by environment and kind, so that none waits for what does not concern it.

An *environment* is one episode's browser. Each has a queue for every kind of operation (navigation, input, observation, screenshot,
evaluation): those of one kind run one at a time and in order, those of different kinds side by side, so a page is looked at while its
navigation hangs. Each kind has a number of slots for the whole pool and a deadline. When a slot frees, the environment that gets it is
chosen by deficit round robin over the seconds that each has held a slot of that kind (`envs.browser.deficit_round_robin`): there is no barrier
between steps or episodes, and an environment with slow pages does not slow the others.

Slots are there to share the processor. An operation that has run far longer than work takes is waiting for something (a server, a page in
an endless loop), so after ``stalled_after`` seconds its slot goes to somebody else, while it may go on until its deadline. At most one
operation of a kind and environment runs, so the number of those is bounded.

An operation runs in its caller's own task: no task is made here, cancelling the caller removes a queued operation or cancels a running one,
and nothing is left behind. One event loop; not for threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from envs.browser.deficit_round_robin import DeficitRoundRobin
from envs.browser.operations import DispatcherMetrics, KindMetrics, Limit, Limits, OperationKind
from envs.cancel_scope import Scope
from envs.types import BrowserError

T = TypeVar("T")

QUANTUM = 0.05
"""Seconds of a slot in a round: about what a screenshot takes, the dearest operation of every step."""
MAX_COST = 2.0
"""Seconds that an environment may owe or be owed: as long as an operation holds a slot at most, but for navigations."""


@dataclass(slots=True, eq=False)
class _Operation:
    """One call of ``run``: queued, then running (granted), then over."""

    granted: asyncio.Future[None]
    queued_at: float
    begun_at: float | None = None
    stall_timer: asyncio.TimerHandle | None = None
    """Runs while the operation holds a slot."""
    scope: Scope | None = None
    """Ends it, at its deadline or when its environment is closed."""
    timed_out: bool = False


@dataclass(slots=True)
class _Lane:
    """The operations of one kind of one environment."""

    waiting: deque[_Operation] = field(default_factory=deque)
    running: _Operation | None = None


class Environment:
    """One episode's browser as the dispatcher sees it. Made by `Dispatcher.environment`."""

    def __init__(self, dispatcher: Dispatcher, name: str) -> None:
        self.name = name
        self._dispatcher = dispatcher
        self._lanes = {kind: _Lane() for kind in OperationKind}
        self._closed: BrowserError | None = None

    async def run(self, kind: OperationKind, operation: Callable[[], Awaitable[T]], deadline: float | None = None) -> T:
        """Call ``operation`` when it is its turn, and return its result or raise its exception.

        An operation may not run another one of its own kind: that would wait for itself until the deadline. One that ignores its cancellation
        cannot be ended; it holds its lane, but no slot.

        Args:
            kind: Whose queue, slots and deadline.
            operation: Makes what is awaited; called once, or not at all.
            deadline: Seconds that it may run, instead of the kind's.

        Raises:
            BrowserError: the deadline, or the environment was closed.
        """
        self._refuse_if_closed(f"{kind} of {self.name}")
        return await self._dispatcher._pools[kind].run(self, operation, deadline)

    def close(self, error: BrowserError) -> None:
        """Fail all operations, those that wait and those that run, with ``error``; later ones are refused. The second call does nothing."""
        if self._closed is not None:
            return
        self._closed = error
        self._dispatcher._environments.pop(self.name)
        for pool in self._dispatcher._pools.values():
            pool.close(self)

    def _refuse_if_closed(self, what: str) -> None:
        if self._closed is not None:
            raise BrowserError(f"{what} was given up: {self._closed}") from self._closed


class Dispatcher:
    """The queues of all environments of a browser pool.

    Example::

        dispatcher = Dispatcher()
        environment = dispatcher.environment("episode-7")
        jpeg = await environment.run(OperationKind.SCREENSHOT, page.screenshot)
        environment.close(BrowserError("the episode is over"))
    """

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._pools = {kind: _KindPool(kind, limits.of(kind)) for kind in OperationKind}
        self._environments: dict[str, Environment] = {}

    def environment(self, name: str) -> Environment:
        """A new environment.

        Raises:
            BrowserError: one of this name is open.
        """
        if name in self._environments:
            raise BrowserError(f"the environment {name} is open already; close it first or give another name")
        environment = self._environments[name] = Environment(self, name)
        return environment

    def close(self, error: BrowserError) -> None:
        """Close all environments."""
        for environment in list(self._environments.values()):
            environment.close(error)

    def metrics(self) -> DispatcherMetrics:
        """What has been done, and by whom."""
        pools = self._pools.values()
        seconds = {
            name: sum(pool.turns.charged(environment) for pool in pools)
            for name, environment in self._environments.items()
        }
        return DispatcherMetrics({kind: replace(pool.counts) for kind, pool in self._pools.items()}, seconds)


class _KindPool:
    """The slots of one kind of operation, and whose turn it is."""

    def __init__(self, kind: OperationKind, limit: Limit) -> None:
        self.turns = DeficitRoundRobin[Environment](quantum=QUANTUM, most_cost=MAX_COST)
        self.counts = KindMetrics()
        self._kind = kind
        self._limit = limit
        self._free = limit.slots

    async def run(self, environment: Environment, work: Callable[[], Awaitable[T]], deadline: float | None) -> T:
        loop = asyncio.get_running_loop()
        operation = _Operation(loop.create_future(), loop.time())
        self._queue(environment, operation)
        try:
            await operation.granted
            result = await self._execute(
                environment, operation, work, self._limit.deadline if deadline is None else deadline
            )
        except asyncio.CancelledError:
            self.counts.cancelled += 1
            raise
        except Exception:  # whatever it is: it is counted, and its caller's to handle
            self.counts.timed_out += operation.timed_out
            self.counts.failed += not operation.timed_out
            raise
        else:
            self.counts.done += 1
            return result
        finally:
            self._end(environment, operation)

    def close(self, environment: Environment) -> None:
        """End all operations of an environment that has been closed; they find the reason there."""
        lane = environment._lanes[self._kind]
        while lane.waiting:
            operation = lane.waiting.popleft()
            self.counts.queued -= 1
            if not operation.granted.done():
                operation.granted.set_result(None)
        if lane.running is not None and lane.running.scope is not None:
            lane.running.scope.cut()
        self.turns.forget(environment)

    async def _execute(
        self, environment: Environment, operation: _Operation, work: Callable[[], Awaitable[T]], deadline: float
    ) -> T:
        what = f"{self._kind} of {environment.name}"
        environment._refuse_if_closed(what)
        try:
            async with Scope(deadline) as operation.scope:
                return await work()
        except TimeoutError as error:
            if operation.scope is None or not operation.scope.expired:
                raise  # the operation's own
            environment._refuse_if_closed(what)
            operation.timed_out = True
            raise BrowserError(f"{what} took longer than {deadline:g} s") from error
        finally:
            operation.scope = None

    def _queue(self, environment: Environment, operation: _Operation) -> None:
        lane = environment._lanes[self._kind]
        lane.waiting.append(operation)
        self.counts.queued += 1
        if lane.running is None:
            self.turns.add(environment)
            self._fill_slots()

    def _fill_slots(self) -> None:
        while self._free and (environment := self.turns.next()) is not None:
            lane = environment._lanes[self._kind]
            lane.running = operation = lane.waiting.popleft()
            self._begin(environment, operation)

    def _begin(self, environment: Environment, operation: _Operation) -> None:
        loop = asyncio.get_running_loop()
        operation.begun_at = loop.time()
        operation.stall_timer = loop.call_later(self._limit.stalled_after, self._stalled, environment, operation)
        self._free -= 1
        self.counts.queued -= 1
        self.counts.running += 1
        self.counts.wait_seconds += operation.begun_at - operation.queued_at
        if not operation.granted.done():  # else its caller has just been cancelled, and ends it
            operation.granted.set_result(None)

    def _stalled(self, environment: Environment, operation: _Operation) -> None:
        self.counts.stalled += 1
        self._give_back_slot(environment, operation, more=False)
        self._fill_slots()

    def _end(self, environment: Environment, operation: _Operation) -> None:
        lane = environment._lanes[self._kind]
        if operation.begun_at is None:
            if operation in lane.waiting:  # else its environment has been closed
                lane.waiting.remove(operation)
                self.counts.queued -= 1
                if not lane.waiting:
                    self.turns.withdraw(environment)
            return
        lane.running = None
        self.counts.running -= 1
        self.counts.busy_seconds += asyncio.get_running_loop().time() - operation.begun_at
        if operation.stall_timer is not None:
            self._give_back_slot(environment, operation, more=bool(lane.waiting))
        elif lane.waiting:
            self.turns.add(environment)
        self._fill_slots()

    def _give_back_slot(self, environment: Environment, operation: _Operation, *, more: bool) -> None:
        assert operation.begun_at is not None and operation.stall_timer is not None
        operation.stall_timer.cancel()
        operation.stall_timer = None
        self._free += 1
        self.turns.charge(environment, asyncio.get_running_loop().time() - operation.begun_at, more=more)
