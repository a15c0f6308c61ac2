"""Puts the turns of concurrent episodes together into batches for one model.

`FreeBatches` takes all turns that wait whenever the model is free. `CohortBatches` is for runs that are to be repeated exactly: with whom a turn
shares its batch decides the last digits of its log-probabilities, so a batch has the next turn of every open *session* of a *cohort*, and its
members are a function of the sessions alone, not of timing (but where episodes are given up). The sessions are split into cohorts: while the
model answers one cohort, the browser acts for the others. A session that is late (a slow page) holds its cohort for ``deadline`` seconds at
most; then the batch closes without it, is counted as *late*, and the run is not exactly repeatable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from envs.types import EngineError, RollwrightError
from training.serving.engine import EngineStatistics, Generation, GenerationRequest

logger = logging.getLogger(__name__)


class Waiting(NamedTuple):
    """A turn that is asked for."""

    request: GenerationRequest
    turn: asyncio.Future[Generation]
    since: float
    """When it was asked for, of `time.perf_counter`."""


class Batching(Protocol):
    """Decides which turns form a batch. Used from one event loop."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """The turn that the model makes for ``request``."""

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """As `Engine.session`."""


@dataclass(slots=True)
class ModelThread:
    """Runs batches through a model that blocks, one at a time in a thread beside the event loop."""

    generate: Callable[[Sequence[GenerationRequest]], list[Generation]]
    executor: Executor
    """One thread."""
    busy: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered on the event loop while the model generates."""
    statistics: EngineStatistics = field(default_factory=EngineStatistics)
    """Since it was made."""

    async def run(self, batch: Sequence[Waiting]) -> None:
        """Give each of a batch its turn. If a batch fails its turns are asked for one by one, so that a bad one fails alone.

        What is no error of ours (no memory, a broken picture) becomes an ``EngineError`` of the turn.
        """
        loop = asyncio.get_running_loop()
        try:
            with self.busy():
                began, ended, turns = await loop.run_in_executor(self.executor, self._generate, batch)
        except Exception as error:  # whatever it is: those who wait for it get it
            if len(batch) > 1:
                logger.warning("a batch of %d turns failed, they are asked for one by one: %s", len(batch), error)
                for each in batch:
                    await self.run([each])
            elif not batch[0].turn.done():
                batch[0].turn.set_exception(_as_ours(error))
            return
        self.statistics.batches += 1
        self.statistics.turns += len(batch)
        self.statistics.seconds += ended - began
        self.statistics.waited_seconds += sum(began - each.since for each in batch)
        for each, turn in zip(batch, turns, strict=True):
            if not each.turn.done():
                each.turn.set_result(turn)

    def _generate(self, batch: Sequence[Waiting]) -> tuple[float, float, list[Generation]]:
        """When the batch began and ended, and its turns. In the model's thread, which may have had others to make first."""
        began = time.perf_counter()
        turns = self.generate([each.request for each in batch])
        return began, time.perf_counter(), turns


def _as_ours(error: Exception) -> RollwrightError:
    if isinstance(error, RollwrightError):
        return error
    ours = EngineError(f"{type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours


class FreeBatches:
    """A batch is what waits when the model is free. Sessions make no difference."""

    def __init__(self, model: ModelThread) -> None:
        self._model = model
        self._waiting: list[Waiting] = []
        self._running: asyncio.Task[None] | None = None

    async def generate(self, request: GenerationRequest) -> Generation:
        """The turn that the model makes for ``request``, in the next batch."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        self._waiting.append(Waiting(request, future, time.perf_counter()))
        if self._running is None:
            self._running = loop.create_task(self._run_all())
        return await future

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Nothing waits for anybody."""
        return nullcontext()

    async def _run_all(self) -> None:
        while self._waiting:
            batch, self._waiting = [each for each in self._waiting if not each.turn.done()], []
            if batch:
                await self._model.run(batch)
        self._running = None


class CohortBatches:
    """A batch is the next turn of every open session of a cohort."""

    def __init__(self, model: ModelThread, deadline: float, cohorts: int) -> None:
        self._cohorts = [_Cohort(model, deadline) for _ in range(cohorts)]
        self._of: dict[str, _Cohort] = {}

    async def generate(self, request: GenerationRequest) -> Generation:
        """The turn that the model makes for ``request``, in the next batch of its session's cohort."""
        return await self._of[request.episode].generate(request)

    @asynccontextmanager
    async def session(self, episode: str) -> AsyncIterator[None]:
        """Batches wait for its next turn inside. It is put into the cohort with the fewest."""
        cohort = self._of[episode] = min(self._cohorts, key=lambda cohort: cohort.open)
        cohort.open += 1
        try:
            yield
        finally:
            del self._of[episode]
            cohort.leave()


@dataclass(slots=True)
class _Cohort:
    model: ModelThread
    deadline: float
    open: int = 0
    """Its sessions."""
    _waiting: list[Waiting] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    async def generate(self, request: GenerationRequest) -> Generation:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        if not self._waiting:
            self._timer = loop.call_later(self.deadline, self._close_late)
        self._waiting.append(Waiting(request, future, time.perf_counter()))
        self._close_if_complete()
        try:
            return await future
        except asyncio.CancelledError:
            self._give_up(future)
            raise

    def leave(self) -> None:
        """A session ends."""
        self.open -= 1
        self._close_if_complete()

    def _give_up(self, turn: asyncio.Future[Generation]) -> None:
        """Nobody waits for this turn any more; its session is still open, and comes with another one."""
        self._waiting = [waiting for waiting in self._waiting if waiting.turn is not turn]
        if not self._waiting:
            self._stop_timer()

    def _close_if_complete(self) -> None:
        if self._waiting and len(self._waiting) >= self.open:
            self._close()

    def _close_late(self) -> None:
        if self._waiting:
            self.model.statistics.late_batches += 1
            self._close()

    def _close(self) -> None:
        self._stop_timer()
        batch, self._waiting = sorted(self._waiting, key=lambda entry: entry.request.key), []
        task = asyncio.get_running_loop().create_task(self.model.run(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
