"""Rolls out the groups of a request on a worker: its episodes in slots, each for a permit.

The worker's resources outlive the request. Everything else is made here for the one shard: the
actor, the pipeline of its turns, the reward stage and the committer of its groups.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.actions import as_parsed
from envs.episodes import PageEvidence
from envs.sites import LiveSite
from tasks_lib.worker.activity import LENT
from tasks_lib.worker.actors import Actor, OracleActor, PolicyActor
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.group_committer import GroupCommitter
from tasks_lib.worker.live import LiveState, SlotStatus
from tasks_lib.worker.oversampling import OverSampling
from tasks_lib.worker.permits import Permits
from tasks_lib.worker.requests import RolloutReport, RolloutRequest, WorkerUse
from tasks_lib.worker.resources import RunResources, WorkerResources
from tasks_lib.worker.reward_stage import judge_account
from tasks_lib.worker.slots import order_episodes, plan_slots
from tasks_lib.worker.teacher import SPENT, TeacherActor, TeacherClient
from tasks_lib.worker.turns import encode_stage, fit_picture, stage_metrics, turn_pipeline
from training.ledger.store import RunStore
from training.records.groups import GroupSpec
from training.serving.engine import Engine

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer

WAITING = 4
"""Episodes of a rollout that wait for a permit or hold one, per episode played at once.

Enough that an episode of the page just left is usually among them.
"""


@dataclass(frozen=True)
class RolloutService:
    """Plays, grades and commits the groups of requests with the resources of a worker."""

    worker: WorkerResources
    announce: Callable[[RolloutRequest, str], None] = lambda request, group_id: None
    """Called with each group that is committed, in a thread of the worker's files."""

    def roll_out(self, request: RolloutRequest) -> RolloutReport:
        """Roll out the groups of ``request`` that are not committed yet. Blocks."""
        store = RunStore(Path(request.run_dir))
        missing = [group for group in request.groups if not store.group_path(group.group_id).exists()]
        seconds: dict[str, float] = {}
        pipeline: dict[str, dict[str, Any]] = {}
        use: tuple[WorkerUse, WorkerUse] | None = None
        if missing:
            judge_account(request.rollout.judge, request.spent_path)
            with self.worker.prepared(request) as run:
                seconds, pipeline, use = self.worker.loop.carry_out(self._play(request, missing, store, run))
        return RolloutReport(
            group_ids=tuple(group.group_id for group in request.groups),
            already_committed=len(request.groups) - len(missing),
            seconds=seconds,
            browser=self.worker.browser_metrics(),
            pipeline=pipeline,
            use=use,
        )

    async def _play(
        self, request: RolloutRequest, groups: list[GroupSpec], store: RunStore, run: RunResources
    ) -> tuple[dict[str, float], dict[str, dict[str, Any]], tuple[WorkerUse, WorkerUse]]:
        """Play the groups on the worker's event loop.

        Returns:
            Seconds by activity, metrics of the stages by name, and the use of the worker before and
            after.
        """
        worker, rollout, policy = self.worker, request.rollout, request.policy
        renderer, engine, pool, clock = run.renderer, run.engine, run.pool, worker.clock
        assert renderer is not None and engine is not None and pool is not None
        seconds_before = clock.seconds()
        if request.actor == "oracle":
            policy = policy.model_copy(update={"observation": "text"})
        encode = encode_stage(renderer, store, policy, worker.encoding, rollout.memory_budget, rollout.concurrency)
        actor, connections = make_actor(request, renderer, engine)
        turns = turn_pipeline(encode, actor, rollout.concurrency)
        runner = EpisodeRunner(
            pool,
            run.sites,
            actor,
            turns,
            clock,
            rollout,
            request.live,
            PageEvidence(store.put_blob) if rollout.dom_diffs else None,
            lambda jpeg: store.put_blob(fit_picture(jpeg, renderer, policy.image_pixels)[0]),
            run.helpers,
            as_parsed(rollout.parser),
            OverSampling.of(rollout, groups),
        )
        stage = run.reward_stage(request, store, clock, worker.grading)
        ours = frozenset(name for name, site in run.sites.items() if not isinstance(site, LiveSite))
        announce = partial(self.announce, request)
        committer = GroupCommitter(groups, store, clock, worker.files, stage, ours, announce)
        episodes = sum(len(group.seeds) for group in groups)
        live = LiveState(groups[0].phase, episodes, pool.metrics, stage.counts.metrics, run.count_sites)
        statistics_before, use_before = engine.statistics, self._use(run, engine)
        async with connections, worker.live.shard(live, store) as live, asyncio.TaskGroup() as tasks:
            shard = ShardPlayer(groups, runner, committer, live, tasks, run.permits)
            for slot in shard.slots(rollout.concurrency, fixed=rollout.deterministic):
                tasks.create_task(slot)
        batches = asdict(engine.statistics - statistics_before)
        seconds = {name: value - seconds_before[name] for name, value in clock.seconds().items()}
        stages = {**stage_metrics(turns), "reward": stage.counts.metrics(), "permit": asdict(shard.counts)}
        return seconds, {**stages, "batches": batches}, (use_before, self._use(run, engine))

    def _use(self, run: RunResources, engine: Engine) -> WorkerUse:
        """Return the use of the worker so far. Called on the worker's own loop."""
        clock, statistics = self.worker.clock, engine.statistics
        seconds = clock.seconds()
        # Servers do not report their batches, nor how long turns wait.
        measured = statistics.batches > 0
        return WorkerUse(
            worker=run.engine_id,
            seconds=sum(seconds.values()),
            slots=run.needs.pool.max_sessions,
            lent=clock.occupied(LENT),
            generating=seconds["generate"],
            batches=statistics.batches,
            late_batches=statistics.late_batches,
            turns=statistics.turns if measured else 0,
            waited=statistics.waited_seconds,
        )


