"""Sites, browsers, engine, judge and threads that a Dask worker keeps between requests.

`WorkerResources` live as long as the worker. `RunResources` serve the requests of one run, and are
closed when a request with other needs comes.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.browser import BrowserPool
from envs.chat import Ledger
from envs.episodes import VisualRewardSources, part_sources
from envs.rewards import DESIGNS, extra_sources
from envs.rewards.judge import Judge
from envs.rewards.webarena import Helper, site_helpers
from envs.sites import Design2CodeSite, Site, make_site
from tasks_lib.config import resolve_path
from tasks_lib.processes.serving import connect_engine
from tasks_lib.worker.activity import ACTIVITIES, ActivityClock
from tasks_lib.worker.clip import load_clip
from tasks_lib.worker.event_loop import WorkerLoop
from tasks_lib.worker.live import LiveFile, Send
from tasks_lib.worker.permits import Permits
from tasks_lib.worker.requests import GradeRequest, RolloutRequest, WorkerNeeds, WorkerRequest
from tasks_lib.worker.reward_stage import RewardStage
from training.ledger.store import RunStore
from training.serving.engine import Engine

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer


class RunResources:
    """Sites, browser pool, engine and judge for the requests that have the same needs."""

    def __init__(self, needs: WorkerNeeds, clock: ActivityClock) -> None:
        self.needs = needs
        self.sites: dict[str, Site] = {}
        """Started sites by name."""
        self.pool: BrowserPool | None = None
        self.helpers: Mapping[str, Helper] = {}
        self.renderer: Renderer | None = None
        self.engine: Engine | None = None
        self.engine_id = ""
        self.permits = Permits(needs.pool.max_sessions)
        self._served = -1
        """Version that the engine serves; -1: none."""
        self._clock = clock
        self.judge: Judge | None = None
        self._clip = load_clip(resolve_path(needs.clip)) if needs.clip else None
        self._visual: VisualRewardSources | None = None

    def start_engine(self, checkpoint: Path) -> None:
        """Make the engine, unless there is one. It serves no version yet."""
        if self.engine is None:
            self.renderer, self.engine = self.make_engine(checkpoint)
            self.engine_id = os.urandom(6).hex()
            gc.freeze()  # objects of the libraries stay: they need not be scanned again

    def make_engine(self, checkpoint: Path) -> tuple[Renderer, Engine]:
        """Return the worker's own engine, or one that is connected to the run's servers."""
        from training.policy.renderer import Renderer

        needs, renderer = self.needs, Renderer(checkpoint, self.needs.template)
        if needs.servers:
            store = RunStore(Path(needs.run_dir))
            return renderer, connect_engine(
                needs.serving, needs.servers, store, checkpoint, renderer, busy=lambda: self._clock("generate")
            )
        from training.serving.local import LocalEngine, LocalModel

        deterministic, cohorts, deadline = needs.batching
        return renderer, LocalEngine(
            LocalModel(renderer),
            deterministic=deterministic,
            cohorts=cohorts,
            deadline=deadline,
            busy=lambda: self._clock("generate"),
        )

    async def serve(self, version: int, checkpoint: Path, *, or_newer: bool = False) -> None:
        """Have the engine, if there is one, serve a version.

        Args:
            or_newer: Keep this or a newer version if the engine serves it.
        """
        if self.engine is not None and not (or_newer and version <= self._served):
            await self.engine.publish(version, checkpoint, or_newer=or_newer)
            self._served = version

    async def start_web(self, sites: Collection[str]) -> None:
        """Start the named sites, the browser pool and the judge, those that are not started."""
        needs = self.needs
        for name in sorted(set(sites) - self.sites.keys()):
            site = Design2CodeSite(resolve_path(needs.designs)) if name == DESIGNS else make_site(name, needs.live)
            await site.start()
            self.sites[name] = site
        if self.pool is None:
            self.pool = BrowserPool(needs.pool)
            # They live as long as the pool: the shop's token is requested once.
            self.helpers = site_helpers(needs.live.addresses, needs.live.logins)
        if self.judge is None and needs.judge is not None:
            self.judge = await Judge(needs.judge, Ledger(needs.spent_path)).__aenter__()

    def count_sites(self) -> dict[str, dict[str, int]]:
        """Return the counts of the started sites, by recipe."""
        return {name: counts for site in self.sites.values() for name, counts in site.counters().items()}

    def reward_stage(
        self, request: WorkerRequest, store: RunStore, clock: ActivityClock, threads: ThreadPoolExecutor
    ) -> RewardStage:
        """Return a new reward stage for the episodes of a request."""
        assert self.pool is not None
        if self._visual is None:
            self._visual = VisualRewardSources(self.pool, self.sites, store.blob, self._clip, self.needs.similarity)
        return RewardStage(
            request.rewards,
            clock,
            sources=[
                *part_sources(request.live.addresses, self.judge),
                *self._visual.sources,
                *extra_sources(request.rewards.extra),
            ],
            measure=self._visual.measured,
            threads=threads,
            judge=self.judge,
            screenshot=store.blob,
            keep=store.put_blob,
        )

    async def close(self) -> None:
        """Close sites, pool, judge and engine, all of them even if one fails; raise what failed."""
        async with AsyncExitStack() as stack:
            for site in self.sites.values():
                stack.push_async_callback(site.close)
            if self.pool is not None:
                stack.push_async_callback(self.pool.close)
            if self.judge is not None:
                stack.push_async_callback(self.judge.__aexit__)
            if self.engine is not None:
                stack.push_async_callback(self.engine.close)


class WorkerResources:
    """Event loop, threads, clock and live file of a worker, and the resources of its newest run.

    Called from Dask's threads, except where a field is used in coroutines of the loop.
    """

    def __init__(self, send: Send = lambda run_dir, state: None) -> None:
        """``send`` is called with the live states (`LiveFile`)."""
        self.loop = WorkerLoop()
        self.files = ThreadPoolExecutor(2, "store")
        self.encoding = ThreadPoolExecutor(1, "encode")
        self.grading = ThreadPoolExecutor(2, "grade")
        self.clock = ActivityClock(ACTIVITIES)
        self.live = LiveFile(send)
        self._run: RunResources | None = None
        self._preparing = threading.Lock()
        self._busy = 0
        self._idle = threading.Condition()
        """Notified when a request ends; a request with other needs waits until none runs."""

    @contextmanager
    def prepared(self, request: RolloutRequest | GradeRequest) -> Iterator[RunResources]:
        """Prepare what a request needs, and keep it open inside."""
        with self._preparing:
            run = self._prepare(request)
            with self._idle:
                self._busy += 1
        try:
            yield run
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def serve(self, run_dir: str, version: int, checkpoint: Path) -> None:
        """Switch the engine to a version of a run, while episodes go on.

        Does nothing where it serves another run, this or a newer version, or nothing yet.
        """
        with self._preparing:
            if self._run is not None and self._run.needs.run_dir == run_dir:
                self.loop.wait(self._run.serve(version, checkpoint, or_newer=True))

    def browser_metrics(self) -> dict[str, Any]:
        """Return the counters of the browser pool; empty before the first request."""
        run = self._run
        return run.pool.metrics() if run is not None and run.pool is not None else {}

    def close(self) -> None:
        """Close the run's resources, and end the loop and the threads."""
        self._close_run()
        self.loop.stop()
        self.files.shutdown()
        self.encoding.shutdown()
        # No wait: an expression may never end, and its deadline has passed.
        self.grading.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, request: RolloutRequest | GradeRequest) -> RunResources:
        """Start sites, pool and judge, and for a rollout the engine with its policy version.

        Requests of different runs may follow each other.
        """
        needs = WorkerNeeds.of(request)
        if self._run is None or needs != self._run.needs:
            with self._idle:
                self._idle.wait_for(lambda: not self._busy)
            self._close_run()
            self._run = RunResources(needs, self.clock)
        run = self._run
        if isinstance(request, RolloutRequest):
            checkpoint = Path(request.checkpoint)
            run.start_engine(checkpoint)
            self.loop.wait(run.serve(request.version, checkpoint, or_newer=request.or_newer))
        self.loop.wait(run.start_web(request.sites))
        return run

    def _close_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self.loop.wait(run.close())
