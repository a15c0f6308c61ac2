"""Work of the flow process that runs as a Prefect task."""

from __future__ import annotations

import threading

import cloudpickle
import pytest
from prefect import Task

from tasks_lib.processes.prefect_run import FlowWork


def test_work_that_holds_a_lock_travels_without_it() -> None:
    """Prefect sends the task around a submitted one to Dask's workers; a server's connection cannot be pickled."""
    lock = threading.RLock()
    with pytest.raises(TypeError, match="RLock"):
        cloudpickle.dumps(lambda: lock)
    work = FlowWork(lambda: lock)
    assert work() is lock
    cloudpickle.dumps(Task(work, name="evaluate"))
    copy = cloudpickle.loads(cloudpickle.dumps(work))
    with pytest.raises(AssertionError, match="sent to another process"):
        copy()
