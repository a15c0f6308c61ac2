"""Batches concurrent episodes' turns: a *batch* closes when every slot of its *cohort* waits.

A slot plays one episode after the other and has one turn in each batch. So the members of a batch are a function of the plan alone, not of
timing (but where episodes are given up), and a run can be repeated exactly: with whom a turn shares its batch decides the last digits of
its log-probabilities. The slots of a worker are split into cohorts, each with a batcher of
its own over one engine: while the model answers one cohort, the browser acts for the others. A slot that is late (a slow page) holds its cohort
for ``deadline`` seconds at most; then the batch closes without it, is counted as *late*, and the run is not exactly repeatable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from training.inference.engine import Generation, GenerationRequest, InferenceEngine


@dataclass(slots=True)
class BatchStatistics:
    """Counters since the batcher was made."""

    waves: int = 0
    turns: int = 0
    late_waves: int = 0
    """Waves that closed by the deadline, without every live slot."""
    seconds: float = 0.0
    """Wall seconds in which the engine was generating."""

    def __add__(self, other: BatchStatistics) -> BatchStatistics:
        return BatchStatistics(
            self.waves + other.waves,
            self.turns + other.turns,
            self.late_waves + other.late_waves,
            self.seconds + other.seconds,
        )


@dataclass(slots=True)
class InferenceBatcher:
    """Gives each ``generate`` its turn in the next batch. Used from one event loop; the engine runs in a thread beside it."""

    engine: InferenceEngine
    deadline: float
    busy: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered on the event loop while the engine generates: for those who account for time."""
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "generate"))
    """One thread, shared by the batchers of one engine."""
    statistics: BatchStatistics = field(default_factory=BatchStatistics)
    _live: int = 0
    _waiting: list[tuple[GenerationRequest, asyncio.Future[Generation]]] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A slot is live inside: batches wait for its next turn, be it of this episode or of the next one."""
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1
            self._close_if_complete()

    async def generate(self, request: GenerationRequest) -> Generation:
        """The turn that the engine makes for ``request``, in the next batch."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        if not self._waiting:
            self._timer = loop.call_later(self.deadline, self._close_late)
        self._waiting.append((request, future))
        self._close_if_complete()
        try:
            return await future
        except asyncio.CancelledError:
            self._leave(future)
            raise

    def close(self) -> None:
        """Let go of the engine's thread."""
        self.executor.shutdown(wait=False, cancel_futures=True)

    def _in_engine_thread(self, requests: list[GenerationRequest]) -> asyncio.Future[list[Generation]]:
        return asyncio.get_running_loop().run_in_executor(self.executor, self.engine.generate, requests)

    def _leave(self, turn: asyncio.Future[Generation]) -> None:
        """Nobody waits for this turn any more; its slot is still live, and comes with another one."""
        self._waiting = [waiting for waiting in self._waiting if waiting[1] is not turn]
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_complete(self) -> None:
        if self._waiting and len(self._waiting) >= self._live:
            self._close()

    def _close_late(self) -> None:
        if self._waiting:
            self.statistics.late_waves += 1
            self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = sorted(self._waiting, key=lambda entry: entry[0].key), []
        task = asyncio.get_running_loop().create_task(self._run(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, batch: list[tuple[GenerationRequest, asyncio.Future[Generation]]]) -> None:
        started = time.perf_counter()
        try:
            requests = [request for request, _ in batch]
            with self.busy():
                turns = await self._in_engine_thread(requests)
        except Exception as error:  # whatever it is: each of those who wait for the batch gets it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        self.statistics.waves += 1
        self.statistics.turns += len(batch)
        self.statistics.seconds += time.perf_counter() - started
        for (_, future), turn in zip(batch, turns, strict=True):
            if not future.done():
                future.set_result(turn)
