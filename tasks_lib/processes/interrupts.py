"""Handles Ctrl-C: detects it behind other errors, and filters its log lines.

Only lines of Dask's or Prefect's that say that our own processes end are left out; whatever else
they log, then too, is shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from prefect.exceptions import TerminationSignal

NANNY = "distributed.nanny"
"""Logger of what looks after Dask's worker processes, in our process."""
SCHEDULER = "distributed.scheduler"
"""Logger of Dask's scheduler, in our process."""
STATES = "distributed.worker.state_machine"
"""Logger in a Dask worker."""


def find_interrupt(error: BaseException) -> BaseException | None:
    """The interrupt (Ctrl-C, Prefect's cancellation) that an error came of, such as one of tidying up after it."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, KeyboardInterrupt | TerminationSignal):
            return found
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def is_own_crash(record: logging.LogRecord) -> bool:
    """Whether Prefect says of a flow run that Ctrl-C ended it."""
    return record.name == "prefect.flow_runs" and (
        record.getMessage() == "Crash detected! Execution was aborted by an interrupt signal."
    )


def is_not_cancelled(record: logging.LogRecord) -> bool:
    """A filter for `STATES`.

    It leaves out that a worker's task was cancelled, which Dask does only where it closes a worker.
    """
    return not record.getMessage().endswith("ended with CancelledError")


class NannyLogFilter(logging.Filter):
    """While a cluster of ours is there: once it is closed because of an interrupt, its nannies do not say that they kill a worker in the middle of
    its work, nor that this broke off their own waiting for it. Before, and when it is closed for another reason, they say everything.

    Once it is closed because of any error, its scheduler does not say that results go with the workers."""

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
        """Around what is done with the cluster."""
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
