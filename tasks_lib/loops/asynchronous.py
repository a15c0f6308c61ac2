"""The asynchronous training loop: rollouts and updates go on while versions are published.

Who runs, and who waits for whom::

    flow thread (this loop)     Dask workers           update thread       publication thread
    ───────────────────────     ────────────           ─────────────       ──────────────────
    start groups  ────────────> roll_out(shard)
    wait for an event <─ shard ─ ended, committed
    batch ready: start update ───────────────────────> trainer: make v+1
    start groups, wait ...      (rollouts go on)       wait for it
    wait for an event <─ update ─────────────────────── v+1 is written
    batch ready: start update ───────────────────────> trainer: make v+2
    enter v+1 into the ledger
    start publication of v+1 ────────────────────────────────────────────> servers: load, probe
    start groups, wait ...      load v+1 between two tokens <───────────── tell the workers
    wait for an event <─ publication ───────────────────────────────────── v+1 is served
    start an evaluation ──────> (its own thread waits for it)

The loop waits for events alone: a shard, the update, the publication or an evaluation that ended.
After each it starts an update when its groups are ready, the publication of the next trained
version, and the groups that admission allows. Batches are chosen against the trainer's version,
groups are admitted at the served one. No turn is broken off for a publication. See docs/async.md.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from envs.types import TrainingError
from tasks_lib.folder.metrics_lines import IterationMetrics
from tasks_lib.folder.progress import RunProgress
from tasks_lib.loops.base import TrainingLoop
from tasks_lib.loops.evaluation_queue import EvaluationQueue, missing_evaluations
from tasks_lib.loops.load import AdaptiveConcurrency
from tasks_lib.loops.overlap_account import OverlapAccount
from tasks_lib.loops.run import TrainingRun
from tasks_lib.loops.side_threads import SideThreads, SideWork
from tasks_lib.processes.prefect_run import run_as_task
from tasks_lib.processes.trainer import Trainer, update_policy
from tasks_lib.rollouts.admitted_groups import AdmittedGroups
from tasks_lib.rollouts.cluster import follow_groups, tell_workers
from tasks_lib.rollouts.shards import RunningShard, share_groups
from tasks_lib.rollouts.use import TrainerQueue
from tasks_lib.worker.reward_stage import judge_account
from tasks_lib.worker.rollout_worker import serve_version
from training.ledger.journal import read_batch
from training.ledger.paths import policy_name
from training.pacing.admission import MAX_UNSERVED, Pace, update_may_start
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
        """Version that the engines serve."""
        self._trained = run.opened_at
        """Newest version that the trainer has written."""
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
            checked=run.checked,
        )
        self._adaptive = (
            AdaptiveConcurrency(run.store, config.serving_of_rollouts, pace.running) if config.pacing.adaptive else None
        )
        self._events: queue.SimpleQueue[RunningShard | str | None] = queue.SimpleQueue()
        """Shards that ended, and ids of groups that did; ``None`` for anything else."""
        self._under_way = 0
        self._open: set[str] = set()
        """Ids of the groups that were started and are not taken in."""
        follow_groups(run.store.root, self._events.put)
        self._update: SideWork | None = None
        self._unserved: deque[tuple[TrainingBatch, dict[str, Any]]] = deque()
        """Batch and manifest of versions to be served, the one that is being published first."""
        self._publication: SideWork | None = None
        self._batch_since = time.monotonic()
        """Monotonic time of the end of the newest update: batches may close by time."""
        self._records: dict[str, GroupRecord] = {}
        """Groups that ended and whose version is not published, by id."""
        self._account = OverlapAccount()
        """Times since the newest line."""
        self._trainer_queue = TrainerQueue()
        self._last_event = time.monotonic()
        self._beside = SideThreads(lambda: self._events.put(None))
        beside = run.measuring is not None
        self._evaluations = EvaluationQueue(
            self._missing(0) if beside else (), self._start_evaluation, self._end_evaluation
        )
        """Evaluations that have their own worker."""
        self._left_over = [] if beside else self._missing(self._served - MAX_UNSERVED - 1)
        """Versions that an earlier process was killed before it measured them, or served them."""

    @property
    def version(self) -> int:
        """Version that the engines serve."""
        return self._served

    def iterate(self) -> IterationMetrics:
        """Run until the next version is served, and return its metrics line."""
        while True:
            self._evaluations.advance()
            self._go_on_training()
            self._start_publication()
            self._start_groups()
            if self._publication is not None and self._publication.done:
                return self._end_publication(self._publication)
            self._wait()

    # -- evaluations

    @property
    def evaluation_due(self) -> bool:
        """True if a version is to be evaluated: the served one, or one that a kill left over."""
        return bool(self._left_over) or super().evaluation_due

    def evaluate(self) -> None:
        """Evaluate the served version while training goes on; the next publication waits for it.

        Where batches are fixed, no groups are played meanwhile, because the last digits of a turn
        depend on the other turns of its batch. Where evaluations have their own worker, this only
        starts one; after the last update it waits for all.
        """
        if self.run.measuring is not None:
            self._evaluate_beside()
            return
        while self._left_over:
            self._evaluate_shared(self._left_over[0], alone=True)
            self._left_over.pop(0)
            if not self._left_over:
                self._serve(self._served)  # the engines have gone back to an older version
        if super().evaluation_due:
            self._evaluate_shared(self._served, alone=self.run.config.rollout.deterministic)

    def _evaluate_shared(self, version: int, *, alone: bool) -> None:
        """Evaluate a version on the engines of the training groups.

        Args:
            alone: Play no groups meanwhile.
        """
        while alone and self._under_way:
            self._go_on_training()
            self._wait()
        measured = self._start_evaluation(version)
        while not measured.done:
            self._go_on_training()
            if not alone:
                self._start_groups()
            self._wait()
        self._end_evaluation(version, measured)

    def _evaluate_beside(self) -> None:
        self._evaluations.add(self._served)
        self._evaluations.advance()
        while self._evaluations.versions and not self.unfinished:
            self._wait()
            self._evaluations.advance()

    def _start_evaluation(self, version: int) -> SideWork:
        return self._beside.start(self._measure, version, self.run.sampler.memories(version))

    def _end_evaluation(self, version: int, measured: SideWork) -> None:
        self._account.mark(f"evaluate-{policy_name(version)}", measured.began)
        self._record_evaluation(measured.result())

    def _missing(self, first: int) -> list[int]:
        return missing_evaluations(self.run.store, self.run.config.evaluation.every, first, self._served)

    # -- starting work

    def _start_groups(self) -> None:
        under_way, rollouts = self._admissions.running, self.run.rollouts
        if self._adaptive is not None:
            self._admissions.limit(self._adaptive.measure(under_way))
        with self._account.clock("sample"):
            groups = self._admissions.admit(self._served, self.run.least_groups(under_way, self._workers))
        if not groups:
            return
        with self._account.clock("orchestrate"):
            shares = self.run.groups_per_task
            shards = share_groups(groups, workers=self._workers, groups_per_task=shares, live=rollouts.live)
            requests = [rollouts.request(shard, self._served, or_newer=True) for shard in shards]
            running = rollouts.start(requests, GROUP_PRIORITY)
            for shard in running:
                shard.future.add_done_callback(lambda _, shard=shard: self._events.put(shard))  # type: ignore[misc]
            self._under_way += len(running)
            self._open |= {group.group_id for group in groups}

    def _go_on_training(self) -> None:
        """Take in an update that has ended, and start the next one if its batch is ready."""
        ended = self._update if self._update is not None and self._update.done else None
        manifest = self._end_update(ended) if ended is not None else None
        self._start_update()
        if manifest is not None:  # the trainer does not wait for the ledger
            self._enter_version(self._trained, manifest)

    def _start_update(self) -> None:
        version = self._trained + 1
        if self._update is not None or version > self.run.config.iterations:
            return
        if not update_may_start(self._trained, self._served):
            return
        if self.run.store.batch_path(version).exists():
            self._resume_update()
            return
        late = self._admissions.ready > 0 and self._batch_due() <= 0
        with self._account.clock("batch"):
            chosen = self._admissions.next_batch(self._trained, partial=late or self._admissions.lost)
            if chosen is None:
                return
            self._trainer_queue.leave(chosen.trained, chosen.left_out, time.monotonic())
            records = [self._record_of(group_id) for group_id in chosen.group_ids]
            batch = self._batch(version, records, {})
        self._check_success(version - 1, batch, records)
        self._begin_update(batch, records)

    def _batch_due(self) -> float:
        """Return the seconds until a batch takes the groups that are ready."""
        seconds = self.run.config.pacing.batch_seconds
        return seconds - (time.monotonic() - self._batch_since) if seconds else float("inf")

    def _begin_update(self, batch: TrainingBatch, records: list[GroupRecord]) -> None:
        self._admissions.take(batch.group_ids)
        remake = partial(self._batch, batch.version, records)
        self._update = self._beside.start(update_policy, self.run.store.root, batch, self._trainer, remake)

    def _resume_update(self) -> None:
        """Train on a batch that was written before a kill: the trainer may have begun it."""
        batch = read_batch(self.run.store, self._trained + 1)
        self._begin_update(batch, [self._record_of(group_id) for group_id in batch.group_ids])

    def _start_publication(self) -> None:
        if self._publication is None and self._unserved:
            self._publication = self._beside.start(self._serve, self._served + 1)

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
            if isinstance(ended, str):
                self._take_in_groups([ended])
            elif ended is not None:
                self._take_in(ended)
            try:
                ended = self._events.get_nowait()
            except queue.Empty:
                return

    def _check_silence(self) -> None:
        """Raise if nothing ended for too long. Work in threads has limits of its own."""
        silence = self.run.config.pacing.silence
        if time.monotonic() - self._last_event < silence or self._beside.busy:
            return
        raise TrainingError(
            f"nothing ended in {silence:g} s (pacing.silence), and {self._under_way} shards are under way; "
            f"see the workers in {self.run.store.root / 'live'}, and start the same command again"
        )

    def _take_in(self, shard: RunningShard) -> None:
        self._under_way -= 1
        report = shard.wait()
        with self._account.clock("orchestrate"):
            self._account.reports.append(report)
            if report.use is not None:
                self._workers_use.add([report.use])
            self._account.mark("groups", shard.started)
        self._take_in_groups([group.group_id for group in shard.request.groups])

    def _take_in_groups(self, group_ids: Sequence[str]) -> None:
        """Take in those of these groups that have ended and are new.

        A record that a network file system does not show yet is taken in when its shard ends.
        """
        with self._account.clock("orchestrate"):
            ended = [name for name in group_ids if name in self._open and self.run.store.group_path(name).exists()]
            records = self.run.records(ended)
            self.run.journal.accept(records)
            for record in records:
                self._open.discard(record.group_id)
                self._records[record.group_id] = record
                self._trainer_queue.enter(record.group_id, time.monotonic())
                self._admissions.end(record)

    def _end_update(self, ended: SideWork) -> dict[str, Any]:
        """Take in the version that the trainer has written, and return its manifest."""
        manifest: dict[str, Any] = ended.result()
        self._update = None
        self._trained += 1
        self._batch_since = time.monotonic()
        self._account.mark(f"update-{policy_name(self._trained)}", ended.began)
        return manifest

    def _enter_version(self, version: int, manifest: dict[str, Any]) -> None:
        """Enter a trained version into the ledger; it is served after the ones before it."""
        self._set_outdated_aside(version)
        with self._account.clock("ledger"):
            batch = self._publish(version)
        self._unserved.append((batch, manifest))

    def _serve(self, version: int) -> None:
        """Have the engines serve a version, between two tokens of the turns under way."""
        rollouts = self.run.rollouts
        if rollouts.servers is not None:
            rollouts.servers.publish(version)
        run_dir, folder = str(self.run.store.root), str(self.run.store.policy_path(version))
        run_as_task(
            "serve", f"serve-{policy_name(version)}", lambda: tell_workers(serve_version, run_dir, version, folder)
        )

    def _end_publication(self, ended: SideWork) -> IterationMetrics:
        """Take in that a version is served, and return its metrics line."""
        ended.result()
        self._publication = None
        self._served += 1
        batch, manifest = self._unserved.popleft()
        seconds = time.monotonic() - ended.began
        self._account.mark(f"publish-{policy_name(self._served)}", ended.began)
        self._go_on_training()  # an update may have waited for this
        if self.run.measuring is not None or not self.evaluation_due:
            self._start_publication()
        records = [self._record_of(group_id) for group_id in batch.group_ids]
        line = self._line(records, batch, manifest, **self._timings(batch, manifest, seconds))
        self._append(line)
        for record in records:
            self._records.pop(record.group_id, None)
        self._account = OverlapAccount()
        return line

    def _needed_versions(self) -> Collection[int]:
        waiting = (*self._evaluations.versions, *self._left_over)
        return {*self._admissions.versions_under_way, *waiting, *range(self._served, self._trained + 1)}

    def _record_of(self, group_id: str) -> GroupRecord:
        if group_id not in self._records:
            (self._records[group_id],) = self.run.records([group_id])
        return self._records[group_id]

    # -- the metrics line

    def _timings(self, batch: TrainingBatch, manifest: dict[str, Any], publication: float) -> dict[str, Any]:
        account, run = self._account, self.run
        pipelines = [report.pipeline for report in account.reports]
        waits = self._waits(pipelines, manifest)
        waits["queues"] |= self._trainer_queue.close()
        limit = {} if self._adaptive is None else {"limit": self._adaptive.limit}
        return {
            "wall": self.wall,
            "seconds": account.seconds(),
            "rollout_split": account.rollout_split(),
            "browsers": [report.browser for report in account.reports[-1:]],
            "pipelines": pipelines[-1:],
            **judge_account(run.config.rollout.judge, run.store.spent_path()),
            **waits,
            "asynchronous": account.overlap(
                batch,
                manifest,
                publish=publication,
                running=self._admissions.running,
                ready=self._admissions.ready,
                **limit,
            ),
        }
