"""Asyncio pipelines whose stages overlap, with bounded queues between them.

A *pipeline* is a row of stages. Each stage works on a bounded number of items at a time and has a
bounded *queue* in front of it. An item leaves its stage only when the next queue has a place, so
the slowest stage sets the pace. The stages before it stop when their queue is full (back-pressure),
and captured screenshots do not pile up before the model.

An item passes through all stages in the asyncio task of its caller; there are no worker tasks. So
the exception of a stage is raised at the caller and concerns no other item. Cancelling the caller
takes its item out wherever it is, and there is nothing to shut down. Queues and stages are first
come, first served. Used from one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from envs.types import ConfigError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

QUEUE = 4
"""Most items between two stages.

Enough that a stage finds the next item ready although its times vary, and few enough that a
captured page is not old when it is used.
"""


@dataclass(slots=True)
class StageMetrics:
    """Counters of a stage."""

    queued: int = 0
    """Items in its queue now."""
    most_queued: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    """Items that the stage failed on, or whose caller was cancelled during its work."""
    busy_seconds: float = 0.0
    """Seconds that items were worked on, summed over the items."""
    blocked_seconds: float = 0.0
    """Seconds that finished items waited for a place in the next queue, summed over the items."""
    waiting_seconds: float = 0.0
    """Seconds that items waited before the queue of this stage and in it, summed over the items."""


@dataclass(frozen=True, eq=False)
class Stage(Generic[A, B]):
    """One kind of work on an item."""

    name: str
    work: Callable[[A], Awaitable[B]]
    workers: int = 1
    """Items that are worked on at a time."""
    queue: int = QUEUE
    """Items that may wait in front of it."""
    metrics: StageMetrics = field(default_factory=StageMetrics, init=False)
    _places: asyncio.Semaphore = field(init=False)
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        if self.workers < 1 or self.queue < 1:
            raise ConfigError(f"stage {self.name}: workers and queue must be at least 1")
        object.__setattr__(self, "_places", asyncio.Semaphore(self.queue))
        object.__setattr__(self, "_slots", asyncio.Semaphore(self.workers))

    @classmethod
    def in_threads(cls, name: str, work: Callable[[A], B], executor: Executor) -> Stage[A, B]:
        """Return a stage that runs a plain function in threads, such as encoding an image."""

        async def run(item: A) -> B:
            return await asyncio.get_running_loop().run_in_executor(executor, work, item)

        return cls(name, run, 1)

    async def enter(self) -> None:
        """Take a place in the queue; wait while it is full."""
        await self._wait(self._places)
        self.metrics.queued += 1
        self.metrics.most_queued = max(self.metrics.most_queued, self.metrics.queued)

    async def run(self, item: A) -> B:
        """Work on an item that has a place in the queue, when its turn comes.

        The caller calls `leave` afterwards, unless this raises.
        """
        try:
            await self._wait(self._slots)
        finally:
            self.metrics.queued -= 1
            self._places.release()
        self.metrics.running += 1
        started = asyncio.get_running_loop().time()
        try:
            result = await self.work(item)
        except BaseException:
            self.metrics.failed += 1
            self.leave()
            raise
        finally:
            self.metrics.busy_seconds += asyncio.get_running_loop().time() - started
        self.metrics.done += 1
        return result

    async def _wait(self, semaphore: asyncio.Semaphore) -> None:
        started = asyncio.get_running_loop().time()
        try:
            await semaphore.acquire()
        finally:
            self.metrics.waiting_seconds += asyncio.get_running_loop().time() - started

    def leave(self) -> None:
        """Let the next item be worked on."""
        self.metrics.running -= 1
        self._slots.release()


class Pipeline(Generic[A, B]):
    """Stages in a row.

    Example::

        pipeline = (
            Pipeline.of(Stage("capture", capture, workers=4))
            .then(Stage.in_threads("encode", encode, threads))
            .then(Stage("generate", generate, workers=16))
        )
        turn = await pipeline.run(session)
    """

    def __init__(self, stages: tuple[Stage[Any, Any], ...]) -> None:
        """Internal; use `of` and `then`, which check the types of the stages."""
        self.stages = stages

    @classmethod
    def of(cls, stage: Stage[A, B]) -> Pipeline[A, B]:
        """Return the pipeline of one stage."""
        return Pipeline((stage,))

    def then(self, stage: Stage[B, C]) -> Pipeline[A, C]:
        """Return this pipeline with one more stage.

        The stages are shared: their bounds hold over all pipelines that contain them.
        """
        return Pipeline((*self.stages, stage))

    async def run(self, item: A) -> B:
        """Take an item through all stages.

        Raises:
            Exception: an error of a stage. The item has then left the pipeline, as it has when the
                caller is cancelled.
        """
        value: Any = item
        previous: Stage[Any, Any] | None = None
        for stage in self.stages:
            await _pass_on(previous, stage)
            value = await stage.run(value)
            previous = stage
        if previous is not None:
            previous.leave()
        result: B = value
        return result


async def _pass_on(previous: Stage[Any, Any] | None, stage: Stage[Any, Any]) -> None:
    """Move a finished item from its stage to the queue of the next.

    Its stage can work on another item as soon as the queue has a place.
    """
    started = asyncio.get_running_loop().time()
    try:
        await stage.enter()
    finally:
        if previous is not None:
            previous.metrics.blocked_seconds += asyncio.get_running_loop().time() - started
            previous.leave()
