"""Prefect tasks for rollouts: one shard of groups on one Dask worker."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.logging import get_logger

from envs.sites import LiveOptions
from envs.types import DiskError, RollwrightError, WebTask
from tasks_lib.config import EndpointConfig, RewardConfig, RolloutConfig
from tasks_lib.folder.repair import repair_group
from tasks_lib.processes.dask_clients import BROWSER_RESOURCE, units_of_shard
from tasks_lib.processes.retries import WORKER_TASK
from tasks_lib.processes.serving import PolicyServers
from tasks_lib.processes.site_offers import needed_offers
from tasks_lib.rollouts.cluster import leave_out_workers, places_of_worker
from tasks_lib.worker.requests import ActorName, RolloutReport, RolloutRequest, WorkerUse
from tasks_lib.worker.rollout_worker import RolloutWorker
from training.config import PolicyConfig
from training.ledger.journal import read_group
from training.ledger.store import RunStore
from training.records.groups import GroupRecord, GroupSpec
from training.serving.config import ServingConfig

logger = get_logger(__name__)

MOVES = 3
"""Times that a shard is given to other workers because its own worker's storage failed."""
VISIBLE_SECONDS = 60.0
"""Longest wait for a file that a worker wrote. A network file system caches its absence for a
while."""


def describe_late_batches(batches: Mapping[str, float], deadline: float) -> str:
    """Return a warning about generation batches that closed without a slow page. Empty if none
    did."""
    late = int(batches.get("late_batches", 0))
    if not late:
        return ""
    return (
        f"{late} of {batches['batches']:.0f} generation batches closed without a page that was slower than rollout.batch_deadline ({deadline:g} s): "
        f"another run with this seed may differ in the last digits; give a greater one (60 at most) for runs that are to be repeated exactly"
    )


@task(task_run_name="roll-out-{request.groups[0].group_id}", retries=2, **WORKER_TASK)
def roll_out_shard(request: RolloutRequest) -> RolloutReport:
    """Roll out the groups of ``request`` that are not committed yet.

    Idempotent, so Dask and Prefect may run it again.
    """
    return RolloutWorker.of_this_process().roll_out(request)


@task(task_run_name="warm-up-{number}", cache_policy=NO_CACHE, persist_result=False)
def warm_up_worker(number: int, request: RolloutRequest) -> None:
    """Load what the groups of ``request`` need, in the worker that runs this."""
    RolloutWorker.of_this_process().warm_up(request)


def warm_up(request: RolloutRequest, workers: int) -> None:
    """Wait until each worker has its browser and the model.

    Workers begin to load them when they start.
    """
    with dask.annotate(resources={BROWSER_RESOURCE: places_of_worker(BROWSER_RESOURCE)}):  # one task a worker
        futures = [warm_up_worker.submit(number, request) for number in range(workers)]
    for future in futures:
        future.result()


@dataclass(frozen=True)
class RolloutResult:
    """Result of a rollout."""

    records: list[GroupRecord]
    seconds: dict[str, float]
    """Result of `seconds_of` for its shards, and ``wall``."""
    browsers: list[dict[str, Any]] = field(default_factory=list)
    """Counters and connection states of each shard's browser pool, at its end."""
    pipelines: list[dict[str, Any]] = field(default_factory=list)
    """Counts of each shard's stages between capture and generation, generation batches and reward
    stage."""
    uses: list[tuple[WorkerUse, WorkerUse]] = field(default_factory=list)
    """Use of each shard's worker, when the shard began and when it ended."""

    @property
    def batches(self) -> dict[str, float]:
        """Counts of the generation batches of all shards (`EngineStatistics`)."""
        total: Counter[str] = Counter()
        for pipeline in self.pipelines:
            total.update(pipeline.get("batches", {}))
        return dict(total)


def submit(
    request: RolloutRequest, priority: int = 0, resource: str = BROWSER_RESOURCE, *, shared: bool = False
) -> PrefectFuture[RolloutReport]:
    """Submit a shard as a Prefect task, to a worker of the cluster that offers ``resource``.

    Args:
        shared: True if other shards run beside it on its worker; else it takes all of its units.
    """
    episodes = sum(len(group.seeds) for group in request.groups)
    units = units_of_shard(episodes, places_of_worker(resource), shared=shared)
    resources = {resource: units, **needed_offers(request.sites, request.live)}
    with dask.annotate(resources=resources, priority=priority):
        return roll_out_shard.submit(request)


@dataclass(frozen=True)
class RunningShard:
    """A shard that was given to the cluster."""

    request: RolloutRequest
    future: PrefectFuture[RolloutReport]
    store: RunStore
    started: float
    """Start time in seconds of the process's monotonic clock."""
    resource: str = BROWSER_RESOURCE
    """Dask resource of the workers that may take it."""
    shared: bool = False
    """Argument of `submit`."""

    def wait(self) -> RolloutReport:
        """Wait for the shard and return its report.

        Raises:
            RollwrightError: it failed, or a group is missing although its task finished.
        """
        report = self._report()
        groups = [group.group_id for group in self.request.groups]
        deadline = time.monotonic() + VISIBLE_SECONDS
        while missing := [group_id for group_id in groups if not self.store.group_path(group_id).exists()]:
            if time.monotonic() > deadline:
                raise RollwrightError(
                    f"groups {missing[:3]} were committed and are not there {VISIBLE_SECONDS:.0f} s later; "
                    f"is {self.store.root} the same folder on every worker?"
                )
            time.sleep(0.1)
        return report

    def _report(self) -> RolloutReport:
        """Return the worker's report.

        Where only its own storage fails, that worker is retired and the shard is given to others.
        """
        future = self.future
        for _ in range(MOVES):
            try:
                return future.result()
            except DiskError as error:
                try:
                    leave_out_workers(self.store.root)
                except DiskError:
                    raise error from None
                logger.warning("%s; its groups go to other workers: %s", self.request.groups[0].group_id, error)
                future = submit(self.request, resource=self.resource, shared=self.shared)
        return future.result()


