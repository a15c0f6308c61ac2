"""Groups the turns of concurrent episodes into batches for one model.

`FreeBatches` takes all waiting turns whenever the model is free. `CohortBatches` makes runs exactly
repeatable. The other turns of a batch decide the last digits of a turn's log-probabilities, so a
batch holds the next turn of every open *session* of a *cohort*. Its members then depend on the
sessions alone and not on timing, unless episodes are given up.

Sessions are split into cohorts: while the model answers one cohort, the browser acts for the
others. A late session (a slow page) delays its cohort by at most ``deadline`` seconds. The batch
then closes without it and is counted as *late*, and the run is no longer exactly repeatable.
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
    """A requested turn that waits for its batch."""

    request: GenerationRequest
    turn: asyncio.Future[Generation]
    since: float
    """`time.perf_counter` at the request."""


class Batching(Protocol):
    """Decides which turns form a batch. Used from one event loop."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Return the model's turn for ``request``."""

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Open a session, see `Engine.session`."""


@dataclass(slots=True)
class ModelThread:
    """Runs batches through a blocking model, one at a time, in a separate thread."""

    generate: Callable[[Sequence[GenerationRequest]], list[Generation]]
    executor: Executor
    """Executor with one thread."""
    busy: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context that is entered on the event loop while the model generates."""
    statistics: EngineStatistics = field(default_factory=EngineStatistics)
    """Counters since this object was made."""

    async def run(self, batch: Sequence[Waiting]) -> None:
        """Generate a batch and resolve the future of each turn.

        When a batch fails, its turns are generated one by one, so that only the bad one fails. A
        foreign error (no memory, a broken picture) becomes an ``EngineError`` of the turn.
        """
        loop = asyncio.get_running_loop()
        try:
            with self.busy():
                began, ended, turns = await loop.run_in_executor(self.executor, self._generate, batch)
        except Exception as error:  # every error goes to the episodes that wait for the turns
            if len(batch) > 1:
                logger.warning("a batch of %d turns failed; its turns are generated one by one: %s", len(batch), error)
                for waiting in batch:
                    await self.run([waiting])
            elif not batch[0].turn.done():
                batch[0].turn.set_exception(_as_rollwright_error(error))
            return
        self.statistics.batches += 1
        self.statistics.turns += len(batch)
        self.statistics.seconds += ended - began
        self.statistics.waited_seconds += sum(began - waiting.since for waiting in batch)
        for waiting, turn in zip(batch, turns, strict=True):
            if not waiting.turn.done():
                waiting.turn.set_result(turn)

    def _generate(self, batch: Sequence[Waiting]) -> tuple[float, float, list[Generation]]:
        """Return the batch's start time, end time and turns.

        Runs in the model's thread, which may have finished earlier batches first.
        """
        began = time.perf_counter()
        for waiting in batch:
            waiting.request.began()
        turns = self.generate([waiting.request for waiting in batch])
        return began, time.perf_counter(), turns


def _as_rollwright_error(error: Exception) -> RollwrightError:
    if isinstance(error, RollwrightError):
        return error
    engine_error = EngineError(f"{type(error).__name__}: {error}")
    engine_error.__cause__ = error
    return engine_error


class FreeBatches:
    """Batches all waiting turns whenever the model is free. Ignores sessions."""

    def __init__(self, model: ModelThread) -> None:
        self._model = model
        self._waiting: list[Waiting] = []
        self._running: asyncio.Task[None] | None = None

    async def generate(self, request: GenerationRequest) -> Generation:
        """Return the model's turn for ``request``, generated in the next batch."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        self._waiting.append(Waiting(request, future, time.perf_counter()))
        if self._running is None:
            self._running = loop.create_task(self._run_all())
        return await future

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Return an empty context: batches wait for no session."""
        return nullcontext()

    async def _run_all(self) -> None:
        while self._waiting:
            batch, self._waiting = [waiting for waiting in self._waiting if not waiting.turn.done()], []
            if batch:
                await self._model.run(batch)
        self._running = None


class CohortBatches:
    """Batches the next turn of every open session of a cohort."""

    def __init__(self, model: ModelThread, deadline: float, cohorts: int) -> None:
        self._cohorts = [_Cohort(model, deadline) for _ in range(cohorts)]
        self._cohort_of: dict[str, _Cohort] = {}

    async def generate(self, request: GenerationRequest) -> Generation:
        """Return the model's turn for ``request``, generated in its cohort's next batch."""
        return await self._cohort_of[request.episode].generate(request)

    @asynccontextmanager
    async def session(self, episode: str) -> AsyncIterator[None]:
        """Make batches wait for the episode's next turn. It joins the smallest cohort."""
        cohort = self._cohort_of[episode] = min(self._cohorts, key=lambda cohort: cohort.open)
        cohort.open += 1
        try:
            yield
        finally:
            del self._cohort_of[episode]
            cohort.leave()


@dataclass(slots=True)
class _Cohort:
    model: ModelThread
    deadline: float
    open: int = 0
    """Number of open sessions."""
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
        """Remove one session and close the batch if it is complete now."""
        self.open -= 1
        self._close_if_complete()

    def _give_up(self, turn: asyncio.Future[Generation]) -> None:
        """Drop a cancelled turn; its session stays open and will request another one."""
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
