"""Lists the active flow runs of a root of runs, and approves or cancels them, by Prefect's API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.input import keyset_from_paused_state
from prefect.states import Cancelling

from envs.types import RollwrightError
from tasks_lib.processes.prefect_run import FOLDER_LABEL

ACTIVE = [StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING]
MAX_FLOW_RUNS = 200
"""Active flow runs of a server that are looked at, the newest first: its API gives no more."""


class FlowRunRefusal(RollwrightError):
    """Prefect, or this project, does not approve or cancel a flow run."""


@dataclass(frozen=True, slots=True)
class ActiveFlowRun:
    """A flow run that has not ended, and what a person may do with it."""

    id: UUID
    name: str
    state: str
    run: str
    """Name of the folder that it works on."""
    question: str | None
    """Sentence that a person is to approve; ``None`` if it waits for no approval."""
    deployed: bool
    """True if a worker runs it, which ends its processes when it is cancelled."""


async def active_flow_runs(root: Path) -> list[ActiveFlowRun]:
    """Return the active flow runs of the folders under a root, the newest first.

    Raises:
        httpx.HTTPError: Prefect's API does not answer, or refuses us.
    """
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=ACTIVE))
    async with get_client() as client:
        listed = await client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=states), sort=FlowRunSort.START_TIME_DESC, limit=MAX_FLOW_RUNS
        )
        ours = [(run, Path(folder)) for run in listed if (folder := str(run.labels.get(FOLDER_LABEL, "")))]
        return [
            ActiveFlowRun(
                id=run.id,
                name=run.name,
                state=run.state_name or "",
                run=folder.name,
                question=await _question(client, run),
                deployed=run.deployment_id is not None,
            )
            for run, folder in ours
            if folder.parent == root
        ]


async def approve_flow_run(flow_run: UUID, form: dict[str, Any]) -> None:
    """Resume a paused flow run with the answer of a person (`ApprovalForm`).

    Raises:
        FlowRunRefusal: Prefect does not accept the answer; says why.
        httpx.HTTPError: the API does not answer.
    """
    async with get_client() as client:
        _check_accepted(await client.resume_flow_run(flow_run, form))


async def cancel_flow_run(flow_run: UUID) -> None:
    """Begin to cancel a flow run, as the button of Prefect's UI does; its worker ends it.

    Raises:
        FlowRunRefusal: Prefect does not accept it; says why.
        httpx.HTTPError: the API does not answer.
    """
    async with get_client() as client:
        _check_accepted(await client.set_flow_run_state(flow_run, Cancelling(message="cancelled in the monitor")))


async def _question(client: PrefectClient, run: FlowRun) -> str | None:
    """Return the description of the form that a paused flow run shows."""
    if run.state is None or not run.state.is_paused() or not run.state.state_details.run_input_keyset:
        return None
    try:
        return str(
            orjson.loads(await client.read_flow_run_input(run.id, keyset_from_paused_state(run.state)["description"]))
        )
    except ObjectNotFound:  # it is written a moment after the state
        return None


def _check_accepted(answer: OrchestrationResult[Any]) -> None:
    if answer.status is not SetStateStatus.ACCEPT:
        reason = getattr(answer.details, "reason", None) or answer.status.value.lower()
        raise FlowRunRefusal(f"Prefect does not accept it: {reason}")
