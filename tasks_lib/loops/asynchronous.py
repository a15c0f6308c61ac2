"""The asynchronous training loop: rollouts go on while versions are trained and published.

Who runs, and who waits for whom::

    flow thread (this loop)       Dask workers              update thread      trainer process
    ───────────────────────       ────────────              ─────────────      ───────────────
    start groups  ───────────────> roll_out(shard)
    wait for an event <─ shard ─── ended: groups committed
    batch ready: start update ────────────────────────────> update_policy ───> train the batch
    start groups, wait ...         (rollouts go on)         wait for it  <──── version written
    wait for an event <─ update ─────────────────────────── ended
    publish the version ─────────> engines load it between two tokens
    start an evaluation ─────────> (its own thread waits for it)

The loop waits for events alone: a shard, the update or an evaluation that ended. After each it
starts the groups that admission allows, and an update when its groups are ready. No turn is broken
off for a publication. See docs/async.md.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from envs.types import TrainingError
from tasks_lib.folder.metrics import sum_by_name
from tasks_lib.folder.metrics_lines import IterationMetrics, Overlap
from tasks_lib.folder.progress import RunProgress
from tasks_lib.loops.base import PhaseTimer, TrainingLoop
from tasks_lib.loops.load import AdaptiveConcurrency
from tasks_lib.loops.run import TrainingRun
from tasks_lib.processes.prefect_run import run_as_task
from tasks_lib.processes.trainer import Trainer, update_policy
from tasks_lib.rollouts.admitted_groups import AdmittedGroups
from tasks_lib.rollouts.cluster import tell_workers
from tasks_lib.rollouts.shards import RunningShard, share_groups
from tasks_lib.rollouts.use import TrainerQueue
from tasks_lib.worker.requests import RolloutReport
from tasks_lib.worker.reward_stage import judge_account
from tasks_lib.worker.rollout_worker import serve_version
from training.ledger.checkpoint_files import REMOVED
from training.ledger.journal import read_batch
from training.ledger.paths import policy_name
from training.pacing.admission import Pace
from training.pacing.staleness import staleness, staleness_histogram
from training.records.batches import TrainingBatch
from training.records.groups import GroupRecord

LOOK_SECONDS = 10.0
"""Longest wait in seconds for an event, before the loop checks that something can still end."""

GROUP_PRIORITY = -1
"""Dask priority of training groups: evaluations, which hold the next version back, come first."""


class AsynchronousLoop(TrainingLoop):
    """Rolls out all the time, and trains each version on the groups that are ready."""

    def __init__(self, run: TrainingRun, trainer: Trainer, workers: int, progress: RunProgress) -> None:
        self._served = run.opened_at
        """Version that the engines serve; the trainer may have published a newer one."""
        super().__init__(run, trainer, workers, progress)
        config = run.config
        pace = Pace(
            batch=config.rollout.groups_per_iteration,
            staleness=config.pacing.staleness,
            running=config.pacing.groups_at_once(workers, config.rollout.concurrency, config.episodes_per_group),
        )
        self._admissions = AdmittedGroups(
            run.store,
            run.sampler,
            pace,
            config.algorithm,
            newest=self._served,
            depth=config.pacing.ahead,
            batches=config.iterations,
            replace_empty=config.pacing.replace,
        )
        self._adaptive = (
            AdaptiveConcurrency(run.store, config.serving_of_rollouts, pace.running) if config.pacing.adaptive else None
        )
        self._events: queue.SimpleQueue[RunningShard | None] = queue.SimpleQueue()
        """Shards that ended; ``None`` for anything else that did."""
        self._under_way = 0
        self._update: Future[dict[str, Any]] | None = None
        self._update_began = 0.0
        self._batch_since = time.monotonic()
        """Monotonic time of the newest publication: batches may close by time."""
        self._records: dict[str, GroupRecord] = {}
        """Groups that ended and whose version is not published, by id."""
        self._timeline: list[tuple[str, float, float]] = []
        """Work that ended since the newest version: name, beginning and end in seconds since
        1970."""
        self._clock = PhaseTimer()
        self._reports: list[RolloutReport] = []
        self._trainer_queue = TrainerQueue()
        self._last_event = time.monotonic()
        self._threads: list[threading.Thread] = []
        """Threads of an evaluation and of the update under way."""
        self._measured: Future[dict[str, Any]] | None = None
        """The evaluation under way."""
        self._measured_since = 0.0
        self._unmeasured = deque(self._missing_evaluations()) if run.measuring else deque()
        """Versions whose evaluation is due, the one under way first. Used where evaluations have
        their own worker."""

    @property
    def version(self) -> int:
        """Version that the engines serve."""
        return self._served

    def iterate(self) -> IterationMetrics:
        """Run until the next version is published, and return its metrics line."""
        while True:
            self._start_due_work()
            if self._update is not None and self._update.done():
                return self._finish(self._update.result())
            self._wait()

    def evaluate(self) -> None:
        """Evaluate the served version while training groups go on; the next update waits for it.

        Where batches are fixed, the version is evaluated alone, because the last digits of a turn
        depend on the other turns of its batch. Where evaluations have their own worker, this only
        starts one; after the last update it waits for all.
        """
        if self.run.measuring is not None:
            self._evaluate_beside()
            return
        alone = self.run.config.rollout.deterministic
        while alone and self._under_way:
            self._wait()
        began = time.monotonic()
        measured = self._start_beside(self._measure, self._served, self.run.sampler.memories(self._served))
        while not measured.done():
            if not alone:
                self._start_groups()
            self._wait()
        self._mark(f"evaluate-{policy_name(self._served)}", began)
        self._record_evaluation(measured.result())

    def _evaluate_beside(self) -> None:
        if self._served not in self._unmeasured:
            self._unmeasured.append(self._served)
        self._measure_next()
        while self._unmeasured and not self.unfinished:
            self._wait()
            self._measure_next()

    def _measure_next(self) -> None:
        """Take in an evaluation that its own worker has ended, and start the next due one."""
        if self._measured is not None and self._measured.done():
            version = self._unmeasured.popleft()
            self._mark(f"evaluate-{policy_name(version)}", self._measured_since)
            measured, self._measured = self._measured, None
            self._record_evaluation(measured.result())
        if self._measured is None and self._unmeasured:
            version = self._unmeasured[0]
            self._measured_since = time.monotonic()
            self._measured = self._start_beside(self._measure, version, self.run.sampler.memories(version))

    def _missing_evaluations(self) -> list[int]:
        """Return earlier versions whose due evaluation is missing, because the run was killed
        before it ended."""
        store, every = self.run.store, self.run.config.evaluation.every
        due = [version for version in range(0, self._served, every) if not store.evaluation_path(version).exists()]
        return [version for version in due if not (store.policy_path(version) / REMOVED).exists()]

    # -- starting work

    def _start_due_work(self) -> None:
        self._measure_next()
        self._start_groups()
        self._start_update()

    def _start_groups(self) -> None:
        if self._adaptive is not None:
            self._admissions.limit(self._adaptive.measure(self._admissions.running))
        with self._clock("sample"):
            groups = self._admissions.admit(self._served)
        if not groups:
            return
        rollouts = self.run.rollouts
        with self._clock("orchestrate"):
            shards = share_groups(groups, workers=self._workers, groups_per_task=self.run.groups_per_task)
            requests = [rollouts.request(shard, self._served, or_newer=True) for shard in shards]
            running = rollouts.start(requests, GROUP_PRIORITY)
            for shard in running:
                shard.future.add_done_callback(partial(_put, self._events, shard))
            self._under_way += len(running)

    def _start_update(self) -> None:
        version = self._served + 1
        if self._update is not None or not self.unfinished:
            return
        if self.run.store.batch_path(version).exists():
            self._resume_update()
            return
        late = self._admissions.ready > 0 and self._batch_due() <= 0
        with self._clock("batch"):
            chosen = self._admissions.next_batch(self._served, partial=late or self._admissions.lost)
            if chosen is None:
                return
            self._trainer_queue.leave(chosen.trained, chosen.left_out, time.monotonic())
            records = [self._record_of(group_id) for group_id in chosen.group_ids]
            batch = self._batch(version, records, {}, chosen.group_ids)
        self._check_success(version - 1, batch, records)
        self._begin_update(batch, records)

    def _batch_due(self) -> float:
        """Return the seconds until a batch takes the groups that are ready."""
        seconds = self.run.config.pacing.batch_seconds
        return seconds - (time.monotonic() - self._batch_since) if seconds else float("inf")

    def _begin_update(self, batch: TrainingBatch, records: list[GroupRecord]) -> None:
        group_ids = [record.group_id for record in records]
        self._admissions.take(group_ids)
        remake: Callable[[Mapping[str, str]], TrainingBatch] = partial(
            self._batch, batch.version, records, group_ids=group_ids
        )
        self._update_began = time.monotonic()
        self._update = self._start_beside(update_policy, self.run.store.root, batch, self._trainer, remake)

    def _resume_update(self) -> None:
        """Train on a batch that was written before a kill, unchanged.

        The trainer may have begun or finished it.
        """
        batch = read_batch(self.run.store, self._served + 1)
        self._begin_update(batch, [self._record_of(group_id) for group_id in batch.group_ids or ()])

    def _start_beside(self, work: Callable[..., Any], *values: Any) -> Future[Any]:
        """Run ``work`` in another thread, as part of this flow run. Its end is an event.

        The thread does not outlive the process: an interrupt waits for no update.
        """
        future: Future[Any] = Future()
        future.add_done_callback(lambda _: self._events.put(None))
        context = contextvars.copy_context()

        def run() -> None:
            try:
                future.set_result(context.run(work, *values))
            except BaseException as error:  # raised where the result is asked for
                future.set_exception(error)

        thread = threading.Thread(target=run, name=getattr(work, "__name__", "beside"), daemon=True)
        thread.start()
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
        return future

    # -- taking in results

    def _wait(self) -> None:
        """Wait for the next event or deadline, and take in all events up to then.

        Raises:
            TrainingError: nothing ended for ``pacing.silence`` seconds.
        """
        due = self._batch_due() if self._update is None and self._admissions.ready else LOOK_SECONDS
        try:
            ended = self._events.get(timeout=min(LOOK_SECONDS, max(due, 1.0)))
        except queue.Empty:
            self._check_silence()
            return
        self._last_event = time.monotonic()
        while True:
            if ended is not None:
                self._take_in(ended)
            try:
                ended = self._events.get_nowait()
            except queue.Empty:
                return

    def _check_silence(self) -> None:
        """Raise if nothing ended for too long. An update and an evaluation have limits of their
        own."""
        silence = self.run.config.pacing.silence
        if time.monotonic() - self._last_event < silence or any(thread.is_alive() for thread in self._threads):
            return
        raise TrainingError(
            f"nothing ended in {silence:g} s (pacing.silence), and {self._under_way} shards are under way; "
            f"see the workers in {self.run.store.root / 'live'}, and start the same command again"
        )

    def _take_in(self, shard: RunningShard) -> None:
        self._under_way -= 1
        report = shard.wait()
        with self._clock("orchestrate"):
            self._reports.append(report)
            if report.use is not None:
                self._workers_use.add([report.use])
            records = self.run.records([group.group_id for group in shard.request.groups])
            self.run.journal.accept(records)
            for record in records:
                self._records[record.group_id] = record
                self._trainer_queue.enter(record.group_id, time.monotonic())
                self._admissions.end(record)
            self._mark("groups", shard.started)

    def _finish(self, manifest: dict[str, Any]) -> IterationMetrics:
        """Publish the version that was trained, and return its metrics line."""
        version = self._served + 1
        self._mark(f"update-{policy_name(version)}", self._update_began)
        self._update = None
        self._set_outdated_aside()
        with self._clock("ledger"):
            batch = self._publish(version)
        began = time.monotonic()
        with self._clock("serve"):
            self._serve(version)
        self._mark(f"publish-{policy_name(version)}", began)
        records = [self._record_of(group_id) for group_id in batch.group_ids or ()]
        line = self._line(records, batch, manifest, **self._timings(batch, manifest))
        self._append(line)
        for record in records:
            self._records.pop(record.group_id, None)
        self._clock, self._reports, self._timeline = PhaseTimer(), [], []
        return line

    def _serve(self, version: int) -> None:
        """Have the engines serve a version, between two tokens of the turns under way."""
        rollouts = self.run.rollouts
        if rollouts.servers is not None:
            rollouts.servers.publish(version)
        run_dir, folder = str(self.run.store.root), str(self.run.store.policy_path(version))
        run_as_task(
            "serve", f"serve-{policy_name(version)}", lambda: tell_workers(serve_version, run_dir, version, folder)
        )
        self._served = version
        self._batch_since = time.monotonic()

    def _versions_under_way(self) -> Collection[int]:
        return {*self._admissions.versions_under_way, *self._unmeasured}

    def _record_of(self, group_id: str) -> GroupRecord:
        if group_id not in self._records:
            (self._records[group_id],) = self.run.records([group_id])
        return self._records[group_id]

    def _mark(self, name: str, began: float) -> None:
        """Add work that began at a monotonic time and ends now to the timeline."""
        now = time.time()
        self._timeline.append((name, round(now - (time.monotonic() - began), 2), round(now, 2)))

    # -- the metrics line

    def _timings(self, batch: TrainingBatch, manifest: dict[str, Any]) -> dict[str, Any]:
        rollout_split = sum_by_name(report.seconds for report in self._reports)
        clock, run = self._clock, self.run
        total = clock.total()
        lags = [staleness(batch.policy_version_before, oldest) for oldest, _ in batch.versions or ()]
        seconds = {name: clock.seconds[name] for name in ("batch", "sample", "orchestrate")}
        waits = self._waits([report.pipeline for report in self._reports], manifest)
        waits["queues"] |= self._trainer_queue.close()
        seconds |= {"publish": clock.seconds["serve"], "orchestrate": seconds["orchestrate"] + clock.seconds["ledger"]}
        return {
            "wall": self.wall,
            # Shares of the flow's own wall time; updates run in parallel, see ``asynchronous``.
            "seconds": {"rollout": total - sum(seconds.values()), **seconds, "total": total},
            "rollout_split": dict(rollout_split),
            "browsers": [report.browser for report in self._reports[-1:]],
            "pipelines": [report.pipeline for report in self._reports[-1:]],
            **judge_account(run.config.rollout.judge, run.store.spent_path()),
            **waits,
            "asynchronous": Overlap(
                staleness={str(lag): rows for lag, rows in staleness_histogram(lags).items()},
                train=sum(manifest["seconds"].values()),
                trainer_idle=manifest["waited_seconds"],
                workers_idle=rollout_split["idle"] / max(sum(rollout_split.values()), 1e-9),
                running=self._admissions.running,
                ready=self._admissions.ready,
                timeline=self._timeline,
                **({} if self._adaptive is None else {"limit": self._adaptive.limit}),
            ),
        }


def _put(events: queue.SimpleQueue[RunningShard | None], shard: RunningShard, _: object) -> None:
    events.put(shard)
