"""Reports a flow to Prefect: log lines, named tasks and events.

Outside a flow run nothing is reported.
"""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

import httpx
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas import TaskRun
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.flow_engine import FlowRunEngine
from prefect.logging.handlers import APILogHandler
from prefect.logging.loggers import PrefectLogAdapter, flow_run_logger, task_run_logger
from prefect.states import Cancelled, Completed
from prefect.task_engine import SyncTaskRunEngine

from tasks_lib.processes.lease import use_patient_leases
from tasks_lib.processes.server_watch import retry_until_reachable

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

use_patient_leases()  # here, because every flow imports this module before Prefect's engine runs it

FOLDER_LABEL = "rollwright.folder"
"""Label of a flow run with the folder of its run."""

INTERRUPTED = "interrupted by Ctrl-C; start the same command again to go on"


def _cancel_on_interrupt(engine: type[Any]) -> None:
    """Make an engine of Prefect's end a run as Cancelled after Ctrl-C, which it calls a crash
    (3.8.8)."""
    handle_crash = engine.handle_crash

    def handle(run: Any, error: BaseException) -> None:
        if not isinstance(error, KeyboardInterrupt):
            handle_crash(run, error)
            return
        run.logger.info(INTERRUPTED)
        run.set_state(Cancelled(message=INTERRUPTED), force=True)
        run._raised = error

    engine.handle_crash = handle


_cancel_on_interrupt(FlowRunEngine)
_cancel_on_interrupt(SyncTaskRunEngine)


def _api_only() -> logging.Logger:
    """Return a logger for the flow run's log only; the console has its lines already."""
    logger = logging.getLogger("rollwright.flow_runs")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        logger.addHandler(APILogHandler())
    return logger


def log_to_flow_run(line: str) -> None:
    """Write a line to the log of the current flow run."""
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        extra = flow_run_logger(context.flow_run, context.flow).extra
        PrefectLogAdapter(_api_only(), extra=extra).info(line)


def log_to_task_run(task_run: TaskRun, task: Task[..., Any], line: str) -> None:
    """Write a line to the log of a task run, from its own process."""
    PrefectLogAdapter(_api_only(), extra=task_run_logger(task_run, task).extra).info(line)


RUN_HERE: set[str] = set()
"""Names of the tasks that `run_as_task` has run in this process.

They are tried once, so the flow ends with their errors and reports them.
"""


class FlowWork:
    """A task's function that stays in this process.

    Prefect sends the task that runs around a submitted one to Dask's workers, with everything that
    its function refers to (a connection, a lock). The workers never call it.
    """

    __slots__ = ("_work",)  # Prefect copies an object's __dict__ into its task

    def __init__(self, work: Callable[[], Any] | None) -> None:
        self._work = work

    def __call__(self) -> object:
        assert self._work is not None, "this copy of a task was sent to another process"
        return self._work()

    def __reduce__(self) -> tuple[Any, ...]:
        return FlowWork, (None,)


def run_as_task(name: str, run_name: str, work: Callable[[], Result]) -> Result:
    """Run ``work`` in this process, as a Prefect task of the flow run.

    Args:
        name: Name of the task, the same in all runs: ``evaluate``.
        run_name: Name of this task run: ``evaluate-v000003``.
    """
    if FlowRunContext.get() is None:
        return work()
    RUN_HERE.add(name)
    task = Task(FlowWork(work), name=name, task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False)
    return cast(Result, task())


def announce_run(flow: str, run_id: str, folder: Path, *, mode: str = "", preset: str = "") -> None:
    """Tag the flow run with ``run:…``, ``mode:…`` and ``preset:…``, label it with its folder, and
    emit ``rollwright.run.started``.

    Prefect 3.8.8 fills missing context of an event, such as a task run, from the context of the
    process's first event. So this is called before the first task, and later events are related to
    the flow run only.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    flow_run = context.flow_run
    _started.append(flow_run.id)
    labels = {"run": run_id, "mode": mode, "preset": preset}
    tags = {*flow_run.tags, *(f"{name}:{value}" for name, value in labels.items() if value)}
    with get_client(sync_client=True) as client:
        retry_until_reachable(lambda: client.update_flow_run(flow_run.id, tags=sorted(tags)))
    label_folder(folder)
    emit("rollwright.run.started", run_id, {"flow": flow})


def label_folder(folder: Path) -> None:
    """Label the current flow run with the folder of its run, by which the monitor knows it."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    flow_run = context.flow_run
    with get_client(sync_client=True) as client:
        retry_until_reachable(lambda: client.update_flow_run_labels(flow_run.id, {FOLDER_LABEL: str(folder)}))


def completed(sentence: str, result: Result) -> Result:
    """Return what a flow returns to end with a sentence as its state's message.

    Prefect shows the sentence with the flow run and as the last line of its log, and gives the
    caller of the flow the result.
    """
    return result if FlowRunContext.get() is None else cast(Result, Completed(message=sentence, data=result))


OWN_TAGS = ("run:", "mode:", "preset:")
"""Beginnings of the tags that `announce_run` adds."""

AUTOMATIC = ("schedule", "automation", "deployment")
"""Kinds of Prefect's creators of a flow run that are no persons."""


def describe_start() -> dict[str, Any]:
    """Return who starts the current flow run, and the names by which Prefect knows it.

    Keys: ``by`` (the person or schedule that Prefect names, else the user of this machine),
    ``flow_run``, ``deployment`` and ``tags``; the last three are empty outside a flow run.
    """
    by = _user()
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return {"by": by, "flow_run": "", "deployment": "", "tags": []}
    flow_run, deployment = context.flow_run, ""
    if (deployment_id := flow_run.deployment_id) is not None:
        with get_client(sync_client=True) as client:
            deployment = retry_until_reachable(lambda: client.read_deployment(deployment_id)).name
    if (creator := flow_run.created_by) is not None and creator.display_value:
        kind = (creator.type or "").lower()
        by = f"{kind} {creator.display_value}" if kind in AUTOMATIC else creator.display_value
    tags = sorted(tag for tag in flow_run.tags if not tag.startswith(OWN_TAGS))
    return {"by": by, "flow_run": flow_run.name, "deployment": deployment, "tags": tags}


def _user() -> str:
    """Return the name of the user of this process; its number where the machine has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user is only a number
        return f"user {os.getuid()}"


_started: list[UUID] = []
"""Flow runs of this process, the outermost first."""


def mark_cancelled() -> None:
    """Set the state of this process's flow runs to Cancelled, where Ctrl-C left their engine no
    time for it."""
    if not _started:
        return
    try:
        with get_client(sync_client=True) as client:
            for flow_run in reversed(_started):
                if client.read_flow_run(flow_run).state_name in ("Crashed", "Running"):
                    client.set_flow_run_state(flow_run, Cancelled(message=INTERRUPTED), force=True)
    except httpx.HTTPError as error:
        logger.warning("the flow run is not marked as cancelled: %s", error)


def emit(event: str, run_id: str, payload: dict[str, Any]) -> None:
    """Emit an event of a run, such as ``rollwright.version.published``; Prefect automations can act
    on it."""
    if FlowRunContext.get() is not None:
        resource = {"prefect.resource.id": f"rollwright.run.{run_id}", "prefect.resource.name": run_id}
        emit_event(event=event, resource=resource, payload=payload)
