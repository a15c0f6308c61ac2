"""What is tried again on a worker, and how an error comes from there to the person who started the
flow."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.protocol import deserialize, serialize
from prefect.logging import disable_run_logger

from envs.types import (
    BrowserError,
    ConfigError,
    DiskError,
    JudgeError,
    PolicyError,
    ReadError,
    SiteError,
    StorageError,
    TrainingError,
)
from tasks_lib.processes.retries import is_not_reported_by_flow, is_retriable
from tasks_lib.processes.trainer import RESTARTS, Trainer
from tasks_lib.worker.event_loop import WorkerLoop
from tests.tasks_lib.damaged_run import config_of
from training.ledger.store import RunStore, write_json
from training.trainer.control.launch import TrainerProcess

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
    """Dask's serializer met a circle of an error and its group, and gave up with three hundred
    lines."""

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


class DyingTrainer:
    """A trainer that ends without having published its version, each time that it is started."""

    starts = 0

    def __init__(self, error: Path | None) -> None:
        type(self).starts += 1
        self.alive = True
        self._error = error

    def wait_for_policy(self, version: int, patience: float) -> dict[str, Any]:
        if self._error is not None:
            write_json(self._error, {"type": "TrainingError", "message": "row ghost/0"})
        raise TrainingError(f"the trainer ended at v{version}")

    def stop(self) -> None:
        self.alive = False


def starts_of_a_trainer(folder: Path, monkeypatch: pytest.MonkeyPatch, *, refuses: bool) -> int:
    store = RunStore(folder)
    error = store.trainer_path / "error.json" if refuses else None
    monkeypatch.setattr(DyingTrainer, "starts", 0)
    monkeypatch.setattr(TrainerProcess, "start", lambda *_: DyingTrainer(error))
    monkeypatch.setattr("tasks_lib.processes.trainer.banned_ids", lambda _: ())  # of a checkpoint that is not there
    with disable_run_logger(), pytest.raises(TrainingError, match="ended at v1"):
        Trainer(store, config_of(folder)).update(1)
    return DyingTrainer.starts


def test_a_trainer_that_dies_is_started_again_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert starts_of_a_trainer(tmp_path, monkeypatch, refuses=False) == 1 + RESTARTS


def test_a_trainer_that_refuses_a_batch_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert starts_of_a_trainer(tmp_path, monkeypatch, refuses=True) == 1
