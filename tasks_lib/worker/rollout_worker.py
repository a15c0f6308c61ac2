"""Dask worker plugin that owns the sites, browser pool and inference engine.

They share one event loop, and live for as long as the worker does.

A Prefect task on the worker finds the plugin with ``RolloutWorker.of_this_process()`` and waits for
``roll_out``. The episodes themselves are coroutines of the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import distributed

from envs.actions import as_parsed
from envs.browser import BrowserPool
from envs.episodes import PageEvidence, VisualRewardSources, part_sources
from envs.rewards import DESIGNS, Clip, extra_sources
from envs.rewards.judge import Judge, Ledger
from envs.rewards.webarena import Helper, site_helpers
from envs.sites import Design2CodeSite, LiveSite, Site, make_site
from envs.types import BrowserError
from tasks_lib.config import resolve_path
from tasks_lib.folder.regraded import Regraded
from tasks_lib.processes.dask_clients import BROWSER_RESOURCE, EVALUATION_RESOURCE
from tasks_lib.processes.interrupts import STATES, is_not_cancelled
from tasks_lib.processes.retries import is_not_reported_by_flow
from tasks_lib.processes.serving import connect_engine
from tasks_lib.worker.activity import LENT, ActivityClock
from tasks_lib.worker.actors import Actor, OracleActor, PolicyActor
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.clip import load_clip
from tasks_lib.worker.event_loop import WorkerLoop
from tasks_lib.worker.live import LiveFile, LiveState
from tasks_lib.worker.oversampling import OverSampling
from tasks_lib.worker.permits import Permits
from tasks_lib.worker.playing import GroupCommitter, Play
from tasks_lib.worker.requests import (
    GradeReport,
    GradeRequest,
    RolloutReport,
    RolloutRequest,
    WorkerNeeds,
    WorkerRequest,
    WorkerUse,
)
from tasks_lib.worker.reward_stage import RewardStage, judge_account
from tasks_lib.worker.teacher import SPENT, TeacherActor, TeacherClient
from tasks_lib.worker.turns import encode_stage, fit_picture, stage_metrics, turn_pipeline
from training.ledger.store import RunStore, write_json_once
from training.records.groups import GroupSpec
from training.serving.engine import Engine

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer

ACTIVITIES = ("generate", "browser", "reward", "store")
"""Activities that a worker's wall time is charged to; the first match wins, the rest is idle."""

COLLECT_AFTER = 50_000
"""New objects after which Python collects garbage.

A snapshot of a page has ten thousand small lists, none of them garbage. With Python's default of
700, collection takes two fifths of the time of an observation (measured on
benchmarks/pages/cards.html: 4.8 ms, and 3.1 ms with this).
"""


