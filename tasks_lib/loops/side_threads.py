"""Threads of an asynchronous run's flow: each does one piece of work that blocks."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SideWork:
    """Work in a thread of its own."""

    future: Future[Any]
    began: float
    """Monotonic time of its start."""

    @property
    def done(self) -> bool:
        """True once it has ended."""
        return self.future.done()

    def result(self) -> Any:
        """Return its result, or raise its error, once it is done."""
        return self.future.result()


class SideThreads:
    """Starts work in threads of the flow run, and notifies its owner when each ends.

    Args:
        notify: Called in the work's own thread when it has ended.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._threads: list[threading.Thread] = []

    @property
    def busy(self) -> bool:
        """True while any of the work is under way."""
        return any(thread.is_alive() for thread in self._threads)

    def start(self, work: Callable[..., Any], *values: Any) -> SideWork:
        """Run ``work`` in another thread, as part of this flow run.

        The thread does not outlive the process: an interrupt waits for no work.
        """
        future: Future[Any] = Future()
        future.add_done_callback(lambda _: self._notify())
        context, began = contextvars.copy_context(), time.monotonic()

        def run() -> None:
            try:
                future.set_result(context.run(work, *values))
            except BaseException as error:  # raised where the result is asked for
                future.set_exception(error)

        thread = threading.Thread(target=run, name=getattr(work, "__name__", "beside"), daemon=True)
        thread.start()
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
        return SideWork(future, began)
