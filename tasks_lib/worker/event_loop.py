"""The event loop thread of a Dask worker.

Dask's threads hand requests to it and wait.
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
"""Seconds that a request waits before it fails, when its worker ends.

By then Dask's scheduler knows that the worker is gone and gives the request to another one. An
earlier failure would be the run's failure.
"""


class WorkerLoop:
    """Runs coroutines for other threads.

    When the worker ends, requests are cancelled and everything else is waited for.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollouts", daemon=True)
        self._thread.start()
        self._requests: set[asyncio.Task[Any]] = set()
        self._ends = False

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result.

        Of several errors at once, the first `RollwrightError` is raised, because it says what to
        do; a `DiskError` comes before the others, which may be its consequences. Without one, the
        whole group is raised.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except ExceptionGroup as group:
            ours = _first(group, DiskError) or _first(group, RollwrightError)
            if ours is None:
                raise
        # Outside of `except`: else the group would become its context, and such a circle cannot be
        # pickled for the flow's process.
        raise ours

    def carry_out(self, request: Coroutine[Any, Any, T]) -> T:
        """Run a request as `wait` does; the end of this worker cancels it.

        Raises:
            BrowserError: the worker ended before the request was done.
        """
        try:
            if not self._ends:
                return self.wait(self._as_request(request))
            request.close()
        except CancelledError:
            if not self._ends:
                raise
        time.sleep(LAST_SECONDS)
        raise BrowserError("this Dask worker was ended in the middle of its work; start the same command again")

    def cancel_requests(self) -> None:
        """Cancel the requests under way and refuse new ones.

        Episodes under way are lost; committed groups stay.
        """
        self._ends = True
        self.wait(self._cancel_all())

    def stop(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _as_request(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        if self._ends:  # it came after `_cancel_all` was scheduled
            coroutine.close()
            raise asyncio.CancelledError
        self._requests.add(task)
        try:
            return await coroutine
        finally:
            self._requests.discard(task)

    async def _cancel_all(self) -> None:
        requests = list(self._requests)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)


def _first(group: ExceptionGroup[Exception], kind: type[RollwrightError]) -> BaseException | None:
    error: BaseException | None = group.subgroup(kind)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
