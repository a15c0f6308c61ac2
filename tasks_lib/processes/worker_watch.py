"""Watches whether the user's own Dask cluster still has workers that take rollouts.

Dask keeps tasks that no worker can take, without a message.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import distributed

from tasks_lib.processes.dask_clients import workers_offering

LOOK_SECONDS = 5.0
"""Seconds between two looks at the scheduler's list of workers, which the client holds."""
GONE_SECONDS = 30.0
"""Seconds without a worker before a warning: a worker that its nanny restarts is back sooner."""

logger = logging.getLogger(__name__)


@contextmanager
def watched_workers(client: distributed.Client, address: str, resource: str) -> Iterator[None]:
    """Warn when no worker offers a resource any more, and log when one does again."""
    stopped = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(client, address, resource, stopped), name="dask-workers", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _watch(client: distributed.Client, address: str, resource: str, stopped: threading.Event) -> None:
    absent_seconds, warned = 0.0, False
    while not stopped.wait(LOOK_SECONDS):
        if client.status != "running" or workers_offering(client, resource):
            if warned:
                logger.warning("a worker of the Dask cluster at %s offers %r again: the run goes on", address, resource)
            absent_seconds, warned = 0.0, False
            continue
        absent_seconds += LOOK_SECONDS
        if absent_seconds >= GONE_SECONDS and not warned:
            warned = True
            logger.warning(
                "no worker of the Dask cluster at %s offers %r any more: tasks wait for one; "
                "start workers with: dask worker %s --resources %s=1 --nthreads 2",
                *(address, resource, address, resource),
            )
