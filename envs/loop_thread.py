"""An event loop in a thread of its own, which a busy loop of the caller does not delay."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A thread that runs coroutines, from `start` to `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """True between start and close."""
        return self._loop is not None

    def start(self) -> None:
        """Start the thread. Starting twice is one start."""
        if self._thread is not None:
            return
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = runner.get_loop()
        self._thread = threading.Thread(target=_run_forever, args=(runner,), name=self._name, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``work`` in the thread, which must be running."""
        assert self._loop is not None, "start it first"
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` in the thread, which must be running."""
        return await asyncio.wrap_future(self.begin(work))

    async def close(self) -> None:
        """Cancel what runs, and end the loop and the thread."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)


def _run_forever(runner: asyncio.Runner) -> None:
    with runner:  # which cancels what is still running at the end
        loop = runner.get_loop()
        asyncio.set_event_loop(loop)
        loop.run_forever()
