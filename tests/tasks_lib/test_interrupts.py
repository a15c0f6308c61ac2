"""Which log lines of Dask's and Prefect's are left out when a run is ended, and that others are
not."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

import distributed
import pytest

from tasks_lib.processes import interrupts
from tasks_lib.processes.interrupts import NANNY, GroupNanny, NannyLogFilter, is_not_cancelled

KILLS = "Worker process still alive after 4.0 seconds, killing"
ENDS: list[type[BaseException]] = [KeyboardInterrupt, ValueError]


def record(message: str, logger: str, error: BaseException | None = None) -> logging.LogRecord:
    return logging.LogRecord(logger, 30, "", 1, message, None, (type(error), error, None) if error else None)


@pytest.mark.parametrize("end", ENDS)
def test_nannies_are_quiet_about_interrupts_alone(end: type[BaseException]) -> None:
    nanny = logging.getLogger(NANNY)

    def said() -> list[bool]:
        lines = (
            record(KILLS, NANNY),
            record("", NANNY, asyncio.CancelledError()),
            record("", NANNY, OSError("no memory")),
            record("Restarting worker", NANNY),
        )
        return [bool(nanny.filter(line)) for line in lines]

    with pytest.raises(end), NannyLogFilter() as nannies:
        try:
            with nannies.record_failure():
                assert all(said())
                raise end
        finally:  # the cluster is closed here
            assert said() == ([False, False, True, True] if end is KeyboardInterrupt else [True] * 4)
    assert all(said())


def test_an_interrupt_behind_another_error_counts() -> None:
    with pytest.raises(OSError), NannyLogFilter() as nannies, nannies.record_failure():
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError("while tidying up")
    assert nannies.interrupted


def test_only_the_line_of_a_closed_worker_is_left_out() -> None:
    logger = "distributed.worker.state_machine"
    assert not is_not_cancelled(record("Async instruction for <Task cancelled> ended with CancelledError", logger))
    assert is_not_cancelled(record("Could not find data", logger))


@pytest.mark.parametrize(("by", "replaced"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
async def test_a_worker_ended_by_sigterm_is_not_replaced_at_once(
    monkeypatch: pytest.MonkeyPatch, by: signal.Signals, replaced: bool
) -> None:
    """A cancelled flow run closes its cluster meanwhile, and Dask replaces no worker then."""
    monkeypatch.setattr(interrupts, "TERMINATED_SECONDS", 3600.0)
    options: dict[str, Any] = {"nthreads": 1, "memory_limit": None, "dashboard_address": None}
    async with (
        distributed.Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler,
        GroupNanny(scheduler.address, host="127.0.0.1", **options) as nanny,
    ):
        first = nanny.pid
        os.kill(first, by)
        while nanny.pid == first or (scheduler.workers and not replaced):
            await asyncio.sleep(0.01)
        while replaced and nanny.pid is None:
            await asyncio.sleep(0.01)
        assert (nanny.process.status != distributed.Status.stopped) == replaced
