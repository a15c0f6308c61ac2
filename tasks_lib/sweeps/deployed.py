"""Runs the arms of a sweep as flow runs of a deployment.

Some at a time, wherever its workers are.

The sweep only creates flow runs and waits for them. When it is stopped (Ctrl-C, SIGTERM, Prefect's cancellation) it cancels those that have
not ended: who stops a sweep means its arms, and nothing that it started is to go on unseen. Nothing is lost by it, because an arm that was
cancelled goes on when the sweep is started again. When it ends otherwise (SIGKILL, the API cannot be reached) nobody has decided anything, and they
go on; started again it finds them by their tag and name and waits for them, and cancels those of arms that are not in it any more or have
other values now.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelling

from envs.types import ConfigError
from tasks_lib.config import TrainConfig
from tasks_lib.config.parameters import GENERAL, parameters_of, values_of
from tasks_lib.folder.values import add_new_defaults
from tasks_lib.processes.interrupts import find_interrupt
from tasks_lib.report.charts import format_duration
from tasks_lib.sweeps.arms import Arm
from tasks_lib.sweeps.summary import ArmState
from tasks_lib.sweeps.sweeping import Log, Sweep, short_message

POLL = 2.0
"""Seconds between looks at the flow runs."""
PATIENCE = 30.0
"""Seconds after which it is said what is waited for; a worker looks for work every 15."""
REMIND = 300.0
"""Seconds after which it is said again."""
PAGE = 200
"""Flow runs that the API gives at once, at most."""


@dataclass(frozen=True, slots=True)
class _WaitedRun:
    """A flow run that is waited for."""

    arm: Arm
    flow_run: FlowRun
    since: float
    """When it came to its state, on the monotonic clock."""
    due: float
    """When something is to be said of it."""
    leaving: bool = False
    """It was cancelled before, and its arm begins anew once it has ended: two may not work in one folder."""

    @classmethod
    def begin(cls, arm: Arm, flow_run: FlowRun, now: float, *, leaving: bool = False) -> _WaitedRun:
        return cls(arm, flow_run, now, now + (PATIENCE if leaving or _is_unclaimed(flow_run) else REMIND), leaving)

    @property
    def state(self) -> str:
        """As Prefect names it."""
        return self.flow_run.state_name or "Pending"


def run_deployed(sweep: Sweep, log: Log) -> None:
    """Have the unfinished arms played as flow runs of ``sweep.config.deployment``, at most ``sweep.config.parallel`` at a time.

    A flow run that does not end as ``Completed``, or cannot be created, makes its arm a failed one, and the others go on. When the sweep is stopped,
    all of them are cancelled.

    Raises:
        ConfigError: the server has no such deployment.
    """
    waiting, under_way = deque(sweep.unfinished()), list[_WaitedRun]()
    with get_client(sync_client=True) as client:
        try:
            going = _runs_of_earlier_starts(client, sweep, log)
            if not waiting:
                return
            deployment = _deployment(client, sweep.config.deployment)
            while waiting or under_way:
                while waiting and len(under_way) < sweep.config.parallel:
                    arm = waiting.popleft()
                    if (begun := _begin(sweep, arm, going.pop(arm.run_id, None), log)) is not None:
                        under_way.append(begun)
                for index, each in enumerate(under_way):
                    under_way[index] = _poll(client, each, deployment, log, time.monotonic())
                for each in [each for each in under_way if each.flow_run.state_type in TERMINAL_STATES]:
                    under_way.remove(each)
                    if each.leaving:
                        waiting.appendleft(each.arm)
                    else:
                        _record_end(sweep, each, log)
                if under_way:
                    time.sleep(POLL)
        except BaseException as error:
            if find_interrupt(error) is not None or not isinstance(error, Exception):
                _cancel_all(client, sweep, under_way, log)
            else:
                for each in under_way:
                    log(_describe_left_running(each.flow_run))
            for each in under_way:
                sweep.set_state(each.arm, ArmState.INTERRUPTED)
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


def _begin(sweep: Sweep, arm: Arm, before: FlowRun | None, log: Log) -> _WaitedRun | None:
    """The flow run of an arm: the one of ``before``, which has not ended, or a new one. ``None`` if the server refuses it."""
    now = time.monotonic()
    if before is not None and before.state_type == StateType.CANCELLING:
        log(f"arm {arm.run_id}: its flow run of before is being cancelled, and it begins anew when that has ended")
        return _WaitedRun.begin(arm, before, now, leaving=True)
    if before is not None:
        log(f"arm {arm.run_id}: waiting for its flow run of before ({before.state_name})")
    else:
        log(f"arm {arm.run_id} ({arm.description}): a flow run of {sweep.config.deployment}")
        try:
            before = _create(sweep, arm)
        except PrefectHTTPStatusError as error:
            sweep.set_state(arm, ArmState.FAILED, f"its flow run could not be created: {error}")
            log(f"arm {arm.run_id} failed: {short_message(str(error))}")
            return None
    sweep.set_state(arm, ArmState.RUNNING)
    return _WaitedRun.begin(arm, before, now)


def _create(sweep: Sweep, arm: Arm) -> FlowRun:
    created = run_deployment(
        sweep.config.deployment,
        parameters=parameters_of(arm.config),
        flow_run_name=arm.run_id,
        tags=[sweep_tag(sweep.config.run_id)],
        timeout=0,  # it is waited for together with the others
        as_subflow=True,
    )
    assert isinstance(created, FlowRun), (
        "a coroutine only where an event loop runs, which there is none in a flow that is no async one"
    )
    return created


def _unfinished_runs(client: SyncPrefectClient, sweep: Sweep) -> Iterator[FlowRun]:
    """The flow runs that this sweep has created, now or before, and that have not ended."""
    chosen = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[sweep_tag(sweep.config.run_id)]),
        state=FlowRunFilterState(
            type=FlowRunFilterStateType(any_=[kind for kind in StateType if kind not in TERMINAL_STATES])
        ),
    )
    found: list[FlowRun] = []
    while len(found) % PAGE == 0:
        page = client.read_flow_runs(flow_run_filter=chosen, sort=FlowRunSort.ID_DESC, limit=PAGE, offset=len(found))
        if not page:
            break
        found += page
    root = str(sweep.config.run_dir.parent)
    return (run for run in found if run.parameters.get(GENERAL, {}).get("root") == root)


def _runs_of_earlier_starts(client: SyncPrefectClient, sweep: Sweep, log: Log) -> dict[str, FlowRun]:
    """Flow runs of earlier starts that go on, by the arm's name.

    Those of arms that are not in the sweep any more, or that have other values now, are
    cancelled.
    """
    arms, found = {arm.run_id: arm for arm in sweep.arms}, dict[str, FlowRun]()
    for run in _unfinished_runs(client, sweep):
        arm = arms.get(run.name)
        same = arm is not None and add_new_defaults(TrainConfig, values_of(run.parameters)) == arm.config.model_dump(
            mode="json"
        )
        if not same and run.state_type != StateType.CANCELLING:
            why = "its arm is not in the sweep any more" if arm is None else "its arm has other values now"
            log(f"arm {run.name}: {why}")
            run = _cancel(client, run, log)
        if arm is not None and run.state_type not in TERMINAL_STATES:
            found[run.name] = run
    return found


def _cancel_all(client: SyncPrefectClient, sweep: Sweep, under_way: list[_WaitedRun], log: Log) -> None:
    """Cancel what the sweep has created, also a flow run that it was about to wait for."""
    try:
        going = [run for run in _unfinished_runs(client, sweep) if run.state_type != StateType.CANCELLING]
        if going:
            log("the sweep is stopped, and with it its arms; start it again and they go on")
        for run in going:
            _cancel(client, run, log)
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        log(f"the flow runs cannot be cancelled: {short_message(str(error))}")
        for each in under_way:
            log(_describe_left_running(each.flow_run))


def _cancel(client: SyncPrefectClient, run: FlowRun, log: Log) -> FlowRun:
    """Have a flow run end: at once if no worker has it, else by its worker. As it is then."""
    # Prefect makes it Cancelled where nothing runs yet, and leaves one that has ended as it is.
    client.set_flow_run_state(run.id, Cancelling())
    run = client.read_flow_run(run.id)
    ended = run.state_type in TERMINAL_STATES
    log(f"arm {run.name}: its flow run {'has ended' if ended else 'is being ended by its worker'} ({run.state_name})")
    return run


def _describe_left_running(run: FlowRun) -> str:
    return (
        f"arm {run.name}: its flow run goes on without the sweep ({run.state_name}); start the sweep again to wait for it, or end it with: "
        f"prefect flow-run cancel {run.id}"
    )


def _poll(
    client: SyncPrefectClient, each: _WaitedRun, deployment: DeploymentResponse, log: Log, now: float
) -> _WaitedRun:
    """Read a flow run again, and say what is new, or what is waited for."""
    flow_run = client.read_flow_run(each.flow_run.id)
    if flow_run.state_name != each.flow_run.state_name:
        log(f"arm {each.arm.run_id}: {flow_run.state_name}")
        return _WaitedRun.begin(each.arm, flow_run, now, leaving=each.leaving)
    if now >= each.due:
        log(_waiting_for(each, deployment, now - each.since))
        return replace(each, due=now + REMIND)
    return each


def _is_unclaimed(flow_run: FlowRun) -> bool:
    """No worker has it yet."""
    return flow_run.state_type in (StateType.SCHEDULED, StateType.PENDING)


def _record_end(sweep: Sweep, ended: _WaitedRun, log: Log) -> None:
    state = ended.flow_run.state
    if state is not None and state.is_completed():
        sweep.take_result(ended.arm)
        return
    message = f": {state.message}" if state is not None and state.message else ""
    error = f"flow run {ended.flow_run.id} ended as {ended.state}{message}"
    sweep.set_state(ended.arm, ArmState.FAILED, error)
    log(f"arm {ended.arm.run_id} failed: {short_message(error)}")


def _waiting_for(each: _WaitedRun, deployment: DeploymentResponse, seconds: float) -> str:
    """What is waited for, and what to do about it if no worker has it yet."""
    line = f"arm {each.arm.run_id}: {each.state} for {format_duration(seconds)}"
    if each.leaving:
        return f"{line}; is its worker running? Where it is gone for good: prefect flow-run delete {each.flow_run.id}"
    if not _is_unclaimed(each.flow_run):
        return line
    pool = deployment.work_pool_name
    start = f"prefect worker start --pool {pool}" if pool else f"a process that serves {deployment.name}"
    return (
        f"{line}; no worker has taken it: is one running ({start}), and is there room within its --limit, the work pool's and the "
        "deployment's concurrency limit?"
    )