class RolloutWorker(distributed.WorkerPlugin):  # type: ignore[misc]
    """Dask worker plugin that plays and grades episodes.

    Costs nothing until the first request. ``warm`` starts the slow parts (model libraries,
    Chromium) early.
    """

    name = "rollwright-rollout"
    idempotent = True
    """A user's own cluster keeps the plugin that it has, because another run may be using it."""
    _instance: ClassVar[RolloutWorker | None] = None

    def __init__(self, warm: RolloutRequest | None = None) -> None:
        self._warm = warm

    def setup(self, worker: Any) -> None:
        """Prepare the worker; called by Dask."""
        self._loop = WorkerLoop()
        self._files = ThreadPoolExecutor(2, "store")
        self._encoding = ThreadPoolExecutor(1, "encode")
        self._grading = ThreadPoolExecutor(2, "grade")
        self._sites: dict[str, Site] = {}
        self._pool: BrowserPool | None = None
        self._renderer: Renderer | None = None
        self._engine: Engine | None = None
        self._engine_id = ""
        self._clock = ActivityClock(ACTIVITIES)
        self._live = LiveFile()
        self._served = -1
        """Version that the engine serves; -1: none."""
        self._permits: Permits | None = None
        self._judge: Judge | None = None
        self._clip: Clip | None = None
        self._visual: VisualRewardSources | None = None
        self._helpers: Mapping[str, Helper] = {}
        self._made_for: WorkerNeeds | None = None
        self._preparing = threading.RLock()
        self._busy = 0
        self._idle = threading.Condition()
        """Notified when a request ends; a request with other needs waits until none runs."""
        RolloutWorker._instance = self
        logging.getLogger(STATES).addFilter(is_not_cancelled)
        logging.getLogger("prefect.task_runs").addFilter(is_not_reported_by_flow)
        collect_seldom()
        # Python's last garbage collection takes seconds with torch's objects loaded, and Dask kills
        # a worker 4 s after it asked it to end.
        atexit.register(gc.freeze)
        self._warming: threading.Thread | None = None
        rolls_out = worker is None or {BROWSER_RESOURCE, EVALUATION_RESOURCE} & worker.state.total_resources.keys()
        # A worker that only trains needs no browser and no model.
        if self._warm is not None and rolls_out:
            self._warming = threading.Thread(target=self._prepare, args=(self._warm,), name="warm", daemon=True)
            self._warming.start()

    def teardown(self, worker: Any) -> None:
        """Close everything; called by Dask when the worker stops.

        Leaves no Chromium behind, and stores no episode that this cancels.
        """
        RolloutWorker._instance = None
        self._loop.cancel_requests()
        if self._warming is not None:
            # Loading a model cannot be cancelled, and a plugin that replaces this one must not load
            # at the same time.
            self._warming.join()
        self._loop.wait(self._close())
        self._loop.stop()
        self._files.shutdown()
        self._encoding.shutdown()
        # No wait: an expression may never end, and its deadline has passed.
        self._grading.shutdown(wait=False, cancel_futures=True)

    @classmethod
    def of_this_process(cls) -> RolloutWorker:
        """Return the plugin of the worker that the caller runs in."""
        if cls._instance is None:
            raise BrowserError(
                f"no {cls.name} plugin in this process: rollouts run on Dask workers that it is registered with"
            )
        return cls._instance

    def warm_up(self, request: RolloutRequest) -> None:
        """Load what the groups of ``request`` will need.

        Blocks; called from a Dask task's thread.
        """
        self._prepare(request)

    def serve(self, run_dir: str, version: int, checkpoint: Path) -> None:
        """Switch the engine to a version of a run, while episodes go on. Blocks.

        Does nothing where it serves another run, this or a newer version, or nothing yet.
        """
        with self._preparing:
            ours = self._made_for is not None and self._made_for.run_dir == run_dir
            if ours and self._engine is not None and version > self._served:
                self._loop.wait(self._engine.publish(version, checkpoint))
                self._served = version

    def roll_out(self, request: RolloutRequest) -> RolloutReport:
        """Run the groups of ``request`` that are not committed yet.

        Blocks; called from a Dask task's thread.
        """
        store = RunStore(Path(request.run_dir))
        missing = [group for group in request.groups if not store.group_path(group.group_id).exists()]
        seconds: dict[str, float] = {}
        pipeline: dict[str, dict[str, Any]] = {}
        use: tuple[WorkerUse, WorkerUse] | None = None
        if missing:
            judge_account(request.rollout.judge, request.spent_path)
            with self._using(lambda: self._prepare(request)):
                seconds, pipeline, use = self._loop.carry_out(self._roll_out(request, missing, store))
        return RolloutReport(
            group_ids=tuple(group.group_id for group in request.groups),
            already_committed=len(request.groups) - len(missing),
            seconds=seconds,
            browser=self._pool.metrics() if self._pool else {},
            pipeline=pipeline,
            use=use,
        )

    def grade(self, request: GradeRequest) -> GradeReport:
        """Grade the episodes of ``request`` that are not graded yet. Loads no policy.

        Blocks; called from a Dask task's thread.
        """
        store = RunStore(Path(request.run_dir))
        missing = [episode for episode in request.episodes if not store.regraded_path(request.name, episode).exists()]
        stage: dict[str, Any] = {}
        if missing:
            judge_account(request.rollout.judge, request.spent_path)
            with self._using(lambda: self._prepare_grading(request)):
                stage = self._loop.carry_out(self._grade(request, missing, store))
        return GradeReport(graded=len(missing), already_graded=len(request.episodes) - len(missing), stage=stage)

    # -- in the worker's own loop

    async def _roll_out(
        self, request: RolloutRequest, groups: list[GroupSpec], store: RunStore
    ) -> tuple[dict[str, float], dict[str, dict[str, Any]], tuple[WorkerUse, WorkerUse]]:
        """Play the groups.

        Returns:
            Seconds by activity, metrics of the stages by name, and the use of the worker before and
            after.
        """
        renderer, engine, pool, rollout = self._renderer, self._engine, self._pool, request.rollout
        assert renderer is not None and engine is not None and pool is not None
        clock, seconds_before = self._clock, self._clock.seconds()
        if self._permits is None:
            self._permits = Permits(rollout.concurrency)
        policy = request.policy
        if request.actor == "oracle":
            policy = policy.model_copy(update={"observation": "text"})
        encode = encode_stage(renderer, store, policy, self._encoding, rollout.memory_budget)
        actor, connections = make_actor(request, renderer, engine)
        turns = turn_pipeline(encode, actor, rollout.concurrency)
        runner = EpisodeRunner(
            pool,
            self._sites,
            actor,
            turns,
            clock,
            rollout,
            request.live,
            PageEvidence(store.put_blob) if rollout.dom_diffs else None,
            lambda jpeg: store.put_blob(fit_picture(jpeg, renderer, policy.image_pixels)[0]),
            self._helpers,
            as_parsed(rollout.parser),
            stragglers_of(request, groups),
        )
        stage = self._stage(request, store, clock)
        ours = frozenset(name for name, site in self._sites.items() if not isinstance(site, LiveSite))
        committer = GroupCommitter(groups, store, clock, self._files, stage, ours)
        live = LiveState(groups[0].phase, sum(len(group.seeds) for group in groups), pool.metrics, stage.counts.metrics)
        statistics_before, use_before = engine.statistics, self._use(engine, rollout.concurrency)
        async with connections, self._live.shard(live, store) as live, asyncio.TaskGroup() as slots:
            play = Play(groups, runner, committer, live, slots, self._permits)
            for slot in play.slots(rollout.concurrency, fixed=rollout.deterministic):
                slots.create_task(slot)
        batches = asdict(engine.statistics - statistics_before)
        seconds = {name: value - seconds_before[name] for name, value in clock.seconds().items()}
        stages = {**stage_metrics(turns), "reward": stage.counts.metrics(), "permit": asdict(play.counts)}
        return seconds, {**stages, "batches": batches}, (use_before, self._use(engine, rollout.concurrency))

    def _use(self, engine: Engine, slots: int) -> WorkerUse:
        """Return the use of the worker so far. Called on the worker's own loop."""
        seconds, statistics = self._clock.seconds(), engine.statistics
        # Servers do not report their batches, nor how long turns wait.
        measured = statistics.batches > 0
        return WorkerUse(
            worker=self._engine_id,
            seconds=sum(seconds.values()),
            slots=slots,
            lent=self._clock.occupied(LENT),
            generating=seconds["generate"],
            batches=statistics.batches,
            late_batches=statistics.late_batches,
            turns=statistics.turns if measured else 0,
            waited=statistics.waited_seconds,
        )

    async def _grade(self, request: GradeRequest, episodes: list[str], store: RunStore) -> dict[str, Any]:
        """Grade stored episodes and return the metrics of the reward stage."""
        stage = self._stage(request, store, ActivityClock(ACTIVITIES))
        loop = asyncio.get_running_loop()

        async def grade(episode_id: str) -> None:
            trajectory = await loop.run_in_executor(self._files, store.trajectory, episode_id)
            graded = await stage.grade(request.attempted(episode_id, trajectory.task_id), trajectory)
            result = Regraded(
                episode_id=episode_id,
                task_id=trajectory.task_id,
                reward=graded.reward,
                before=trajectory.reward,
                wall=graded.wall,
                judgement=graded.judgement,
            )
            path = store.regraded_path(request.name, episode_id)
            # Another worker may grade the same episode, and its judge may differ: the first counts.
            await loop.run_in_executor(self._files, partial(write_json_once, path, result, sealed=True))

        async with asyncio.TaskGroup() as batch:
            for episode_id in episodes:
                batch.create_task(grade(episode_id))
        return stage.counts.metrics()

    def _stage(self, request: WorkerRequest, store: RunStore, clock: ActivityClock) -> RewardStage:
        assert self._pool is not None
        if self._visual is None:
            self._visual = VisualRewardSources(
                self._pool, self._sites, store.blob, self._clip, request.rewards.similarity
            )
        return RewardStage(
            request.rewards,
            clock,
            sources=[
                *part_sources(request.live.addresses, self._judge),
                *self._visual.sources,
                *extra_sources(request.rewards.extra),
            ],
            measure=self._visual.measured,
            threads=self._grading,
            judge=self._judge,
            screenshot=store.blob,
            keep=store.put_blob,
        )

    @contextmanager
    def _using(self, prepare: Callable[[], None]) -> Iterator[None]:
        """Prepare what a request needs, and keep it open inside."""
        with self._preparing:
            prepare()
            with self._idle:
                self._busy += 1
        try:
            yield
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def _prepare_grading(self, request: GradeRequest) -> None:
        self._use_needs(WorkerNeeds.of(request))
        self._loop.wait(self._start_web({task.site for task in request.tasks.values()}, request))

    def _prepare(self, request: RolloutRequest) -> None:
        """Start the sites, the pool and the engine with the request's policy version.

        Requests of different runs may follow each other.
        """
        with self._preparing:
            self._use_needs(WorkerNeeds.of(request))
            checkpoint = Path(request.checkpoint)
            if self._engine is None:
                self._renderer, self._engine = self._make_engine(request, checkpoint)
                self._engine_id = os.urandom(6).hex()
                gc.freeze()  # objects of the libraries stay: they need not be scanned again
            if not (request.or_newer and request.version <= self._served):
                self._loop.wait(self._engine.publish(request.version, checkpoint))
                self._served = request.version
            self._loop.wait(self._start_web({group.task.site for group in request.groups}, request))

    def _make_engine(self, request: RolloutRequest, checkpoint: Path) -> tuple[Renderer, Engine]:
        """Make the worker's own engine, or connect to the run's servers."""
        from training.policy.renderer import Renderer

        renderer = Renderer(checkpoint, request.policy.template)
        if request.servers:
            return renderer, connect_engine(
                request.serving,
                request.servers,
                RunStore(Path(request.run_dir)),
                checkpoint,
                renderer,
                busy=lambda: self._clock("generate"),
            )
        from training.serving.local import LocalEngine, LocalModel

        deterministic, cohorts, deadline = WorkerNeeds.of(request).batching
        return renderer, LocalEngine(
            LocalModel(renderer),
            deterministic=deterministic,
            cohorts=cohorts,
            deadline=deadline,
            busy=lambda: self._clock("generate"),
        )

    def _use_needs(self, needs: WorkerNeeds) -> None:
        if needs != self._made_for:
            with self._idle:
                self._idle.wait_for(lambda: not self._busy)
            self._loop.wait(self._close())
            self._made_for = needs
            self._clip = load_clip(resolve_path(needs.clip)) if needs.clip else None

    async def _start_web(self, sites: set[str], request: WorkerRequest) -> None:
        for name in sorted(sites - self._sites.keys()):
            designs = resolve_path(request.rollout.designs)
            site = Design2CodeSite(designs) if name == DESIGNS else make_site(name, request.live)
            await site.start()
            self._sites[name] = site
        if self._pool is None:
            self._pool = BrowserPool(request.pool_options())
            # They live as long as the pool: the shop's token is requested once.
            self._helpers = site_helpers(request.live.addresses, request.live.logins)
        if self._judge is None and request.rollout.judge is not None:
            self._judge = await Judge(request.rollout.judge, Ledger(request.spent_path)).__aenter__()

    async def _close(self) -> None:
        """Close sites, pool, judge and engine, all of them even if one fails; raise what failed."""
        async with AsyncExitStack() as stack:
            for site in self._sites.values():
                stack.push_async_callback(site.close)
            if self._pool is not None:
                stack.push_async_callback(self._pool.close)
            if self._judge is not None:
                stack.push_async_callback(self._judge.__aexit__)
            if self._engine is not None:
                stack.push_async_callback(self._engine.close)
            self._sites, self._pool, self._judge, self._visual = {}, None, None, None
            self._engine = self._renderer = self._permits = None
            self._served = -1


