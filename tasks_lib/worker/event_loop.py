"""The event loop thread of a Dask worker.

Dask's threads hand it requests and wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from envs.types import BrowserError, DiskError, RollwrightError

T = TypeVar("T")

LAST_SECONDS = 2.0
"""What a request waits when its worker ends before it fails: by then Dask has told its scheduler that the worker is gone, which gives the request to
another one. Had it failed before, that would be the run's failure."""


class WorkerLoop:
    """Runs coroutines for other threads. A request is broken off when the worker ends, anything else is waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollouts", daemon=True)
        self._thread.start()
        self._requests: set[asyncio.Task[Any]] = set()
        self._ends = False

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result. Of several errors at once the first of ours, which says what to do; without one, all of them.

        Of ours a full disk comes first: others may be of what it did to the rest.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except ExceptionGroup as group:
            ours = _first(group, DiskError) or _first(group, RollwrightError)
            if ours is None:
                raise
        # Not inside: the group would become its context, and such a circle cannot be sent to the flow's process.
        raise ours

    def carry_out(self, request: Coroutine[Any, Any, T]) -> T:
        """`wait` for a request, which the end of this worker breaks off.

        Raises:
            BrowserError: it was.
        """
        try:
            if not self._ends:
                return self.wait(self._as_request(request))
            request.close()
        except CancelledError:
            if not self._ends:
                raise
        time.sleep(LAST_SECONDS)
        raise BrowserError("this Dask worker was told to end in the middle of its work; start the same command again")

    def cancel_requests(self) -> None:
        """From now on none is carried out. Those under way end where they are: their episodes are lost, the groups that are committed stay."""
        self._ends = True
        self.wait(self._break_off())

    def stop(self) -> None:
        """The loop ends, and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _as_request(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        if self._ends:  # it came while `_break_off` was on its way
            coroutine.close()
            raise asyncio.CancelledError
        self._requests.add(task)
        try:
            return await coroutine
        finally:
            self._requests.discard(task)

    async def _break_off(self) -> None:
        requests = list(self._requests)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)


def _first(group: ExceptionGroup[Exception], kind: type[RollwrightError]) -> BaseException | None:
    found: BaseException | None = group.subgroup(kind)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
