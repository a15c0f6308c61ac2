"""Decides which errors make Prefect retry a task on a worker."""

from __future__ import annotations

import logging
import re
from typing import Any

from prefect.cache_policies import NO_CACHE

import envs.types
from envs.types import BrowserError, EngineError, JudgeError, ReadError, RollwrightError, SiteError
from tasks_lib.processes.prefect_run import log_to_task_run

TRANSIENT_ERRORS = (BrowserError, EngineError, SiteError, JudgeError, ReadError)
"""Our errors that another attempt may not meet. A full disk, a damaged file or a wrong setting
remains."""


def is_retriable(task: Any, task_run: Any, state: Any) -> bool:
    """Return True if an error may pass: Prefect's ``retry_condition_fn``.

    Errors that are not ours may pass, and `TRANSIENT_ERRORS` of ours. The task run's log says which
    and why.
    """
    error = state.data
    passing = isinstance(error, TRANSIENT_ERRORS) or not isinstance(error, RollwrightError)
    why = "another attempt may not meet it" if passing else "another attempt would meet it again"
    log_to_task_run(task_run, task, f"attempt {task_run.run_count} failed: {type(error).__name__}: {error}; {why}")
    return passing


WORKER_TASK: dict[str, Any] = {
    "retry_delay_seconds": 2,
    "retry_condition_fn": is_retriable,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""Options of Prefect's ``task`` for work on a worker, which may be done again: it is idempotent."""


def is_not_reported_by_flow(record: logging.LogRecord) -> bool:
    """Filter Prefect's log of tasks in a worker: drop errors that the flow's process reports
    once."""
    failure = re.search(r"Finished in state Failed\(.* encountered an exception (\w+):", record.getMessage())
    kind = getattr(envs.types, failure[1], None) if failure else None
    return not (isinstance(kind, type) and issubclass(kind, RollwrightError) and not issubclass(kind, TRANSIENT_ERRORS))
