"""Which errors make Prefect retry a task on a worker."""

from __future__ import annotations

import logging
import re
from typing import Any

import envs.types
from envs.types import BrowserError, JudgeError, ReadError, RollwrightError, SiteError
from tasks_lib.processes.prefect_run import log_to_task_run

PASSING = (BrowserError, SiteError, JudgeError, ReadError)
"""Errors of ours that another attempt may not meet. A full disk, a damaged file or a wrong setting stays what it is."""


def is_retriable(task: Any, task_run: Any, state: Any) -> bool:
    """Prefect's ``retry_condition_fn``: errors that are not ours may pass, and of ours some kinds.

    The task run's log says which and why.
    """
    error = state.data
    passing = isinstance(error, PASSING) or not isinstance(error, RollwrightError)
    why = "another attempt may not meet it" if passing else "another attempt would meet it again"
    log_to_task_run(task_run, task, f"attempt {task_run.run_count} failed: {type(error).__name__}: {error}; {why}")
    return passing


def is_not_reported_by_flow(record: logging.LogRecord) -> bool:
    """A filter for Prefect's log of tasks in a worker.

    It leaves out an error that the flow's process reports, once.
    """
    found = re.search(r"Finished in state Failed\(.* encountered an exception (\w+):", record.getMessage())
    kind = getattr(envs.types, found[1], None) if found else None
    return not (isinstance(kind, type) and issubclass(kind, RollwrightError) and not issubclass(kind, PASSING))
