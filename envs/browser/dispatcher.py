"""Queues operations on pages by episode and kind, and shares slots fairly over the episodes.

Each episode has a queue for every kind of operation (navigation, input, observation, screenshot,
evaluation): those of one kind run one at a time and in order, those of different kinds side by
side, so a page is looked at while its navigation hangs. Each kind has a number of slots for the
whole pool and a deadline. When a slot frees, the episode that gets it is chosen by deficit round
robin over the seconds that each has held a slot of that kind (`envs.browser.deficit_round_robin`):
there is no barrier between steps or episodes, and an episode with slow pages does not slow the
others.

Slots are there to share the processor. An operation that has run far longer than work takes is
waiting for something (a server, a page in an endless loop), so after ``stalled_after`` seconds its
slot goes to somebody else, while it may go on until its deadline. At most one operation of a kind
and episode runs, so the number of those is bounded.

An operation runs in its caller's own task: no task is made here, cancelling the caller removes a
queued operation or cancels a running one, and nothing is left behind. One event loop; not for
threads.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from envs.browser.deficit_round_robin import DeficitRoundRobin
from envs.cancel_scope import CancelScope
from envs.types import BrowserError


class OperationKind(StrEnum):
    """Kind of an operation; each has its queues, and these names in the metrics."""

    NAVIGATION = "navigation"
    INPUT = "input"
    """Mouse and keyboard events, with the settling that follows."""
    OBSERVATION = "observation"
    SCREENSHOT = "screenshot"
    EVALUATION = "evaluation"
    """Scripts of a site: reset, ready, facts."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Bounds of one kind of operation."""

    slots: int
    """Operations of the whole pool at a time."""
    deadline: float
    """Seconds that an operation may run. The wait before it does not count: under load it is not
    the page's fault."""
    stalled_after: float
    """Seconds after which a running operation gives its slot back."""

    def __post_init__(self) -> None:
        if self.slots < 1 or self.deadline <= 0 or self.stalled_after <= 0:
            raise BrowserError(f"{self}: slots must be at least 1, the seconds above 0")


CORES = os.cpu_count() or 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of all kinds of operation.

    Deadlines are some hundred times what the operation takes on a loaded machine with two cores.
    """

    navigation: Limit = Limit(slots=max(2, CORES), deadline=45.0, stalled_after=5.0)
    """A load takes about a core, and more of them only make each other slow; with a cold file cache
    one took over 20 s."""
    input: Limit = Limit(slots=4 * CORES, deadline=30.0, stalled_after=2.0)
    """2 ms of processor for a click; most of the time is the page's own while it settles."""
    observation: Limit = Limit(slots=4 * CORES, deadline=15.0, stalled_after=2.0)
    """6 to 8 ms of processor, a fifth of a screenshot's."""
    screenshot: Limit = Limit(slots=4 * CORES, deadline=15.0, stalled_after=2.0)
    """26 ms of processor, two thirds of what a step costs, and it waits for frames longer than
    that: with two a core eight episodes on two cores made 8 % fewer steps."""
    evaluation: Limit = Limit(slots=4 * CORES, deadline=15.0, stalled_after=2.0)
    """1 ms of processor."""

    def of(self, kind: OperationKind) -> Limit:
        """The bounds of a kind."""
        limit: Limit = getattr(self, kind.value)
        return limit


@dataclass(slots=True)
class KindMetrics:
    """Counts of the operations of one kind since the dispatcher was made."""

    queued: int = 0
    """Waiting now."""
    running: int = 0
    """Running now, with a slot or without."""
    done: int = 0
    failed: int = 0
    """Raised, or their episode was closed."""
    timed_out: int = 0
    cancelled: int = 0
    """Their caller was cancelled."""
    stalled: int = 0
    """Gave their slot back before they ended."""
    wait_seconds: float = 0.0
    """Sum of the waits of operations that have begun."""
    busy_seconds: float = 0.0
    """Sum of the running times of operations that have ended."""


