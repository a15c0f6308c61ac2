"""Queues operations on pages by episode and kind, and shares slots fairly over the episodes.

Each episode has a queue for every kind of operation (navigation, input, observation, screenshot,
evaluation): those of one kind run one at a time and in order, those of different kinds side by
side, so a page is looked at while its navigation hangs. Each kind has a number of slots for the
whole pool and a deadline. When a slot frees, the episode that gets it is chosen by deficit round
robin over the seconds that each has held a slot of that kind (`DeficitRoundRobin`): there is no
barrier between steps or episodes, and an episode with slow pages does not slow the others.

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
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from envs.browser.operations import DispatcherMetrics, KindMetrics, Limit, Limits, OperationKind
from envs.cancel_scope import CancelScope
from envs.types import BrowserError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

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


@dataclass(slots=True)
class _Account:
    """The account of a key."""

    credit: float
    """Quanta granted minus costs charged, in the unit of the costs; bounded by ``most_cost`` on
    both sides."""
    round: int
    """Last round whose quantum the key has been granted."""
    charged: float = 0.0
    out: bool = False


class DeficitRoundRobin(Generic[K]):
    """Deficit round robin over keys that pay after use. Pure: it knows neither time nor tasks.

    Keys with work wait in a ring. The key at its head is served while it has credit; when it has
    none it gets one *quantum* and goes to the tail, so that a key which used much waits for as many
    rounds as it takes the others to use as much. What something costs is known only when it is
    done, so credit may fall below zero (Shreedhar and Varghese 1996, in the *surplus* form of
    Adiseshu et al. 1996, which needs no cost in advance). There is no barrier: no key ever waits
    for another one to finish.

    A key is *out* from being served until its cost is charged, and cannot be served meanwhile. The
    rounds that pass are granted to it when it is back: else a key that is out for long would fall
    behind by what it used and by what it missed. A key that has no work keeps its debt (else
    whoever asks for one operation at a time would never pay) and gets the rounds that pass set
    against it, but it keeps no credit.

    What two keys that always have work were charged differs by at most ``quantum + most_cost`` when
    one is out at a time, and by ``quantum + 2 * most_cost`` when several are. A step takes
    amortised constant time: each visit of a key that is not served hands out a quantum, and over
    time no more quanta are handed out than costs are charged, plus ``most_cost`` a key.

    Example::

        turns = DeficitRoundRobin[str](quantum=0.05, most_cost=1.0)
        turns.add("a")
        key = turns.next()
        turns.charge(key, seconds, more=True)
    """

    def __init__(self, *, quantum: float, most_cost: float) -> None:
        """
        Args:
            quantum: Cost that a key may use in a round; about the mean cost, so that one visit
                serves one operation.
            most_cost: Maximum that a key may owe or be owed, at least the usual cost of a service:
                it bounds how long a key is skipped.
        """
        if not 0 < quantum <= most_cost:
            raise ValueError(f"quantum {quantum} must be above 0 and at most most_cost {most_cost}")
        self._quantum = quantum
        self._most_cost = most_cost
        self._round = 0
        self._accounts: dict[K, _Account] = {}
        self._ring: OrderedDict[K, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys that wait for their turn."""
        return len(self._ring)

    def charged(self, key: K) -> float:
        """The sum of a key's costs; 0 of one that is not known."""
        account = self._accounts.get(key)
        return account.charged if account else 0.0

    def add(self, key: K) -> None:
        """The key has work from now on.

        Nothing changes if it waits already or is out.
        """
        account = self._accounts.setdefault(key, _Account(0.0, self._round))
        if not account.out and key not in self._ring:
            self._grant_missed(account, at_most=0.0)  # what was owed to it when its work ended is lost
            self._ring[key] = None

    def withdraw(self, key: K) -> None:
        """The key has no work any more. It keeps what it owes."""
        self._ring.pop(key, None)

    def next(self) -> K | None:
        """The key whose turn it is, which is then out until it is charged.

        Returns ``None`` if none waits.
        """
        while self._ring:
            key = next(iter(self._ring))
            account = self._accounts[key]
            if account.credit <= 0:
                account.credit += self._quantum
                account.round += 1
                self._round = max(self._round, account.round)
            if account.credit > 0:
                del self._ring[key]
                account.out = True
                return key
            self._ring.move_to_end(key)
        return None

    def charge(self, key: K, cost: float, *, more: bool) -> None:
        """Charge a key that ``next`` returned with the cost of its work.

        A key with ``more`` work goes on as long as it has credit. A key that was forgotten
        meanwhile is not charged.
        """
        account = self._accounts.get(key)
        if account is None:
            return
        if not account.out or cost < 0:
            raise ValueError(f"{key!r} cannot be charged {cost}: only a key that next() gave, and no negative cost")
        account.out = False
        account.charged += cost
        account.credit -= cost
        self._grant_missed(account, at_most=self._most_cost)
        if more:
            self._ring[key] = None
            if account.credit > 0:
                self._ring.move_to_end(key, last=False)

    def forget(self, key: K) -> None:
        """Drop a key and all that is known of it, wherever it is."""
        self._ring.pop(key, None)
        self._accounts.pop(key, None)

    def _grant_missed(self, account: _Account, *, at_most: float) -> None:
        """Grant the quanta of missed rounds, within the bounds of credit and debt."""
        missed, account.round = self._round - account.round, self._round
        account.credit = max(-self._most_cost, min(account.credit + missed * self._quantum, at_most))
