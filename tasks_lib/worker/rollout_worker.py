"""Dask worker plugin that plays and grades episodes.

Who runs, and who waits for whom, in a worker's process::

    Dask thread                     event loop ("rollouts")            threads
    ───────────                     ───────────────────────            ───────
    roll_out_shard, grade_batch
    find this plugin, call it
    a service prepares:
      wait for the lock
      wait: requests with other
            needs ended
      make the engine
      wait for the loop ──────────> load the version, start sites,
                                    pool and judge
      wait for the loop ──────────> a task for each slot:
                                      wait for a permit
                                      runner: wait for a browser
                                        wait for the encoder ────────> encode: screenshot, prompt
                                        wait for the engine ─────────> engine's own: generate
                                        wait for the page
                                      start a task, play the next
                                    a task for each ended episode:
                                      wait for a place, grade ───────> grade: facts
                                      wait, store, commit ───────────> store: files
                                    a task for the live file ────────> asyncio's own: write it
    return the report <──────────── all tasks have ended

    serve_version (Dask's loop): a thread of its own waits for the lock, and for the loop to publish

The resources (`resources`) stay from request to request; the services (`rollout_service`,
`grading_service`) hold nothing. Requests with the same needs run side by side. No coroutine of the
event loop waits for a Dask thread.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import threading
from pathlib import Path
from typing import Any, ClassVar

import distributed

from envs.garbage import collect_seldom
from envs.types import BrowserError
from tasks_lib.processes.dask_clients import BROWSER_RESOURCE, EVALUATION_RESOURCE
from tasks_lib.processes.interrupts import STATES, is_not_cancelled
from tasks_lib.processes.retries import is_not_reported_by_flow
from tasks_lib.processes.site_offers import needed_offers
from tasks_lib.worker.grading_service import GradingService
from tasks_lib.worker.live import LIVE_TOPIC, PlayedEpisode, SlotStatus
from tasks_lib.worker.requests import GradeReport, GradeRequest, RolloutReport, RolloutRequest
from tasks_lib.worker.resources import WorkerResources
from tasks_lib.worker.rollout_service import RolloutService


class RolloutWorker(distributed.WorkerPlugin):  # type: ignore[misc]
    """Dask worker plugin that plays and grades episodes.

    Costs nothing until the first request. ``warm`` starts the slow parts (model libraries,
    Chromium) early. Its methods block; Prefect tasks call them in Dask's threads.
    """

    name = "rollwright-rollout"
    idempotent = True
    """A user's own cluster keeps the plugin that it has, because another run may be using it."""
    _instance: ClassVar[RolloutWorker | None] = None

    def __init__(self, warm: RolloutRequest | None = None) -> None:
        self._warm = warm

    def setup(self, worker: Any) -> None:
        """Prepare the worker; called by Dask."""
        self._worker = worker
        self._resources = WorkerResources(self.send)
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
            self._warming = threading.Thread(target=self.warm_up, args=(self._warm,), name="warm", daemon=True)
            self._warming.start()

    def teardown(self, worker: Any) -> None:
        """Close everything; called by Dask when the worker stops.

        Leaves no Chromium behind, and stores no episode that this cancels.
        """
        RolloutWorker._instance = None
        self._resources.loop.cancel_requests()
        if self._warming is not None:
            # Loading a model cannot be cancelled, and a plugin that replaces this one must not load
            # at the same time.
            self._warming.join()
        self._resources.close()

    @classmethod
    def of_this_process(cls) -> RolloutWorker:
        """Return the plugin of the worker that the caller runs in."""
        if cls._instance is None:
            raise BrowserError(
                f"no {cls.name} plugin in this process: rollouts run on Dask workers that it is registered with"
            )
        return cls._instance

    def warm_up(self, request: RolloutRequest) -> None:
        """Load what the groups of ``request`` will need; no site that this worker cannot serve."""
        needed = needed_offers(request.sites, request.live)
        if self._worker is not None and not needed.keys() <= self._worker.state.total_resources.keys():
            request = request.model_copy(update={"groups": ()})
        with self._resources.prepared(request):
            pass

    def serve(self, run_dir: str, version: int, checkpoint: Path) -> None:
        """Have the engine serve a newer version of a run, as `WorkerResources.serve`."""
        self._resources.serve(run_dir, version, checkpoint)

    def roll_out(self, request: RolloutRequest) -> RolloutReport:
        """Roll out the groups of ``request`` that are not committed yet."""
        return RolloutService(self._resources, self.announce).roll_out(request)

    def announce(self, request: RolloutRequest, group_id: str) -> None:
        """Tell an asynchronous run's flow of a committed group, before its shard ends."""
        if request.or_newer and self._worker is not None:
            self._worker.log_event(group_topic(request.run_dir), group_id)

    def send(self, run_dir: str, state: str) -> None:
        """Tell the scheduler the worker's live state, for the monitors that follow it."""
        if self._worker is not None:
            self._worker.log_event(LIVE_TOPIC, {"run": run_dir, "address": self._worker.address, "state": state})

    def view(self, slot: int) -> tuple[SlotStatus, PlayedEpisode] | None:
        """Return the slot of this number and its running episode, as `LiveFile.view`."""
        return self._resources.live.view(slot)

    def grade(self, request: GradeRequest) -> GradeReport:
        """Grade the episodes of ``request`` that are not graded yet. Loads no policy."""
        return GradingService(self._resources).grade(request)


def group_topic(run_dir: str) -> str:
    """Return the topic of Dask events under which workers report committed groups to a run."""
    return f"rollwright-groups:{run_dir}"


async def serve_version(run_dir: str, version: int, checkpoint: str) -> None:
    """Have this worker's engine serve a published version; called by the run's flow."""
    await asyncio.to_thread(RolloutWorker.of_this_process().serve, run_dir, version, Path(checkpoint))
