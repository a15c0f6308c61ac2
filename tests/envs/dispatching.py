"""What the tests of the dispatcher share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from envs.browser.dispatcher import Dispatcher
from envs.browser.operations import Limit, Limits, OperationKind
from envs.types import BrowserError


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


async def at_rest(dispatcher: Dispatcher, limits: Limits | None = None) -> bool:
    """Whether nothing is queued, running or held by anyone: of as many new operations as there are
    slots, and one more, the last one waits."""
    if any(metrics.queued or metrics.running for metrics in dispatcher.metrics().kinds.values()):
        return False
    for kind in OperationKind:
        slots = (limits or Limits()).of(kind).slots
        probes = [dispatcher.open_queues(f"probe {number}") for number in range(slots + 1)]
        work = [asyncio.create_task(queues.run(kind, never)) for queues in probes]
        await asyncio.sleep(0)
        metrics = dispatcher.metrics().kinds[kind]
        for queues in probes:
            queues.close(BrowserError("it was a probe"))
        await asyncio.gather(*work, return_exceptions=True)
        if (metrics.running, metrics.queued) != (slots, 1):
            return False
    return True