def share_groups(
    groups: Sequence[GroupSpec], *, workers: int, groups_per_task: int, live: LiveOptions
) -> list[list[GroupSpec]]:
    """Cut groups into the shards of the Prefect tasks.

    Each has ``groups_per_task`` groups; where that is 0, each worker gets an equal shard. Groups
    whose sites need other workers are in other shards.
    """
    size = groups_per_task or -(-len(groups) // max(workers, 1))
    needs = {site: tuple(sorted(needed_offers([site], live))) for site in {group.task.site for group in groups}}
    alike = defaultdict[tuple[str, ...], list[GroupSpec]](list)
    for group in groups:
        alike[needs[group.task.site]].append(group)
    return [same[start : start + size] for same in alike.values() for start in range(0, len(same), size)]


def seconds_of(reports: Sequence[RolloutReport], workers: int) -> dict[str, float]:
    """Return seconds by activity of the mean worker. Waiting for the slowest worker counts as
    idle."""
    seconds: defaultdict[str, float] = defaultdict(float)
    by_worker: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        for name, value in report.seconds.items():
            seconds[name] += value / workers
        if report.use is not None:
            by_worker[report.use[0].worker] += sum(report.seconds.values())
    # There are more names than workers where one was started again.
    seconds["idle"] += max(0.0, max(by_worker.values(), default=0.0) - sum(by_worker.values()) / workers)
    return dict(seconds)


@dataclass(frozen=True)
class Rollouts:
    """Settings for rollouts in one run folder: all but the groups and the version."""

    store: RunStore
    policy: PolicyConfig
    rollout: RolloutConfig
    seed: int
    rewards: RewardConfig = field(default_factory=RewardConfig)
    live: LiveOptions = field(default_factory=LiveOptions)
    serving: ServingConfig = field(default_factory=ServingConfig)
    servers: PolicyServers | None = None
    """Running vLLM servers; ``None`` where the engines are in the workers."""
    teacher: EndpointConfig | None = None
    """Configuration of the actor ``teacher``."""
    resource: str = BROWSER_RESOURCE
    """Dask resource of the workers that may take the shards."""
    shared: bool = False
    """True if shards run side by side on a worker (asynchronous runs)."""

    def request(
        self, groups: list[GroupSpec], version: int, actor: ActorName = "policy", *, or_newer: bool = False
    ) -> RolloutRequest:
        """Return the request for one shard, for a version that the run published."""
        return RolloutRequest(
            run_dir=str(self.store.root),
            version=version,
            checkpoint=str(self.store.policy_path(version)),
            groups=tuple(groups),
            policy=self.policy,
            rollout=self.rollout,
            rewards=self.rewards,
            seed=self.seed,
            serving=self.serving,
            servers=self.servers.addresses if self.servers is not None and actor == "policy" else (),
            live=self.live,
            actor=actor,
            or_newer=or_newer,
            teacher=self.teacher if actor == "teacher" else None,
        )

    def warm_request(self, task: WebTask, version: int) -> RolloutRequest:
        """Return a request that tells workers what to prepare while the rest starts."""
        groups = [GroupSpec(group_id="warm", task=task, seeds=(0,))]
        return self.request(groups, version, or_newer=True)  # a worker may start long after the run

    def start(self, requests: Sequence[RolloutRequest], priority: int = 0) -> list[RunningShard]:
        """Submit shards to the cluster, each as a Prefect task. A higher priority is taken
        first."""
        for group in (group for request in requests for group in request.groups):
            size, attempts = len(group.seeds), self.rollout.attempts
            if repair := repair_group(self.store, group.group_id, None, size=size, attempts=attempts):
                logger.warning(repair)
        return [
            RunningShard(
                request,
                submit(request, priority, self.resource, shared=self.shared),
                self.store,
                time.monotonic(),
                self.resource,
                self.shared,
            )
            for request in requests
        ]

    def run(self, groups: list[GroupSpec], *, version: int, workers: int, actor: ActorName = "policy") -> RolloutResult:
        """Roll out groups on the cluster with a policy version, and wait.

        Call it inside a flow with ``RolloutTaskRunner``.

        Raises:
            RollwrightError: a group is missing although its task finished.
            PolicyError, EngineError: the servers do not serve the version.
        """
        if self.servers is not None and actor == "policy":
            self.servers.publish(version)
        started = time.perf_counter()
        shares = self.rollout.groups_per_task
        shards = share_groups(groups, workers=workers, groups_per_task=shares, live=self.live)
        running = self.start([self.request(shard, version, actor) for shard in shards])
        reports = [shard.wait() for shard in running]
        wall = time.perf_counter() - started
        seconds = seconds_of(reports, min(workers, len(shards)))
        records = [read_group(self.store, group.group_id) for group in groups]
        return RolloutResult(
            records,
            {**seconds, "wall": wall},
            [report.browser for report in reports if report.browser],
            [report.pipeline for report in reports if report.pipeline],
            [report.use for report in reports if report.use is not None],
        )
