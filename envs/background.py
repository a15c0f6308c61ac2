"""Starts background tasks and logs their errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from envs.cdp.messages import target_gone

T = TypeVar("T")

logger = logging.getLogger(__name__)


def start_background(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[T]], name: str) -> asyncio.Task[T]:
    """Run ``work`` as a background task and log its error (`log_failure`).

    The task is in ``tasks`` until it ends.
    """
    task = asyncio.create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    task.add_done_callback(log_failure)
    return task


def log_failure(task: asyncio.Future[Any] | Future[Any]) -> None:
    """Log the error that a task ended with, for ``add_done_callback``.

    A cancellation is no error. That a page, a worker or the browser went away meanwhile is a debug
    message; all else is a fault, with traceback.
    """
    error = None if task.cancelled() else task.exception()
    if error is None:
        return
    name = task.get_name() if isinstance(task, asyncio.Task) else "a call"
    if target_gone(error):
        logger.debug("%s ended early: %s", name, error)
    else:
        logger.error("%s failed", name, exc_info=error)
