"""The Dask cluster of a run: a local one, or an existing one.

``use_cluster`` starts what the run's configuration asks for, and ``RolloutTaskRunner`` submits to
it, so that one flow definition serves a laptop and a cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from contextvars import ContextVar
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask
import distributed
from prefect import Flow
from prefect.context import FlowRunContext, SettingsContext, get_settings_context
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect_dask import DaskTaskRunner, PrefectDaskClient
from pydantic import PrivateAttr

from envs.sites import LiveOptions
from envs.types import ConfigError, DiskError, RollwrightError, TrainingError
from tasks_lib.config import ClusterConfig, RolloutConfig
from tasks_lib.folder.values import record_browsers
from tasks_lib.processes.browser_versions import browser_versions, describe_differences
from tasks_lib.processes.dask_clients import (
    BROWSER_RESOURCE,
    EVALUATION_RESOURCE,
    PRELOAD,
    connect_client,
    places_offered,
    run_on_workers,
    worker_settings,
    workers_for,
    workers_offering,
)
from tasks_lib.processes.interrupts import GroupNanny, NannyLogFilter, block_interrupts
from tasks_lib.processes.own_server import api_url
from tasks_lib.processes.retries import TRANSIENT_ERRORS
from tasks_lib.processes.site_offers import check_offers
from tasks_lib.processes.worker_watch import watched_workers
from tasks_lib.worker.requests import RolloutRequest
from tasks_lib.worker.rollout_worker import RolloutWorker, group_topic
from training.environment import DASK_TCP_SECONDS
from training.ledger.disk import try_to_write
from training.ledger.store import RunStore

logger = logging.getLogger(__name__)

TELL_SECONDS = 900.0
"""Longest call of a worker (`tell_workers`), such as to load a policy. Longer than a vLLM server
may take to load one (`serving.vllm.engine.ARRIVAL_SECONDS`)."""
TRIAL_SECONDS = 30.0
"""Longest trial of writing to the run's folder. A lost network file system never answers."""

_current: ContextVar[distributed.deploy.Cluster | str | None] = ContextVar("rollwright_cluster", default=None)
_connection: ContextVar[distributed.Client | None] = ContextVar("rollwright_client", default=None)
_places: ContextVar[dict[str, int]] = ContextVar("rollwright_places")
"""Units that a worker offers, by resource."""


@contextmanager
def use_cluster(
    config: ClusterConfig,
    warm: RolloutRequest | None,
    places: int = 1,
    *,
    evaluator: bool = False,
    sites: Collection[str] = (),
    live: LiveOptions | None = None,
) -> Iterator[int]:
    """Open a cluster with the rollout plugin on every worker.

    Yields the number of workers that can run rollouts.

    Args:
        places: Units of the resource that each worker must offer. Local workers start with this
            many.
        evaluator: Have one more worker, which plays evaluations only.
        sites: Sites of the tasks.
        live: Addresses of live sites, and recipes that serve them.

    Raises:
        ConfigError: the scheduler cannot be reached, or no worker offers the ``browser`` resource,
            or ``evaluation`` where it is needed, or one offers too few units, or none can serve a
            site.
    """
    prefect_api = api_url()
    with open_cluster(config, places, evaluator=evaluator) as client:
        worker_count = len(workers_for(client, config.address, BROWSER_RESOURCE, places))
        for resource in (BROWSER_RESOURCE, *[EVALUATION_RESOURCE] * evaluator):
            check_offers(client, sites, live or LiveOptions(), resource)
        client.register_plugin(RolloutWorker(warm))
        token, connection = _current.set(client.cluster or config.address), _connection.set(client)
        offered = {resource: places_offered(client, resource) for resource in (BROWSER_RESOURCE, EVALUATION_RESOURCE)}
        offer = _places.set(offered)
        try:
            watch = watched_workers(client, config.address, BROWSER_RESOURCE) if config.address else nullcontext()
            with temporary_settings({PREFECT_API_URL: prefect_api}), _TaskSettings.current(), watch:
                yield worker_count
        finally:
            _current.reset(token)
            _connection.reset(connection)
            _places.reset(offer)


