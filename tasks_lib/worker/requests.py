"""Requests to workers and their reports: rollouts of shards, and regrading."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from envs.browser import BrowserOptions, PoolOptions
from envs.rewards import Mode, capture_page
from envs.rewards.judge import JudgeConfig
from envs.sites import LiveOptions
from envs.types import Record, WebTask
from tasks_lib.config import EndpointConfig, RewardConfig, RolloutConfig
from training.config import PolicyConfig
from training.ledger.store import RunStore
from training.records.groups import GroupSpec
from training.serving.config import ServingConfig

ActorName = Literal["policy", "oracle", "teacher"]
"""Name of the actor: the policy, the scripted oracles, or a model at an endpoint."""


class WorkerRequest(Record):
    """The web side of a request to a worker.

    Requests are small, because they travel through Prefect and Dask.
    """

    run_dir: str
    policy: PolicyConfig = PolicyConfig()
    rollout: RolloutConfig
    rewards: RewardConfig = RewardConfig()
    live: LiveOptions = LiveOptions()

    @property
    def spent_path(self) -> Path:
        """File in which the judge's budget is counted, the same for all requests of a run."""
        return RunStore(Path(self.run_dir)).spent_path()

    def pool_options(self) -> PoolOptions:
        """Return the options of its browser pool.

        Uploads come from the run's copy of its tasks' files.
        """
        return pool_options(self.rollout, self.policy, RunStore(self.run_dir).task_files_path)


class RolloutRequest(WorkerRequest):
    """One shard of groups for one worker."""

    version: int
    checkpoint: str
    """Folder of the policy version, readable by the worker."""
    groups: tuple[GroupSpec, ...]
    seed: int
    serving: ServingConfig = ServingConfig()
    servers: tuple[str, ...] = ()
    """Addresses of the vLLM servers that have the version.

    Empty where the worker has an engine of its own.
    """
    actor: ActorName = "policy"
    or_newer: bool = False
    """True if an engine that serves a newer version keeps it (asynchronous runs)."""
    teacher: EndpointConfig | None = None

    @property
    def sites(self) -> set[str]:
        """Names of the sites of its tasks."""
        return {group.task.site for group in self.groups}


class WorkerUse(Record):
    """Use of a worker from its start to one moment.

    The difference of two of them is the use between the two moments.
    """

    worker: str
    """Id of one engine in one process: only numbers with the same id can be compared."""
    seconds: float
    """Seconds of wall clock time."""
    slots: int
    """Episodes that may have a browser at once."""
    lent: float
    """Seconds that browsers were lent to episodes, added up over the browsers."""
    generating: float
    """Seconds in which its engine, or a server for it, generated at least one turn."""
    batches: int = 0
    """Generation batches of its engine; 0 where servers generate, here and below."""
    late_batches: int = 0
    """Batches that closed at the deadline without every open session."""
    turns: int = 0
    """Turns whose wait for the engine was measured."""
    waited: float = 0.0
    """Seconds that these turns waited for the engine, added up."""


class RolloutReport(Record):
    """Report on a shard; the results themselves are in the store."""

    group_ids: tuple[str, ...]
    """Groups of the request that are committed now."""
    already_committed: int
    """Number of those groups that were committed before and were not run again."""
    seconds: dict[str, float]
    """Wall seconds by activity, of all that the worker did during the shard."""
    browser: dict[str, Any] = Field(default_factory=dict)
    """Counters of the worker's browser pool so far, and the state of its connections."""
    pipeline: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Metrics of this shard by stage.

    The stages are those between capture and generation, ``reward``, and the wait for a ``permit``.
    """
    use: tuple[WorkerUse, WorkerUse] | None = None
    """Use of the worker when the shard began and when it ended.

    ``None`` if all of its groups were committed before.
    """


class GradeRequest(WorkerRequest):
    """A batch of stored episodes to be graded again by one worker."""

    name: str
    """Name of the folder of the results."""
    episodes: tuple[str, ...]
    """Ids of the episodes; all of them are episodes of ``tasks``."""
    tasks: dict[str, WebTask]
    """Tasks by id."""
    horizons: dict[str, int] = Field(default_factory=dict)
    """Horizons by episode id, where the run gave its tasks other horizons than their own."""

    def attempted(self, episode_id: str, task_id: str) -> WebTask:
        """Return the task as an episode attempted it, with the horizon that it had."""
        task, horizon = self.tasks[task_id], self.horizons.get(episode_id)
        return task if horizon is None else task.model_copy(update={"horizon": horizon})

    @property
    def spent_path(self) -> Path:
        """File in which the budget of this regrading is counted."""
        return RunStore(Path(self.run_dir)).spent_path(self.name)

    @property
    def sites(self) -> set[str]:
        """Names of the sites of its tasks."""
        return {task.site for task in self.tasks.values()}


class GradeReport(Record):
    """Report on a batch; the rewards themselves are in the store."""

    graded: int
    already_graded: int
    """Episodes that were graded under this name before and were not graded again."""
    stage: dict[str, Any] = Field(default_factory=dict)
    """Metrics of the reward stage."""


class WorkerNeeds(NamedTuple):
    """The parts of a request that engine and pool depend on.

    A request with other needs gets a new engine and a new pool.
    """

    run_dir: str
    template: str
    batching: tuple[bool, int, float]
    """Options of the local engine: deterministic, cohorts, deadline in seconds."""
    serving: ServingConfig
    servers: tuple[str, ...]
    pool: PoolOptions
    judge: JudgeConfig | None
    spent_path: Path
    """File in which the judge's budget is counted."""
    live: LiveOptions
    clip: str
    similarity: Mode
    designs: str

    @classmethod
    def of(cls, request: WorkerRequest) -> WorkerNeeds:
        rollout, rewards = request.rollout, request.rewards
        engine = (request.serving, request.servers) if isinstance(request, RolloutRequest) else (ServingConfig(), ())
        return cls(
            run_dir=request.run_dir,
            template=request.policy.template,
            batching=(rollout.deterministic, rollout.cohorts, rollout.batch_deadline),
            serving=engine[0],
            servers=engine[1],
            pool=request.pool_options(),
            judge=rollout.judge,
            spent_path=request.spent_path,
            live=request.live,
            clip=rewards.clip,
            similarity=rewards.similarity,
            designs=rollout.designs,
        )


def pool_options(rollout: RolloutConfig, policy: PolicyConfig, files: Path | None = None) -> PoolOptions:
    """Return the options of the browser pool for a rollout; ``files`` as in `PoolOptions`."""
    return PoolOptions(
        **{name: getattr(rollout, name) for name in BrowserOptions.model_fields},
        max_sessions=rollout.concurrency,
        prewarm=rollout.prewarm,
        inspect=capture_page if rollout.dom_diffs else None,
        marks=policy.observation == "set_of_marks",
        files=files,
    )
