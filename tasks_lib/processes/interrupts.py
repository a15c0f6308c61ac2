"""Handles Ctrl-C: detects it behind other errors, and filters its log lines.

Only lines of Dask's or Prefect's that say that our own processes end are left out; every other line
is shown.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import distributed
from prefect.exceptions import TerminationSignal

NANNY = "distributed.nanny"
"""Logger of the nannies of Dask's worker processes, in our process."""
SCHEDULER = "distributed.scheduler"
"""Logger of Dask's scheduler, in our process."""
STATES = "distributed.worker.state_machine"
"""Logger of the task states in a Dask worker."""


TERMINATED_SECONDS = 3.0
"""Seconds for a flow run whose process group got SIGTERM to begin closing its cluster."""


def find_interrupt(error: BaseException) -> BaseException | None:
    """Return the interrupt that caused an error: Ctrl-C or Prefect's cancellation.

    The error may come from tidying up after it.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, KeyboardInterrupt | TerminationSignal):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def is_not_cancelled(record: logging.LogRecord) -> bool:
    """Filter for `STATES` that drops cancelled tasks: Dask cancels them only where it closes a
    worker."""
    return not record.getMessage().endswith("ended with CancelledError")


class NannyLogFilter(logging.Filter):
    """Drops lines of Dask's about our own cluster while it closes because of an error.

    After an interrupt its nannies do not say that they kill a busy worker, nor that their wait for
    it was cancelled. After any error its scheduler does not say that results are lost with the
    workers. Otherwise they say everything.
    """

    interrupted = failed = False

    def __enter__(self) -> Self:
        for name in (NANNY, SCHEDULER):
            logging.getLogger(name).addFilter(self)
        return self

    def __exit__(self, *_error: object) -> None:
        for name in (NANNY, SCHEDULER):
            logging.getLogger(name).removeFilter(self)

    @contextmanager
    def record_failure(self) -> Iterator[None]:
        """Record the error that ends the block, which holds the use of the cluster."""
        try:
            yield
        except BaseException as error:
            self.failed, self.interrupted = True, find_interrupt(error) is not None
            raise

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == SCHEDULER:
            return not (self.failed and "lose already computed task(s)" in record.getMessage())
        broken_off = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
        killed = record.getMessage().startswith("Worker process still alive after")
        return not (self.interrupted and (broken_off or killed))


class GroupNanny(distributed.Nanny):  # type: ignore[misc]
    """Nanny whose worker shares our process group.

    Prefect's process worker cancels a flow run by a SIGTERM to its whole process group. The close
    of the cluster would wait for workers that take the place of those that the signal has ended,
    12 s on a busy machine. So a worker that SIGTERM has ended is started again a little later.
    """

    async def _on_worker_exit(self, exitcode: int | None) -> None:
        if exitcode == -signal.SIGTERM:
            await asyncio.sleep(TERMINATED_SECONDS)
        await super()._on_worker_exit(exitcode)


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Hold SIGINT back in this thread; threads and processes started meanwhile inherit that for
    good."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
