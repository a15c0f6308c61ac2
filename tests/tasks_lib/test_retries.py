"""What is tried again on a worker, and how an error comes from there to the person who started the flow."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest
from distributed.protocol import deserialize, serialize

from envs.types import BrowserError, ConfigError, DiskError, JudgeError, PolicyError, ReadError, SiteError, StorageError
from tasks_lib.processes.retries import is_not_reported_by_flow, is_retriable
from tasks_lib.worker.event_loop import WorkerLoop

LASTING = (ConfigError, DiskError, PolicyError, StorageError)
PASSING = (BrowserError, SiteError, JudgeError, ReadError, ValueError, OSError)


@pytest.mark.parametrize("kind", [*LASTING, *PASSING])
def test_what_stays_as_it_is_is_not_tried_again_and_is_said_once(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr("tasks_lib.processes.retries.log_to_task_run", lambda _run, _task, line: logged.append(line))
    state = SimpleNamespace(data=kind("the site is gone"))
    assert is_retriable(None, SimpleNamespace(run_count=2), state) is (kind in PASSING)
    (line,) = logged
    assert line.startswith(f"attempt 2 failed: {kind.__name__}: the site is gone; another attempt ")
    message = f"Finished in state Failed('Task run encountered an exception {kind.__name__}: x')"
    record = logging.makeLogRecord({"name": "prefect.task_runs", "msg": message})
    assert is_not_reported_by_flow(record) is (kind in PASSING)
    record.msg = "Finished in state Completed()"
    assert is_not_reported_by_flow(record)


def test_of_several_errors_a_full_disk_is_the_one_and_it_reaches_the_flow() -> None:
    """Dask's serializer met a circle of an error and its group, and gave up with three hundred lines."""

    async def fail(error: Exception) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError as cause:
            raise error from cause

    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(fail(BrowserError("its profile cannot be written")))
            inner.create_task(fail(ValueError("x")))
            inner.create_task(fail(DiskError("cannot write x: no space left on the disk")))

    loop = WorkerLoop()
    with pytest.raises(DiskError) as said:
        loop.carry_out(all_at_once())
    loop.stop()
    other = deserialize(*serialize(said.value))
    assert type(other) is DiskError and str(other) == str(said.value)