@contextmanager
def open_cluster(config: ClusterConfig, places: int = 1, *, evaluator: bool = False) -> Iterator[distributed.Client]:
    """Open a cluster with nothing on its workers, and yield a client of it.

    Arguments and errors are those of `use_cluster`.
    """
    logging.getLogger("distributed").setLevel(logging.WARNING)
    dask.config.set(
        {
            "distributed.scheduler.allowed-failures": 5,
            "distributed.admin.tick.limit": "30s",
            # The scheduler runs in this process and keeps so many messages, 20 kB each where they
            # start a task; 1,000 by default.
            "distributed.admin.low-level-log-length": 50,
            # A killed worker is started again. On a busy machine that takes longer than Dask's
            # 15 s, after which Dask would give it up for good.
            "distributed.deploy.lost-worker-timeout": "1h",
            "distributed.comm.timeouts.tcp": f"{DASK_TCP_SECONDS}s",
            **worker_settings(config.workers + evaluator),
        }
    )
    with _cluster(config, places, evaluator) as cluster, connect_client(cluster) as client:
        workers_for(client, config.address, BROWSER_RESOURCE, places)
        if evaluator:
            workers_for(client, config.address, EVALUATION_RESOURCE)
        yield client


def places_of_worker(resource: str) -> int:
    """Return the units of a resource that each worker of the current cluster offers."""
    return _places.get()[resource]


def follow_groups(run_dir: Path, seen: Callable[[str], None]) -> None:
    """Call ``seen``, in a thread of Dask's, with the id of each group that a worker commits.

    A message can be lost when its worker dies; the result of the shard reports the group anyway.
    Without a cluster this does nothing.
    """
    if (client := _connection.get()) is not None:
        client.subscribe_topic(group_topic(str(run_dir)), lambda event: seen(event[1]))


def scheduler_address() -> str:
    """Return the address of the current cluster's scheduler."""
    return str(_client().scheduler.address)


def tell_workers(function: Callable[..., Coroutine[Any, Any, None]], *values: Any) -> None:
    """Run a coroutine function on every worker that plays training groups, and wait.

    Failures that may pass, such as a worker that dies, are logged, and so is one that has not
    answered in `TELL_SECONDS`.

    Raises:
        RollwrightError: it failed on a worker, as it would again.
        TrainingError: No worker has answered.
    """
    client = _client()
    workers = workers_offering(client, BROWSER_RESOURCE)
    failures = run_on_workers(client, function, *values, workers=workers, seconds=TELL_SECONDS)
    if failures and all(isinstance(failure, TimeoutError) for failure in failures.values()):
        raise TrainingError(
            f"no worker has run {function.__name__} in {TELL_SECONDS:g} s; those that hang: {', '.join(failures)}"
        )
    for worker, failure in failures.items():
        if isinstance(failure, RollwrightError) and not isinstance(failure, TRANSIENT_ERRORS):
            raise failure
        if failure is not None:
            logger.warning(
                "%s did not run on worker %s: %s: %s", function.__name__, worker, type(failure).__name__, failure
            )


def record_workers_browsers(store: RunStore, rollout: RolloutConfig) -> None:
    """Write the versions of the workers' Chromiums to ``config.json``, and warn where they differ.

    Browsers that do not start are left out: their episodes say why. Nothing is written of a browser
    at ``browser_address``.
    """
    if rollout.browser_address:
        return
    client = _client()
    workers = [*workers_offering(client, BROWSER_RESOURCE), *workers_offering(client, EVALUATION_RESOURCE)]
    versions = browser_versions(client, workers)
    record_browsers(store, versions.values())
    if differences := describe_differences(versions):
        logger.warning("workers have different browsers, so equal episodes may differ: %s", differences)


def leave_out_workers(folder: Path) -> list[str]:
    """Retire the workers that cannot write to a folder, and return their addresses.

    A worker is retired only where this process and other workers can write there.

    Raises:
        DiskError: this process cannot write either, or no worker can.
    """
    try_to_write(folder)
    client = _client()
    workers = workers_offering(client, BROWSER_RESOURCE)
    results = run_on_workers(client, _try_to_write, str(folder), workers=workers)
    broken = {worker: error for worker, error in results.items() if isinstance(error, DiskError | TimeoutError)}
    for worker, error in broken.items():
        if len(broken) == len(workers):
            raise DiskError(f"no worker can write to {folder}: {error or f'no answer in {TRIAL_SECONDS:g} s'}")
        logger.warning(
            "worker %s is left out, since it cannot write to %s (%s): mend its storage, and start it again",
            worker,
            folder,
            error or f"no answer in {TRIAL_SECONDS:g} s",
        )
    if broken:
        client.retire_workers(list(broken))
    return list(broken)


async def _try_to_write(folder: str) -> None:
    await asyncio.wait_for(asyncio.to_thread(try_to_write, Path(folder)), TRIAL_SECONDS)


def _client() -> distributed.Client:
    client = _connection.get()
    if client is None:
        raise ConfigError("no cluster: call this inside `with use_cluster(...)`")
    return client