@dataclass(frozen=True, slots=True)
class DispatcherMetrics:
    """A snapshot."""

    kinds: dict[OperationKind, KindMetrics]
    seconds: dict[str, float]
    """Slot seconds of each open episode."""


T = TypeVar("T")

QUANTUM = 0.05
"""Seconds of a slot in a round: about what a screenshot takes, the dearest operation of every
step."""
MAX_COST = 2.0
"""Seconds that an episode may owe or be owed: as long as an operation holds a slot at most, but for
navigations."""


@dataclass(slots=True, eq=False)
class _Operation:
    """One call of ``run``: queued, then running (granted), then over."""

    granted: asyncio.Future[None]
    queued_at: float
    begun_at: float | None = None
    stall_timer: asyncio.TimerHandle | None = None
    """Runs while the operation holds a slot."""
    scope: CancelScope | None = None
    """Ends it, at its deadline or when its episode is closed."""
    timed_out: bool = False


@dataclass(slots=True)
class _Lane:
    """The operations of one kind of one episode."""

    waiting: deque[_Operation] = field(default_factory=deque)
    running: _Operation | None = None


class OperationQueues:
    """The queues of one episode's browser. Made by `Dispatcher.open_queues`."""

    def __init__(self, dispatcher: Dispatcher, name: str) -> None:
        self.name = name
        self._dispatcher = dispatcher
        self._lanes = {kind: _Lane() for kind in OperationKind}
        self._closed: BrowserError | None = None

    async def run(self, kind: OperationKind, operation: Callable[[], Awaitable[T]], deadline: float | None = None) -> T:
        """Call ``operation`` when it is its turn, and return its result or raise its exception.

        An operation may not run another one of its own kind: that would wait for itself until the
        deadline. One that ignores its cancellation cannot be ended; it holds its lane, but no slot.

        Args:
            kind: Kind of the operation: its queue, slots and deadline.
            operation: Returns the awaitable; called once, or not at all.
            deadline: Seconds that it may run, instead of the kind's.

        Raises:
            BrowserError: The deadline passed, or the episode was closed.
        """
        self._refuse_if_closed(f"{kind} of {self.name}")
        return await self._dispatcher._pools[kind].run(self, operation, deadline)

    def close(self, error: BrowserError) -> None:
        """Fail all operations, those that wait and those that run, with ``error``.

        Later ones are refused. The second call does nothing.
        """
        if self._closed is not None:
            return
        self._closed = error
        self._dispatcher._open.pop(self.name)
        for pool in self._dispatcher._pools.values():
            pool.close(self)

    def _refuse_if_closed(self, what: str) -> None:
        if self._closed is not None:
            raise BrowserError(f"{what} was given up: {self._closed}") from self._closed


class Dispatcher:
    """The queues of all episodes of a browser pool.

    Example::

        dispatcher = Dispatcher()
        queues = dispatcher.open_queues("episode-7")
        jpeg = await queues.run(OperationKind.SCREENSHOT, page.screenshot)
        queues.close(BrowserError("the episode is over"))
    """

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._pools = {kind: _KindPool(kind, limits.of(kind)) for kind in OperationKind}
        self._open: dict[str, OperationQueues] = {}

    def open_queues(self, name: str) -> OperationQueues:
        """The queues of a new episode.

        Raises:
            BrowserError: one of this name is open.
        """
        if name in self._open:
            raise BrowserError(f"the episode {name} is open already; close it first or give another name")
        queues = self._open[name] = OperationQueues(self, name)
        return queues

    def close(self, error: BrowserError) -> None:
        """Close the queues of all episodes."""
        for queues in list(self._open.values()):
            queues.close(error)

    def metrics(self) -> DispatcherMetrics:
        """Return the counts of operations by kind and by episode."""
        pools = self._pools.values()
        seconds = {name: sum(pool.turns.charged(queues) for pool in pools) for name, queues in self._open.items()}
        return DispatcherMetrics({kind: replace(pool.counts) for kind, pool in self._pools.items()}, seconds)