async def serve_version(run_dir: str, version: int, checkpoint: str) -> None:
    """Have this worker's engine serve a published version; called by the run's flow."""
    await asyncio.to_thread(RolloutWorker.of_this_process().serve, run_dir, version, Path(checkpoint))


def stragglers_of(request: RolloutRequest, groups: Sequence[GroupSpec]) -> OverSampling:
    """Return the rules by which slow episodes of a request are given up.

    An evaluation waits for all: leaving slow episodes out would bias its result.
    """
    trains = groups[0].phase.startswith("i")
    episodes = sum(len(group.seeds) for group in groups)
    return OverSampling(episodes, request.rollout.quorum if trains else 1.0, request.rollout.grace)


def make_actor(
    request: RolloutRequest, renderer: Renderer, engine: Engine
) -> tuple[Actor, AbstractAsyncContextManager[object]]:
    """Return the actor of a request, and a context to be open while it acts."""
    if request.actor == "policy":
        patience = request.serving.patience
        return PolicyActor(engine, renderer, request.policy, request.seed, request.version, patience), nullcontext()
    if request.actor == "oracle":
        return OracleActor(renderer, request.version), nullcontext()
    assert request.teacher is not None
    client = TeacherClient(request.teacher, RunStore(Path(request.run_dir)).root / SPENT)
    parse = as_parsed(request.rollout.parser)
    return TeacherActor(client, renderer, request.policy, parse, request.version), client


def collect_seldom() -> None:
    """Make this process collect garbage less often than Python does by default."""
    gc.set_threshold(COLLECT_AFTER, 20, 20)