@contextmanager
def _cluster(config: ClusterConfig, places: int, evaluator: bool) -> Iterator[distributed.deploy.Cluster | str]:
    if config.address:
        yield config.address
        return
    environment = dict(os.environ)
    try:
        with (
            NannyLogFilter() as nannies,
            closing(_empty_cluster(places)) as cluster,
            nannies.record_failure(),
        ):
            spec = cluster.new_spec
            cluster.worker_spec = dict.fromkeys(range(config.workers), spec)
            if evaluator:
                options = {**spec["options"], "resources": {EVALUATION_RESOURCE: places}}
                cluster.worker_spec[config.workers] = {**spec, "options": options}
            # Dask's own ``sync`` would cancel the start at Ctrl-C, and half-started workers cannot
            # be closed.
            asyncio.run_coroutine_threadsafe(_wait_until_started(cluster), cluster.loop.asyncio_loop).result()
            yield cluster
    finally:
        # Nannies set the workers' environment in this process too, and leave it there.
        for name in dask.config.get("distributed.nanny.pre-spawn-environ"):
            os.environ.pop(name, None)
            if name in environment:
                os.environ[name] = environment[name]


def _empty_cluster(places: int) -> distributed.LocalCluster:
    """Start a scheduler without workers, whose later workers ignore SIGINT from the first
    instruction.

    Ctrl-C reaches all processes of a terminal. A worker hit while it imports modules would print a
    traceback, and its nanny another. So only this process is interrupted, at any moment after this
    one, and it closes the workers.
    """
    # Started here because a thread of Dask's that starts it would unblock SIGINT for itself.
    resource_tracker.ensure_running()
    with block_interrupts():  # Dask's threads inherit the mask, and workers theirs
        return distributed.LocalCluster(
            n_workers=0,
            threads_per_worker=places + 1,
            processes=True,
            worker_class=GroupNanny,
            resources={BROWSER_RESOURCE: places},
            preload=[PRELOAD],
            dashboard_address="127.0.0.1:0",  # None would take port 8787
            host="127.0.0.1",
            memory_limit=0,
        )


async def _wait_until_started(cluster: distributed.LocalCluster) -> None:
    """Wait until all workers are up; an error of their start is raised."""
    await cluster


class _TaskSettings(SettingsContext):
    """Prefect's settings, which go with each task, serialized once.

    Serializing them each time took a third of the time of submitting a task.
    """

    _serialized: dict[str, Any] | None = PrivateAttr(None)

    @classmethod
    def current(cls) -> _TaskSettings:
        current = get_settings_context()
        return cls(profile=current.profile, settings=current.settings)

    def serialize(self, include_secrets: bool = True) -> dict[str, Any]:
        if not include_secrets:
            return super().serialize(include_secrets=False)
        if self._serialized is None:
            self._serialized = super().serialize()
        return self._serialized


def _name_only(flow: Flow[..., Any]) -> Flow[..., Any]:
    """Return a flow of the same name, version and task runner, which is all that tasks need.

    The whole flow (its code and the schema of its parameters) was three quarters of each message
    that starts a task.
    """
    return Flow(_elsewhere, name=flow.name, version=flow.version, task_runner=flow.task_runner)


def _elsewhere() -> None:
    raise RuntimeError("this flow runs in another process: tasks know its name only")


class _TaskClient(PrefectDaskClient):  # type: ignore[misc]
    """Gives tasks random keys, and only the name of their flow.

    Dask's own keys, a hash of all that goes with a task, differ each time too: the task run's id is
    in them.
    """

    _flow: tuple[Flow[..., Any], Flow[..., Any]] | None = None
    """A flow, and its name-only copy that goes with tasks."""

    def submit(self, func: Any, *args: Any, pure: bool = False, **options: Any) -> distributed.Future:
        with self._small_context():
            return super().submit(func, *args, pure=pure, **options)

    def _small_context(self) -> AbstractContextManager[object]:
        context = FlowRunContext.get()
        if context is None or context.flow is None:
            return nullcontext()
        if self._flow is None or self._flow[0] is not context.flow:
            self._flow = context.flow, _name_only(context.flow)
        return context.model_copy(update={"flow": self._flow[1]})


class RolloutTaskRunner(DaskTaskRunner):  # type: ignore[misc]
    """Task runner of flows that roll out; submits to the cluster of ``use_cluster``."""

    @property
    def client(self) -> PrefectDaskClient:
        """The client of that cluster, connected at the first ``submit``."""
        if self._client is None:  # type: ignore[has-type]
            cluster = _current.get()
            if cluster is None:
                raise ConfigError("no cluster: submit rollouts inside `with use_cluster(...)`")
            self._client = self._exit_stack.enter_context(_TaskClient(cluster, **self.client_kwargs))
        return self._client
