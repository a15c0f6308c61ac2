"""Runs the arms of a sweep as flow runs of a deployment.

A few run at a time, on the deployment's workers. The sweep only creates flow runs and waits for
them. When it is stopped (Ctrl-C, SIGTERM, Prefect's cancellation) it cancels those that have not
ended, so that nothing it started goes on unseen. Nothing is lost, because a cancelled arm goes on
when the sweep is started again. When the sweep ends otherwise (SIGKILL, the API cannot be reached)
its flow runs go on. Started again, it finds them by their tag and name and waits for them, and
cancels those whose arms were dropped or have other values now.
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

POLL_SECONDS = 2.0
"""Seconds between two readings of the flow runs."""
FIRST_MESSAGE_SECONDS = 30.0
"""Seconds before the first message about a wait; a worker polls for work every 15."""
MESSAGE_SECONDS = 300.0
"""Seconds between later messages about the same wait."""
PAGE = 200
"""Maximum number of flow runs that the API returns at once."""


@dataclass(frozen=True, slots=True)
class _WaitedRun:
    """A flow run that the sweep waits for."""

    arm: Arm
    flow_run: FlowRun
    since: float
    """Monotonic time at which it came to its state."""
    due: float
    """Monotonic time of the next message about it."""
    cancelled: bool = False
    """True if it was cancelled before. Its arm starts anew once it has ended, because two may not
    work in one folder."""

    @classmethod
    def begin(cls, arm: Arm, flow_run: FlowRun, now: float, *, cancelled: bool = False) -> _WaitedRun:
        return cls(
            arm,
            flow_run,
            now,
            now + (FIRST_MESSAGE_SECONDS if cancelled or _is_unclaimed(flow_run) else MESSAGE_SECONDS),
            cancelled,
        )

    @property
    def state(self) -> str:
        """Prefect's name of its state."""
        return self.flow_run.state_name or "Pending"


def run_deployed(sweep: Sweep, log: Log) -> None:
    """Run the unfinished arms as flow runs of ``sweep.config.deployment``.

    At most ``sweep.config.parallel`` run at a time. A flow run that does not end as ``Completed``,
    or cannot be created, makes its arm a failed one, and the others go on. When the sweep is
    stopped, all of them are cancelled.

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
                for index, waited in enumerate(under_way):
                    under_way[index] = _poll(client, waited, deployment, log, time.monotonic())
                for waited in [waited for waited in under_way if waited.flow_run.state_type in TERMINAL_STATES]:
                    under_way.remove(waited)
                    if waited.cancelled:
                        waiting.appendleft(waited.arm)
                    else:
                        _record_end(sweep, waited, log)
                if under_way:
                    time.sleep(POLL_SECONDS)
        except BaseException as error:
            if find_interrupt(error) is not None or not isinstance(error, Exception):
                _cancel_all(client, sweep, under_way, log)
            else:
                for waited in under_way:
                    log(_describe_left_running(waited.flow_run))
            for waited in under_way:
                sweep.set_state(waited.arm, ArmState.INTERRUPTED)
            raise


def sweep_tag(run_id: str) -> str:
    """Return the tag of a sweep's flow runs."""
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
    """Return the flow run of an arm: the unfinished one of ``before``, or a new one.

    Returns ``None`` if the server refuses it.
    """
    now = time.monotonic()
    if before is not None and before.state_type == StateType.CANCELLING:
        log(f"arm {arm.run_id}: its flow run of before is being cancelled, and it begins anew when that has ended")
        return _WaitedRun.begin(arm, before, now, cancelled=True)
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
        timeout=0,  # `run_deployed` waits for it together with the others
        as_subflow=True,
    )
    assert isinstance(created, FlowRun), (
        "a coroutine only where an event loop runs, which there is none in a flow that is no async one"
    )
    return created


def _unfinished_runs(client: SyncPrefectClient, sweep: Sweep) -> Iterator[FlowRun]:
    """Return the unfinished flow runs that this sweep has created, now or before."""
    chosen = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[sweep_tag(sweep.config.run_id)]),
        state=FlowRunFilterState(
            type=FlowRunFilterStateType(any_=[kind for kind in StateType if kind not in TERMINAL_STATES])
        ),
    )
    runs: list[FlowRun] = []
    while len(runs) % PAGE == 0:
        page = client.read_flow_runs(flow_run_filter=chosen, sort=FlowRunSort.ID_DESC, limit=PAGE, offset=len(runs))
        if not page:
            break
        runs += page
    root = str(sweep.config.run_dir.parent)
    return (run for run in runs if run.parameters.get(GENERAL, {}).get("root") == root)


def _runs_of_earlier_starts(client: SyncPrefectClient, sweep: Sweep, log: Log) -> dict[str, FlowRun]:
    """Return flow runs of earlier starts that go on, by the arm's name.

    Those of arms that were dropped, or that have other values now, are cancelled.
    """
    arms, running = {arm.run_id: arm for arm in sweep.arms}, dict[str, FlowRun]()
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
            running[run.name] = run
    return running


def _cancel_all(client: SyncPrefectClient, sweep: Sweep, under_way: list[_WaitedRun], log: Log) -> None:
    """Cancel all flow runs that the sweep has created, including those it does not wait for yet."""
    try:
        going = [run for run in _unfinished_runs(client, sweep) if run.state_type != StateType.CANCELLING]
        if going:
            log("the sweep is stopped, and with it its arms; start it again and they go on")
        for run in going:
            _cancel(client, run, log)
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        log(f"the flow runs cannot be cancelled: {short_message(str(error))}")
        for waited in under_way:
            log(_describe_left_running(waited.flow_run))


def _cancel(client: SyncPrefectClient, run: FlowRun, log: Log) -> FlowRun:
    """Cancel a flow run and return its new state.

    It ends at once if no worker has it, else by its worker.
    """
    # Prefect sets Cancelled where nothing runs yet, and leaves an ended run as it is.
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
    client: SyncPrefectClient, waited: _WaitedRun, deployment: DeploymentResponse, log: Log, now: float
) -> _WaitedRun:
    """Read a flow run again, and log its new state, or the wait for it."""
    flow_run = client.read_flow_run(waited.flow_run.id)
    if flow_run.state_name != waited.flow_run.state_name:
        log(f"arm {waited.arm.run_id}: {flow_run.state_name}")
        return _WaitedRun.begin(waited.arm, flow_run, now, cancelled=waited.cancelled)
    if now >= waited.due:
        log(_describe_wait(waited, deployment, now - waited.since))
        return replace(waited, due=now + MESSAGE_SECONDS)
    return waited


def _is_unclaimed(flow_run: FlowRun) -> bool:
    """Return True if no worker has taken it yet."""
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


def _describe_wait(waited: _WaitedRun, deployment: DeploymentResponse, seconds: float) -> str:
    """Describe a wait, and what to do if no worker has taken the flow run."""
    line = f"arm {waited.arm.run_id}: {waited.state} for {format_duration(seconds)}"
    if waited.cancelled:
        return f"{line}; is its worker running? Where it is gone for good: prefect flow-run delete {waited.flow_run.id}"
    if not _is_unclaimed(waited.flow_run):
        return line
    pool = deployment.work_pool_name
    start = f"prefect worker start --pool {pool}" if pool else f"a process that serves {deployment.name}"
    return (
        f"{line}; no worker has taken it: is one running ({start}), and is there room within its --limit, the work pool's and the "
        "deployment's concurrency limit?"
    )
