"""Arms as flow runs of a deployment: some at a time, wherever its workers are.

The sweep only creates flow runs and waits for them. When it is stopped they go on; started again it finds those that do, by their tag and name, and
waits for them instead of creating others. So it does when it ended because the API could not be reached.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from envs.types import ConfigError
from tasks_lib.report.charts import duration
from tasks_lib.sweeps.arms import Arm
from tasks_lib.sweeps.summary import ArmState
from tasks_lib.sweeps.sweeping import Say, Sweep, one_line

POLL = 2.0
"""Seconds between looks at the flow runs."""
PATIENCE = 30.0
"""Seconds after which it is said what is waited for; a worker looks for work every 15."""
REMIND = 300.0
"""Seconds after which it is said again."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A flow run that is waited for."""

    arm: Arm
    flow_run: FlowRun
    since: float
    """When it came to its state, on the monotonic clock."""
    due: float
    """When something is to be said of it."""

    @classmethod
    def begin(cls, arm: Arm, flow_run: FlowRun, now: float) -> _UnderWay:
        return cls(arm, flow_run, now, now + (PATIENCE if _unclaimed(flow_run) else REMIND))

    @property
    def state(self) -> str:
        """As Prefect names it."""
        return self.flow_run.state_name or "Pending"


def run_deployed(sweep: Sweep, say: Say) -> None:
    """Have the unfinished arms played as flow runs of ``sweep.config.deployment``, at most ``sweep.config.parallel`` at a time.

    A flow run that does not end as ``Completed``, or cannot be created, makes its arm a failed one, and the others go on.

    Raises:
        ConfigError: the server has no such deployment.
    """
    waiting, under_way = deque(sweep.unfinished()), list[_UnderWay]()
    if not waiting:
        return
    with get_client(sync_client=True) as client:
        deployment = _deployment(client, sweep.config.deployment)
        try:
            while waiting or under_way:
                while waiting and len(under_way) < sweep.config.parallel:
                    arm = waiting.popleft()
                    if (flow_run := _begin(client, sweep, arm, say)) is not None:
                        under_way.append(_UnderWay.begin(arm, flow_run, time.monotonic()))
                for index, each in enumerate(under_way):
                    under_way[index] = _look(client, each, deployment, say, time.monotonic())
                for each in [each for each in under_way if each.flow_run.state_type in TERMINAL_STATES]:
                    under_way.remove(each)
                    _take(sweep, each, say)
                if under_way:
                    time.sleep(POLL)
        except BaseException:
            for each in under_way:
                sweep.set_state(each.arm, ArmState.INTERRUPTED)
                say(
                    f"arm {each.arm.run_id}: its flow run goes on without the sweep ({each.state}); start the sweep again to wait for it, or end it "
                    f"with: prefect flow-run cancel {each.flow_run.id}"
                )
            raise


def sweep_tag(run_id: str) -> str:
    """The tag of a sweep's flow runs."""
    return f"sweep:{run_id}"


def _deployment(client: SyncPrefectClient, name: str) -> DeploymentResponse:
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        raise ConfigError(
            f"deployment: the Prefect server at {client.api_url} has no {name!r}; `prefect deployment ls` lists those it has, "
            "`prefect --no-prompt deploy --all` creates those of prefect.yaml"
        ) from None


def _begin(client: SyncPrefectClient, sweep: Sweep, arm: Arm, say: Say) -> FlowRun | None:
    """The flow run of an arm: one that goes on, or a new one. ``None`` if the server refuses it."""
    if (flow_run := _still_going(client, sweep, arm)) is not None:
        say(f"arm {arm.run_id}: waiting for its flow run of before ({flow_run.state_name})")
    else:
        say(f"arm {arm.run_id} ({arm.told}): a flow run of {sweep.config.deployment}")
        try:
            flow_run = _create(sweep, arm)
        except PrefectHTTPStatusError as error:
            sweep.set_state(arm, ArmState.FAILED, f"its flow run could not be created: {error}")
            say(f"arm {arm.run_id} failed: {one_line(str(error))}")
            return None
    sweep.set_state(arm, ArmState.RUNNING)
    return flow_run


def _create(sweep: Sweep, arm: Arm) -> FlowRun:
    created = run_deployment(
        sweep.config.deployment,
        parameters={"config": arm.config.model_dump(mode="json")},
        flow_run_name=arm.run_id,
        tags=[sweep_tag(sweep.config.run_id)],
        timeout=0,  # it is waited for together with the others
        as_subflow=True,
    )
    assert isinstance(created, FlowRun), (
        "a coroutine only where an event loop runs, which there is none in a flow that is no async one"
    )
    return created


def _still_going(client: SyncPrefectClient, sweep: Sweep, arm: Arm) -> FlowRun | None:
    """A flow run of this arm that an earlier start created and that has not ended."""
    found = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            name=FlowRunFilterName(any_=[arm.run_id]),
            tags=FlowRunFilterTags(all_=[sweep_tag(sweep.config.run_id)]),
            state=FlowRunFilterState(
                type=FlowRunFilterStateType(any_=[kind for kind in StateType if kind not in TERMINAL_STATES])
            ),
        )
    )
    mine = (run for run in found if run.parameters.get("config", {}).get("root") == arm.config.root)
    return next(mine, None)


def _look(
    client: SyncPrefectClient, each: _UnderWay, deployment: DeploymentResponse, say: Say, now: float
) -> _UnderWay:
    """Read a flow run again, and say what is new, or what is waited for."""
    flow_run = client.read_flow_run(each.flow_run.id)
    if flow_run.state_name != each.flow_run.state_name:
        say(f"arm {each.arm.run_id}: {flow_run.state_name}")
        return _UnderWay.begin(each.arm, flow_run, now)
    if now >= each.due:
        say(_waiting_for(each, deployment, now - each.since))
        return replace(each, due=now + REMIND)
    return each


def _unclaimed(flow_run: FlowRun) -> bool:
    """No worker has it yet."""
    return flow_run.state_type in (StateType.SCHEDULED, StateType.PENDING)


def _take(sweep: Sweep, ended: _UnderWay, say: Say) -> None:
    state = ended.flow_run.state
    if state is not None and state.is_completed():
        sweep.take_result(ended.arm)
        return
    message = f": {state.message}" if state is not None and state.message else ""
    error = f"flow run {ended.flow_run.id} ended as {ended.state}{message}"
    sweep.set_state(ended.arm, ArmState.FAILED, error)
    say(f"arm {ended.arm.run_id} failed: {one_line(error)}")


def _waiting_for(each: _UnderWay, deployment: DeploymentResponse, seconds: float) -> str:
    """What is waited for, and what to do about it if no worker has it yet."""
    told = f"arm {each.arm.run_id}: {each.state} for {duration(seconds)}"
    if not _unclaimed(each.flow_run):
        return told
    pool = deployment.work_pool_name
    start = f"prefect worker start --pool {pool}" if pool else f"a process that serves {deployment.name}"
    return (
        f"{told}; no worker has taken it: is one running ({start}), and is there room within its --limit, the work pool's and the "
        "deployment's concurrency limit?"
    )
