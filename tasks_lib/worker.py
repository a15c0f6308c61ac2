"""What lives in a Dask worker for as long as the worker does: site, browser pool and inference engine, on one event loop.

A Prefect task that runs on the worker gets at it with ``RolloutWorker.of_this_process()`` and waits for ``roll_out``; the episodes
themselves are coroutines of the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import threading
import time
from collections.abc import Collection, Coroutine, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import distributed

from envs.browser import BrowserPool
from envs.rewards.design2code import Clip
from envs.rewards.design2code.source import SITE as DESIGNS
from envs.rewards.judge import Judge, Ledger
from envs.rewards.webarena import Helper, site_helpers
from envs.sites import Design2CodeSite, LiveSite, make_site
from envs.sites.base import Site
from envs.types import BrowserError, RollwrightError, Trajectory
from tasks_lib.activity import ActivityClock
from tasks_lib.actors import Actor, OracleActor, PolicyActor
from tasks_lib.blocking import Blocklist
from tasks_lib.clip import load_clip
from tasks_lib.config import resolve_path
from tasks_lib.episodes import EpisodeRunner
from tasks_lib.live import LiveState, shown
from tasks_lib.looks import LookSources, PageEvidence
from tasks_lib.orders import (
    GradeOrder,
    GradeReport,
    Needs,
    RolloutOrder,
    RolloutReport,
    WebOrder,
    pool_options,
)
from tasks_lib.planning import plan_slots
from tasks_lib.regraded import Regraded
from tasks_lib.rewards import RewardStage, judge_account, part_sources
from tasks_lib.turns import encode_stage, stage_metrics, turn_pipeline
from training.groups import EpisodeSummary, GroupRecord, GroupSpec
from training.inference.engine import InferenceEngine
from training.inference.waves import WaveBatcher
from training.store import RunStore, write_json

T = TypeVar("T")
ACTIVITIES = ("generate", "browser", "reward", "store")
"""What a worker's wall time is charged to, first match wins; the rest is idle."""


COLLECT_AFTER = 50_000
"""New objects after which Python looks for garbage. A snapshot of a page is made of ten thousand small lists, none of them garbage: with Python's
own 700, looking costs two fifths of the time that an observation takes (measured on benchmarks/pages/cards.html: 4.8 ms, and 3.1 ms with this)."""


LAST_SECONDS = 2.0
"""What an order waits when its worker ends before it fails: by then Dask has told its scheduler that the worker is gone, which gives the order to
another one. Had it failed before, that would be the run's failure."""


