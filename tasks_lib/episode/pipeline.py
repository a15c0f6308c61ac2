"""Capture, encoding and generation overlap, with at most a few frames between them.

A *pipeline* is a row of stages. Each stage works on a bounded number of items at a time and has a bounded *queue* in front of it: an item leaves
its stage only when there is a place in the next queue, so the slowest stage sets the pace, those before it stop when their queue is full
(back-pressure), and no more screenshots pile up than the model can take.

An item goes through in the task of whoever asked for it. There are no worker tasks: the exception of a stage is raised where the item came
from and concerns no other item, cancelling the caller takes its item out wherever it is, and at the end there is nothing to shut down. Queues and
stages are first come, first served. One event loop.
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
"""Items between two stages: enough that a stage finds the next item ready when its times vary, few enough that a frame is not old when it is used."""


@dataclass(slots=True)
class StageMetrics:
    """What a stage has done."""

    queued: int = 0
    """Items in its queue now."""
    most_queued: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    """Raised, or their caller was cancelled, while the stage worked on them."""
    busy_seconds: float = 0.0
    """Sum of the times that items were worked on."""
    blocked_seconds: float = 0.0
    """Sum of the times that finished items waited for a place in the next queue."""
    waiting_seconds: float = 0.0
    """Sum of the times that items waited for this stage, before its queue and in it."""


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
    def in_threads(cls, name: str, work: Callable[[A], B], executor: Executor, *, workers: int = 1) -> Stage[A, B]:
        """A stage that runs a plain function in threads, such as encoding an image."""

        async def run(item: A) -> B:
            return await asyncio.get_running_loop().run_in_executor(executor, work, item)

        return cls(name, run, workers)

    async def enter(self) -> None:
        """Take a place in the queue; waits while it is full."""
        await self._wait(self._places)
        self.metrics.queued += 1
        self.metrics.most_queued = max(self.metrics.most_queued, self.metrics.queued)

    async def run(self, item: A) -> B:
        """Work on an item that has a place in the queue, when it is its turn. `leave` must follow, unless this raises."""
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

    async def _wait(self, turn: asyncio.Semaphore) -> None:
        started = asyncio.get_running_loop().time()
        try:
            await turn.acquire()
        finally:
            self.metrics.waiting_seconds += asyncio.get_running_loop().time() - started

    def leave(self) -> None:
        """Let the next item be worked on."""
        self.metrics.running -= 1
        self._slots.release()


class Pipeline(Generic[A, B]):
    """Stages in a row.

    Example::

        pipeline = Pipeline.of(Stage("capture", capture, workers=4)).then(Stage.in_threads("encode", encode, threads)).then(
            Stage("generate", generate, workers=16)
        )
        turn = await pipeline.run(session)
    """

    def __init__(self, stages: tuple[Stage[Any, Any], ...]) -> None:
        """Use `of` and `then`, which see to it that the types fit."""
        self.stages = stages

    @classmethod
    def of(cls, stage: Stage[A, B]) -> Pipeline[A, B]:
        """The pipeline of one stage."""
        return Pipeline((stage,))

    def then(self, stage: Stage[B, C]) -> Pipeline[A, C]:
        """This pipeline with one more stage.

        The stages are shared: bounds hold over all pipelines that a stage is in.
        """
        return Pipeline((*self.stages, stage))

    async def run(self, item: A) -> B:
        """Take an item through all stages.

        Raises:
            Exception: what a stage raised. The item is then out of the pipeline, as when the caller is cancelled.
        """
        value: Any = item
        before: Stage[Any, Any] | None = None
        for stage in self.stages:
            await _pass_on(before, stage)
            value = await stage.run(value)
            before = stage
        if before is not None:
            before.leave()
        result: B = value
        return result


async def _pass_on(before: Stage[Any, Any] | None, stage: Stage[Any, Any]) -> None:
    """From the stage where an item is done to the queue of the next.

    The worker is free once there is a place.
    """
    started = asyncio.get_running_loop().time()
    try:
        await stage.enter()
    finally:
        if before is not None:
            before.metrics.blocked_seconds += asyncio.get_running_loop().time() - started
            before.leave()
