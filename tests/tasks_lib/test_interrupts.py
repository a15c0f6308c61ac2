"""Which log lines of Dask's and Prefect's are left out when a run is ended, and that others are
not."""

from __future__ import annotations

import asyncio
import logging
import signal

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


async def test_a_worker_ended_by_sigterm_is_replaced_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then a flow run that was cancelled closes its cluster, and Dask replaces no worker."""
    done: list[object] = []

    async def replace(self: distributed.Nanny, exitcode: int) -> None:
        done.append(exitcode)

    monkeypatch.setattr(distributed.Nanny, "_on_worker_exit", replace)
    monkeypatch.setattr(interrupts, "TERMINATED_SECONDS", 0.05)
    nanny = object.__new__(GroupNanny)
    for exitcode in (-signal.SIGTERM, -signal.SIGKILL):
        ended = asyncio.create_task(nanny._on_worker_exit(exitcode))
        await asyncio.sleep(0)
        done.append("flow")
        await ended
    assert done == ["flow", -signal.SIGTERM, -signal.SIGKILL, "flow"]