class _KindPool:
    """The slots of one kind of operation, and whose turn it is."""

    def __init__(self, kind: OperationKind, limit: Limit) -> None:
        self.turns = DeficitRoundRobin[OperationQueues](quantum=QUANTUM, most_cost=MAX_COST)
        self.counts = KindMetrics()
        self._kind = kind
        self._limit = limit
        self._free = limit.slots

    async def run(self, queues: OperationQueues, work: Callable[[], Awaitable[T]], deadline: float | None) -> T:
        loop = asyncio.get_running_loop()
        operation = _Operation(loop.create_future(), loop.time())
        self._queue(queues, operation)
        try:
            await operation.granted
            result = await self._execute(
                queues, operation, work, self._limit.deadline if deadline is None else deadline
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
            self._end(queues, operation)

    def close(self, queues: OperationQueues) -> None:
        """End all operations of an episode that has been closed; they find the reason there."""
        lane = queues._lanes[self._kind]
        while lane.waiting:
            operation = lane.waiting.popleft()
            self.counts.queued -= 1
            if not operation.granted.done():
                operation.granted.set_result(None)
        if lane.running is not None and lane.running.scope is not None:
            lane.running.scope.cancel()
        self.turns.forget(queues)

    async def _execute(
        self, queues: OperationQueues, operation: _Operation, work: Callable[[], Awaitable[T]], deadline: float
    ) -> T:
        what = f"{self._kind} of {queues.name}"
        queues._refuse_if_closed(what)
        try:
            async with CancelScope(deadline) as operation.scope:
                return await work()
        except TimeoutError as error:
            if operation.scope is None or not operation.scope.expired:
                raise  # the operation's own
            queues._refuse_if_closed(what)
            operation.timed_out = True
            raise BrowserError(f"{what} took longer than {deadline:g} s") from error
        finally:
            operation.scope = None

    def _queue(self, queues: OperationQueues, operation: _Operation) -> None:
        lane = queues._lanes[self._kind]
        lane.waiting.append(operation)
        self.counts.queued += 1
        if lane.running is None:
            self.turns.add(queues)
            self._fill_slots()

    def _fill_slots(self) -> None:
        while self._free and (queues := self.turns.next()) is not None:
            lane = queues._lanes[self._kind]
            lane.running = operation = lane.waiting.popleft()
            self._begin(queues, operation)

    def _begin(self, queues: OperationQueues, operation: _Operation) -> None:
        loop = asyncio.get_running_loop()
        operation.begun_at = loop.time()
        operation.stall_timer = loop.call_later(self._limit.stalled_after, self._stalled, queues, operation)
        self._free -= 1
        self.counts.queued -= 1
        self.counts.running += 1
        self.counts.wait_seconds += operation.begun_at - operation.queued_at
        if not operation.granted.done():  # else its caller has just been cancelled, and ends it
            operation.granted.set_result(None)

    def _stalled(self, queues: OperationQueues, operation: _Operation) -> None:
        self.counts.stalled += 1
        self._give_back_slot(queues, operation, more=False)
        self._fill_slots()

    def _end(self, queues: OperationQueues, operation: _Operation) -> None:
        lane = queues._lanes[self._kind]
        if operation.begun_at is None:
            if operation in lane.waiting:  # else its episode has been closed
                lane.waiting.remove(operation)
                self.counts.queued -= 1
                if not lane.waiting:
                    self.turns.withdraw(queues)
            return
        lane.running = None
        self.counts.running -= 1
        self.counts.busy_seconds += asyncio.get_running_loop().time() - operation.begun_at
        if operation.stall_timer is not None:
            self._give_back_slot(queues, operation, more=bool(lane.waiting))
        elif lane.waiting:
            self.turns.add(queues)
        self._fill_slots()

    def _give_back_slot(self, queues: OperationQueues, operation: _Operation, *, more: bool) -> None:
        assert operation.begun_at is not None and operation.stall_timer is not None
        operation.stall_timer.cancel()
        operation.stall_timer = None
        self._free += 1
        self.turns.charge(queues, asyncio.get_running_loop().time() - operation.begun_at, more=more)