@dataclass(slots=True)
class PermitCounts:
    """Waiting times of episodes before they were played."""

    done: int = 0
    """Episodes that were started."""
    waiting_seconds: float = 0.0
    """Sum of their waiting times, from the arrival of their shard at the worker.

    They wait for a slot, for other episodes in it, and for a permit.
    """


@dataclass(frozen=True)
class ShardPlayer:
    """Plays the episodes of one shard in the slots of a worker.

    Grading and storing run in ``tasks``, so that a slot plays its next episode at once.
    """

    groups: list[GroupSpec]
    runner: EpisodeRunner
    committer: GroupCommitter
    live: LiveState
    tasks: asyncio.TaskGroup
    permits: Permits
    """Permits of the worker, shared by all its shards."""
    counts: PermitCounts = field(default_factory=PermitCounts)
    _arrived: float = field(default_factory=time.perf_counter)

    def slots(self, count: int, *, fixed: bool) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the coroutines to run concurrently.

        Args:
            count: Episodes that the worker plays at once.
            fixed: True to plan the episodes of ``count`` slots beforehand; otherwise each episode
                waits for a permit.
        """
        if fixed:
            for number, plan in enumerate(plan_slots(self.groups, count)):
                yield self._slot(plan, f"{self.groups[0].group_id}-slot-{number}")
        else:
            episodes = order_episodes(self.groups)
            queue = iter(episodes)
            for _ in range(min(WAITING * count, len(episodes))):
                yield self._wait_and_play(queue)

    async def _slot(self, plan: Iterable[tuple[int, int]], session: str) -> None:
        """Play the (group index, sample) pairs of a plan in order, in one session of the actor."""
        status = self.live.take_slot()
        async with self.permits.hold(None), self.runner.actor.session(session):
            for index, sample in plan:
                await self._episode(index, sample, status, session)
            status.set_free()

    async def _wait_and_play(self, queue: Iterator[tuple[int, int]]) -> None:
        """Play episodes that no other slot has taken from the queue.

        Each waits for a permit and is played in a session of its own.
        """
        for index, sample in queue:
            task = self.groups[index].task
            page = (task.site, task.path) if self.runner.sites[task.site].stateless_pages else None
            session = f"{self.groups[index].group_id}-s{sample:02d}"
            async with self.permits.hold(page), self.runner.actor.session(session):
                status = self.live.take_slot()
                await self._episode(index, sample, status, session)
                status.set_free()

    async def _episode(self, index: int, sample: int, status: SlotStatus, session: str) -> None:
        self.counts.done += 1
        self.counts.waiting_seconds += time.perf_counter() - self._arrived
        attempts = await self.runner.run(self.groups[index], sample, status, session)
        self.live.record_end(attempts)
        self.tasks.create_task(self.committer.add(self.groups[index], attempts))


def make_actor(
    request: RolloutRequest, renderer: Renderer, engine: Engine
) -> tuple[Actor, AbstractAsyncContextManager[object]]:
    """Return the actor of a request, and a context to be open while it acts."""
    if request.actor == "policy":
        patience = request.serving.patience
        return PolicyActor(engine, renderer, request.policy, request.seed, request.version, patience), nullcontext()
    if request.actor == "oracle":
        return OracleActor(renderer, request.policy.prompt, request.version), nullcontext()
    assert request.teacher is not None
    client = TeacherClient(request.teacher, RunStore(Path(request.run_dir)).root / SPENT)
    parse = as_parsed(request.rollout.parser)
    return TeacherActor(client, renderer, request.policy, parse, request.version), client
