"""Requests to workers and their reports: rollouts of shards, and regrading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from envs.browser import Device, PoolOptions
from envs.rewards import Mode, capture_page
from envs.rewards.judge import JudgeConfig
from envs.sites import LiveOptions
from envs.types import Record, WebTask
from tasks_lib.config import DeviceConfig, RewardConfig, RolloutConfig, TeacherConfig
from training.config import PolicyConfig
from training.groups import GroupSpec
from training.ledger.store import RunStore
from training.serving.config import ServingConfig

ActorName = Literal["policy", "oracle", "teacher"]
"""Who decides: the policy, or for demonstrations the task kinds' scripted oracles or a teacher."""


class WorkerRequest(Record):
    """What a worker is told of the web side. Requests are small: they travel through Prefect and Dask."""

    run_dir: str
    policy: PolicyConfig = PolicyConfig()
    rollout: RolloutConfig
    rewards: RewardConfig = RewardConfig()
    live: LiveOptions = LiveOptions()

    @property
    def spent_path(self) -> Path:
        """Where its judge's budget is counted: one for all requests of a run."""
        return RunStore(Path(self.run_dir)).spent_path()

    def pool_options(self) -> PoolOptions:
        """The browser pool that it asks for; uploads come from the run's copy of its tasks' files."""
        return replace(pool_options(self.rollout, self.policy), files=RunStore(self.run_dir).task_files_path)


class RolloutRequest(WorkerRequest):
    """One shard of groups for one worker."""

    version: int
    checkpoint: str
    """Folder of the policy version, readable by the worker."""
    groups: tuple[GroupSpec, ...]
    seed: int
    serving: ServingConfig = ServingConfig()
    servers: tuple[str, ...] = ()
    """Addresses of the vLLM servers that have the version; none where the engine is the worker's own."""
    actor: ActorName = "policy"
    or_newer: bool = False
    """An engine that serves a newer version keeps it (asynchronous runs)."""
    teacher: TeacherConfig | None = None


class WorkerUse(Record):
    """How much of a worker was in use, from when it began to one moment: two of them tell what it did between."""

    worker: str
    """Of one engine in one process: only numbers of the same one can be compared."""
    seconds: float
    """Wall clock."""
    slots: int
    """Episodes that may have a browser at once."""
    lent: float
    """Seconds that browsers were lent to episodes, added up over the browsers."""
    generating: float
    """Seconds in which its engine made at least one turn, or servers made one for it."""
    batches: int = 0
    """Of its engine; 0 where servers make them, here and below."""
    late_batches: int = 0
    """Of those: without every open session (`EngineStatistics`)."""
    turns: int = 0
    """Whose wait for the engine was measured."""
    waited: float = 0.0
    """Seconds that these turns waited for the engine, added up."""


class RolloutReport(Record):
    """What a shard came to; the results themselves are in the store."""

    group_ids: tuple[str, ...]
    """Groups of the request that are committed now."""
    already_committed: int
    """How many of them were there before and were not run again."""
    seconds: dict[str, float]
    """Wall seconds by activity, of all that the worker did meanwhile."""
    browser: dict[str, Any] = Field(default_factory=dict)
    """What the worker's browser pool has done so far, and the state of its connections."""
    pipeline: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What the stages between capture and generation did in this shard, the stage of ``reward``s, and the wait for a ``permit``."""
    use: tuple[WorkerUse, WorkerUse] | None = None
    """Of the worker, when the shard began and when it ended; ``None`` where all of it was there before."""


class GradeRequest(WorkerRequest):
    """A batch of stored episodes to be graded again by one worker."""

    name: str
    """Of the folder of the results."""
    episodes: tuple[str, ...]
    """Their ids; all of the tasks below."""
    tasks: dict[str, WebTask]
    """By id."""
    horizons: dict[str, int] = Field(default_factory=dict)
    """Most steps that episodes had, by their ids, where the run gave tasks others than their own."""

    def attempted(self, episode_id: str, task_id: str) -> WebTask:
        """The task as an episode attempted it."""
        task, horizon = self.tasks[task_id], self.horizons.get(episode_id)
        return task if horizon is None else task.model_copy(update={"horizon": horizon})

    @property
    def spent_path(self) -> Path:
        """A regrading has a budget of its own."""
        return RunStore(Path(self.run_dir)).spent_path(self.name)


class GradeReport(Record):
    """What a batch came to; the rewards themselves are in the store."""

    graded: int
    already_graded: int
    """Episodes that had been graded under this name before, and were not again."""
    stage: dict[str, Any] = Field(default_factory=dict)
    """What the stage of rewards did."""


class WorkerNeeds(NamedTuple):
    """What engine and pool are made for; a request with other needs gets new ones."""

    run_dir: str
    template: str
    batching: tuple[bool, int, float]
    """Of the local engine: deterministic, cohorts, deadline."""
    serving: ServingConfig
    servers: tuple[str, ...]
    pool: PoolOptions
    judge: JudgeConfig | None
    spent_path: Path
    """Of the judge."""
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


def _device(given: DeviceConfig | None) -> Device | None:
    return None if given is None else Device((given.width, given.height), given.scale, given.mobile, given.user_agent)


def pool_options(rollout: RolloutConfig, policy: PolicyConfig) -> PoolOptions:
    """The browser pool that a rollout asks for."""
    return PoolOptions(
        max_sessions=rollout.concurrency,
        step_deadline=rollout.step_deadline,
        processes=rollout.browsers,
        process_per_episode=rollout.browser_per_episode,
        prewarm=rollout.prewarm,
        random_seed=rollout.page_seed,
        page_date=rollout.page_date,
        device=_device(rollout.device),
        external=rollout.browser_address,
        signals=rollout.signals,
        inspect=capture_page if rollout.dom_diffs else None,
        marks=policy.observation == "set_of_marks",
    )
