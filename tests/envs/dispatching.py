"""What the tests of the dispatcher share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from envs.browser.dispatcher import Dispatcher, Limit, Limits


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