class RolloutWorker(distributed.WorkerPlugin):  # type: ignore[misc]
    """Dask worker plugin. Costs nothing until the first order; ``warm`` starts the slow parts (model libraries, Chromium) early."""

    name = "rollwright-rollout"
    idempotent = True
    """A cluster of the user's own keeps the plugin it has: another run may be using it."""
    _instance: ClassVar[RolloutWorker | None] = None

    def __init__(self, warm: RolloutOrder | None = None) -> None:
        self._warm = warm

    def setup(self, worker: Any) -> None:
        """Called by Dask in the worker."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollouts", daemon=True)
        self._thread.start()
        self._files = ThreadPoolExecutor(2, "store")
        self._encoding = ThreadPoolExecutor(1, "encode")
        self._grading = ThreadPoolExecutor(2, "grade")
        self._sites: dict[str, Site] = {}
        self._pool: BrowserPool | None = None
        self._engine: InferenceEngine | None = None
        self._judge: Judge | None = None
        self._clip: Clip | None = None
        self._looks: LookSources | None = None
        self._helpers: Mapping[str, Helper] = {}
        self._made_for: Needs | None = None
        self._preparing = threading.Lock()
        self._orders: set[asyncio.Task[Any]] = set()
        self._ends = False
        RolloutWorker._instance = self
        collect_seldom()
        # Python's last garbage collection takes seconds with torch's objects about, and Dask kills a worker 4 s after it was told to end.
        atexit.register(gc.freeze)
        self._warming: threading.Thread | None = None
        if self._warm is not None:
            self._warming = threading.Thread(target=self._prepare, args=(self._warm,), name="warm", daemon=True)
            self._warming.start()

    def teardown(self, worker: Any) -> None:
        """Called by Dask when the worker stops: no Chromium is left behind, and no episode that our own end broke off is stored."""
        RolloutWorker._instance = None
        self._ends = True
        if self._warming is not None:
            # Loading a model cannot be broken off, and a plugin that takes this one's place must not load beside it.
            self._warming.join()
        self._wait(self._break_off())
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._files.shutdown()
        self._encoding.shutdown()
        self._grading.shutdown(
            wait=False, cancel_futures=True
        )  # an expression may never end, and its deadline has passed

    @classmethod
    def of_this_process(cls) -> RolloutWorker:
        """The plugin of the worker that the caller runs in."""
        if cls._instance is None:
            raise BrowserError(
                f"no {cls.name} plugin in this process: rollouts run on Dask workers that it is registered with"
            )
        return cls._instance

    def roll_out(self, order: RolloutOrder) -> RolloutReport:
        """Run the groups of ``order`` that are not committed yet. Blocks; called from a Dask task's thread."""
        store = RunStore(Path(order.run_dir))
        missing = [group for group in order.groups if not store.group_path(group.group_id).exists()]
        seconds: dict[str, float] = {}
        pipeline: dict[str, dict[str, Any]] = {}
        if missing:
            judge_account(order.rollout.judge, order.spent_path)
            self._prepare(order)
            seconds, pipeline = self._carry_out(self._roll_out(order, missing, store))
        return RolloutReport(
            group_ids=tuple(group.group_id for group in order.groups),
            already_committed=len(order.groups) - len(missing),
            seconds=seconds,
            browser=self._pool.metrics() if self._pool else {},
            pipeline=pipeline,
        )

    def grade(self, order: GradeOrder) -> GradeReport:
        """Grade the episodes of ``order`` that have not been yet. Blocks; called from a Dask task's thread. No model is loaded."""
        store = RunStore(Path(order.run_dir))
        missing = [each for each in order.episodes if not store.regraded_path(order.name, each).exists()]
        stage: dict[str, Any] = {}
        if missing:
            judge_account(order.rollout.judge, order.spent_path)
            with self._preparing:
                self._meet(Needs.of(order))
                self._wait(self._start_web({task.site for task in order.tasks.values()}, order))
            stage = self._carry_out(self._grade(order, missing, store))
        return GradeReport(graded=len(missing), already_graded=len(order.episodes) - len(missing), stage=stage)

    # -- in the worker's own loop

    async def _roll_out(
        self, order: RolloutOrder, groups: list[GroupSpec], store: RunStore
    ) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
        """Seconds by activity, and what the stages of the turns did."""
        engine, pool, rollout = self._engine, self._pool, order.rollout
        assert engine is not None and pool is not None
        clock = ActivityClock(ACTIVITIES)
        thread = ThreadPoolExecutor(1, "generate")
        mode = order.policy.observation if order.actor == "policy" else "text"
        diffs = PageEvidence(store.put_blob) if rollout.dom_diffs else None
        encode = encode_stage(engine, store, mode, self._encoding, rollout.memory_budget)

        def make_runner() -> EpisodeRunner:
            batcher = WaveBatcher(engine, rollout.wave_deadline, partial(clock, "generate"), thread)
            actor: Actor = (
                PolicyActor(batcher, order.policy, order.seed) if order.actor == "policy" else OracleActor(engine)
            )
            turns = turn_pipeline(encode, actor, rollout.concurrency)
            return EpisodeRunner(
                pool, self._sites, actor, turns, clock, rollout, order.live, diffs, store.put_blob, self._helpers
            )

        cohorts = [make_runner() for _ in range(rollout.cohorts)]
        stage = self._stage(order, store, clock)
        ours = frozenset(name for name, site in self._sites.items() if not isinstance(site, LiveSite))
        committer = _GroupCommitter(groups, store, clock, self._files, stage, ours)
        live = LiveState(groups[0].phase, sum(len(group.seeds) for group in groups), pool.metrics, stage.counts.metrics)
        try:
            async with shown(live, store), asyncio.TaskGroup() as slots:
                for number, plan in enumerate(plan_slots(groups, rollout.concurrency)):
                    runner = cohorts[number % len(cohorts)]
                    slots.create_task(_run_slot(plan, groups, runner, committer, live, slots))
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
        stages = stage_metrics(runner.turns for runner in cohorts)
        return clock.seconds(), {**stages, "reward": stage.counts.metrics()}

    async def _grade(self, order: GradeOrder, episodes: list[str], store: RunStore) -> dict[str, Any]:
        """What the stage of rewards did."""
        stage = self._stage(order, store, ActivityClock(ACTIVITIES))
        loop = asyncio.get_running_loop()

        async def grade(episode_id: str) -> None:
            trajectory = await loop.run_in_executor(self._files, store.trajectory, episode_id)
            graded = await stage.grade(order.tasks[trajectory.task_id], trajectory)
            result = Regraded(
                episode_id=episode_id,
                task_id=trajectory.task_id,
                reward=graded.reward,
                before=trajectory.reward,
                wall=graded.wall,
                judgement=graded.judgement,
            )
            path = store.regraded_path(order.name, episode_id)
            await loop.run_in_executor(self._files, write_json, path, result)

        async with asyncio.TaskGroup() as batch:
            for episode_id in episodes:
                batch.create_task(grade(episode_id))
        return stage.counts.metrics()

    def _stage(self, order: WebOrder, store: RunStore, clock: ActivityClock) -> RewardStage:
        assert self._pool is not None
        if self._looks is None:
            self._looks = LookSources(self._pool, self._sites, store.blob, self._clip, order.rewards.similarity)
        return RewardStage(
            order.rewards,
            clock,
            sources=[*part_sources(order.live.addresses, self._judge), *self._looks.sources],
            measure=self._looks.measured,
            threads=self._grading,
            judge=self._judge,
            screenshot=store.blob,
            keep=store.put_blob,
        )

    def _prepare(self, order: RolloutOrder) -> None:
        """Have the sites, the pool and the right policy version in place. Orders of different runs may follow each other."""
        with self._preparing:
            self._meet(Needs.of(order))
            if self._engine is None:
                from training.inference.transformers_engine import TransformersEngine  # imports torch: seconds

                self._engine = TransformersEngine(order.policy.template)
                gc.freeze()  # what the libraries made stays, and is not looked through again
            self._engine.load(order.version, Path(order.checkpoint))
            self._wait(self._start_web({group.task.site for group in order.groups}, order))

    def _meet(self, needs: Needs) -> None:
        if needs != self._made_for:
            self._wait(self._close())
            self._engine, self._made_for = None, needs
            self._clip = load_clip(resolve_path(needs.clip)) if needs.clip else None

    async def _start_web(self, sites: set[str], order: WebOrder) -> None:
        for name in sorted(sites - self._sites.keys()):
            designs = resolve_path(order.rollout.designs)
            site = Design2CodeSite(designs) if name == DESIGNS else make_site(name, order.live)
            await site.start()
            self._sites[name] = site
        if self._pool is None:
            self._pool = BrowserPool(pool_options(order.rollout, order.policy))
            # For as long as the log-ins are the same: the shop's token is asked for once.
            self._helpers = site_helpers(order.live.addresses, order.live.logins)
        if self._judge is None and order.rollout.judge is not None:
            self._judge = await Judge(order.rollout.judge, Ledger(order.spent_path)).__aenter__()

    async def _close(self) -> None:
        if self._judge is not None:
            await self._judge.__aexit__()
            self._judge = None
        self._looks = None
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        for name in list(self._sites):
            await self._sites.pop(name).close()

    async def _as_order(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        if self._ends:  # it came while `_break_off` was on its way
            coroutine.close()
            raise asyncio.CancelledError
        self._orders.add(task)
        try:
            return await coroutine
        finally:
            self._orders.discard(task)

    async def _break_off(self) -> None:
        """Orders end where they are: their episodes are lost, the groups that are committed stay."""
        orders = list(self._orders)
        for order in orders:
            order.cancel()
        await asyncio.gather(*orders, return_exceptions=True)

    def _carry_out(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """`_wait` for an order, which the end of this worker breaks off.

        Raises:
            BrowserError: it was.
        """
        try:
            if not self._ends:
                return self._wait(self._as_order(coroutine))
            coroutine.close()
        except CancelledError:
            if not self._ends:
                raise
        time.sleep(LAST_SECONDS)
        raise BrowserError("this Dask worker was told to end in the middle of its work; start the same command again")

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result. Of several errors at once the first of ours, which says what to do; without one, all of them."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except ExceptionGroup as group:
            ours: BaseException | None = group.subgroup(RollwrightError)
            while isinstance(ours, BaseExceptionGroup):
                ours = ours.exceptions[0]
            if ours is None:
                raise
            raise ours from group


def collect_seldom() -> None:
    """Have this process look for garbage less often than Python does by itself."""
    gc.set_threshold(COLLECT_AFTER, 20, 20)


async def _run_slot(
    plan: list[tuple[int, int]],
    groups: list[GroupSpec],
    runner: EpisodeRunner,
    committer: _GroupCommitter,
    live: LiveState,
    tasks: asyncio.TaskGroup,
) -> None:
    """Play the episodes of a slot. They are graded and stored beside it, in ``tasks``: the slot goes on at once."""
    slot = live.slot()
    async with runner.actor.slot():
        for index, sample in plan:
            attempts = await runner.run(groups[index], sample, slot)
            live.ended(attempts)
            tasks.create_task(committer.add(groups[index], attempts))
        slot.rest()


class _GroupCommitter:
    """Has trajectories graded and stores them as they come, and commits a group once all its episodes are stored."""

    def __init__(
        self,
        groups: list[GroupSpec],
        store: RunStore,
        clock: ActivityClock,
        files: ThreadPoolExecutor,
        stage: RewardStage,
        ours: Collection[str] = (),
    ) -> None:
        """
        Args:
            ours: Sites that we serve ourselves: no judge's word blocks them.
        """
        self._open = {group.group_id: len(group.seeds) for group in groups}
        self._summaries: dict[str, list[EpisodeSummary]] = {group.group_id: [] for group in groups}
        self._store = store
        self._blocklist = Blocklist(store, ours)
        self._clock = clock
        self._files = files
        self._stage = stage

    async def add(self, group: GroupSpec, attempts: list[Trajectory]) -> None:
        """Store the attempts of an episode, graded, and commit the group with its last one."""
        attempts = [await self._stage.grade(group.task, attempt) for attempt in attempts]
        with self._clock("store"):
            loop = asyncio.get_running_loop()
            for trajectory in attempts:
                await loop.run_in_executor(self._files, self._store.put_trajectory, trajectory)
                if trajectory.wall:
                    await loop.run_in_executor(self._files, self._blocklist.saw, group.task, trajectory)
                self._summaries[group.group_id].append(EpisodeSummary.of(trajectory))
            self._open[group.group_id] -= 1
            if self._open[group.group_id] == 0:
                await loop.run_in_executor(self._files, self._commit, group)

    def _commit(self, group: GroupSpec) -> None:
        episodes = sorted(self._summaries[group.group_id], key=lambda episode: episode.episode_id)
        version = self._store.trajectory(episodes[0].episode_id).policy_version
        record = GroupRecord(
            group_id=group.group_id,
            task_id=group.task.task_id,
            kind=group.task.kind,
            policy_version=version,
            episodes=tuple(episodes),
        )
        if group.task.rubric is not None:
            self._store.put_rubric(group.task.rubric)
        write_json(self._store.group_path(group.group_id), record)
