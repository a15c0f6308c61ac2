"""Common parts of the training loops: evaluations, progress messages, ledger and metrics."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.markup import escape

from envs.types import Memory, Split, StopReason, TrainingError
from tasks_lib.config import describe_split
from tasks_lib.folder.batches import earlier_groups
from tasks_lib.folder.metrics import describe_success, episode_figures, format_share
from tasks_lib.folder.metrics_lines import EvaluationMetrics, IterationMetrics
from tasks_lib.folder.progress import RunProgress, format_rough_duration
from tasks_lib.folder.weight_removal import PolicyRetention
from tasks_lib.loops.alerts import AbstentionAlert
from tasks_lib.loops.run import TrainingRun
from tasks_lib.processes.prefect_run import emit, run_as_task
from tasks_lib.processes.trainer import Trainer
from tasks_lib.rollouts.evaluation import evaluate_version, move_outdated_aside, recover_evaluations
from tasks_lib.rollouts.shards import describe_late_batches
from tasks_lib.rollouts.use import WorkerAccount, mean_waits, trainer_idle
from training.ledger.journal import published_batch, read_batch
from training.ledger.paths import policy_name
from training.records.batches import TrainingBatch, build_batch
from training.records.groups import GroupRecord

MAX_DRAWS = 2
"""Draws of a batch's groups while none has a training signal. Then a version is published
unchanged."""
MAX_FRUITLESS = 3
"""Iterations in a row without a successful episode, after which the run ends.

One or two are bad luck where groups are few and small.
"""

UPDATE_SHARE = 0.25
"""Expected time of an update, as a share of its rollout's, before any was measured."""


class TrainingLoop(ABC):
    """The part of a run's loop that the synchronous and the asynchronous mode share."""

    def __init__(self, run: TrainingRun, trainer: Trainer, workers: int, progress: RunProgress) -> None:
        self.run = run
        self._trainer = trainer
        self._workers = workers
        self._progress = progress
        self._workers_use = WorkerAccount()
        self._wall_before = run.metrics.wall
        self._started = time.perf_counter()
        self._abstentions = AbstentionAlert(run.store.root.name, run.config.alerts.abstentions)
        self._fruitless = 0
        """Iterations in a row, of this process, without a successful episode."""
        evaluations = run.metrics.lines(EvaluationMetrics)
        self._episode_seconds = _pace(evaluations)
        self._recorded = {line.iteration for line in run.metrics.lines(IterationMetrics)}
        """Iterations that have their metrics line."""
        self._retention = PolicyRetention(run.store, run.config.trainer)
        self._set_outdated_aside(run.store.latest_policy() or 0)
        self._recover_ledger()
        self._recover_lines()
        recover_evaluations(run.store, evaluations)

    @abstractmethod
    def iterate(self) -> IterationMetrics:
        """Run until the next version is published, and return its metrics line."""

    @property
    def version(self) -> int:
        """The version that the loop is at."""
        return self.run.version

    @property
    def wall(self) -> float:
        """Seconds of the loop, including earlier processes of this run."""
        return self._wall_before + time.perf_counter() - self._started

    @property
    def unfinished(self) -> bool:
        return self.version < self.run.config.iterations

    @property
    def evaluation_due(self) -> bool:
        """True if the newest version is to be evaluated, or its evaluation is unfinished.

        An unfinished one may have been begun because the version was the last one then.
        """
        run, version = self.run, self.version
        begun = bool(run.store.group_ids(f"e{version:06d}")) and not run.store.evaluation_path(version).exists()
        return version % run.config.evaluation.every == 0 or not self.unfinished or begun

    def evaluate(self) -> None:
        """Evaluate the current version once: episodes of it that are recorded are not played
        again."""
        self._record_evaluation(self._measure(self.version, self.run.sampler.memories(self.version)))

    def _measure(self, version: int, memories: Mapping[str, Memory]) -> dict[str, Any]:
        run = self.run
        episodes = run.config.evaluation.episodes
        if not run.store.evaluation_path(version).exists():
            # No pace is known before an evaluation: first episodes also load models and pages.
            pace = self._episode_seconds
            expected = f", about {format_rough_duration(episodes * pace)}" if pace is not None else ""
            self._progress.log(
                f"evaluating version {version} on {episodes} {describe_split(run.config.evaluation.split)} episodes{expected} …"
            )
        return evaluate_version(
            run.measuring or run.rollouts,
            version,
            run.tasks,
            episodes=episodes,
            workers=1 if run.measuring else self._workers,
            split=Split(run.config.evaluation.split),
            memories=memories,
        )

    def _record_evaluation(self, result: dict[str, Any]) -> None:
        """Append an evaluation to the metrics, and log its results."""
        run, version = self.run, result["version"]
        # A version that was made again with other weights has another line for them.
        line = EvaluationMetrics.model_validate({**result, "wall": self.wall}, extra="ignore")
        known = ((known.version, known.policy) for known in run.metrics.lines(EvaluationMetrics))
        if (line.version, line.policy) not in known:
            run.metrics.append(line, version)
        self._progress.log(
            f"version {version}: {describe_split(run.config.evaluation.split)} success {describe_success(result)} "
            f"(n = {result['n']}, {result['seconds']:.0f} s)"
        )
        if late := describe_late_batches(result.get("batches", {}), run.config.rollout.batch_deadline):
            self._progress.log(f"  {late}")
        for cause, count in result.get("causes", {}).items():
            self._progress.log(f"  {count} attempts without a reward: {escape(cause)}")
        self._episode_seconds = result["seconds"] / run.config.evaluation.episodes

    def announce_remaining_work(self) -> None:
        """Log the remaining work of the run, with an estimate of its time.

        The estimate takes the pace of the last evaluation.
        """
        config, version = self.run.config, self.version
        iterations = config.iterations - version
        episodes = config.rollout.groups_per_iteration * config.episodes_per_group
        evaluations = -(-config.iterations // config.evaluation.every) - version // config.evaluation.every
        seconds = iterations * episodes * (1 + UPDATE_SHARE) + evaluations * config.evaluation.episodes
        pace = self._episode_seconds
        expected = (
            f": about {format_rough_duration(seconds * pace)} at the pace of the last evaluation"
            if pace is not None
            else ""
        )
        self._progress.log(
            f"{iterations} iterations of {episodes} episodes and an update, {evaluations} evaluations{expected}"
        )

    def _record(self, version: int) -> TrainingBatch:
        """Record a version that the trainer has published, and the episodes it consumed, in the
        ledger."""
        batch = published_batch(self.run.store, version)
        self.run.journal.record_update(batch)
        self.run.mark_checked(batch)
        run = self.run
        means = {line.version: line.mean for line in run.metrics.lines(EvaluationMetrics)}
        if removed := self._retention.remove(version, means, self._needed_versions()):
            self._progress.log(f"weights removed (trainer.keep_policies): {', '.join(map(policy_name, removed))}")
        return batch

    def _needed_versions(self) -> Collection[int]:
        """Return the versions whose weights are still needed: groups were started with them, or
        they are to be served or evaluated."""
        return ()

    def _publish(self, version: int) -> TrainingBatch:
        """Run `_record` as a Prefect task, and emit the event of the publication."""
        batch = run_as_task("publish", f"publish-v{version:06d}", lambda: self._record(version))
        folder = str(self.run.store.policy_path(version))
        payload = {"version": version, "rows": len(batch.rows), "folder": folder}
        emit("rollwright.version.published", self.run.config.run_id, payload)
        return batch

    def _batch(self, version: int, records: Sequence[GroupRecord], damaged: Mapping[str, str]) -> TrainingBatch:
        """Return the batch that makes a version out of these groups, without damaged episodes."""
        groups = [record.episodes for record in records]
        settings = self.run.config.batch_settings
        earlier = earlier_groups(self.run.store, version, settings)
        return build_batch(version, groups, settings, damaged, earlier, self.run.config.seed)

    def _check_success(self, iteration: int, batch: TrainingBatch, records: Sequence[GroupRecord]) -> None:
        """Warn of an iteration in which no episode succeeded.

        Raises:
            TrainingError: it is the last of `MAX_FRUITLESS` in a row, or not one of its episodes
                has a reward.
        """
        self._abstentions.look(iteration, records)
        episodes = [episode for record in records for episode in record.episodes]
        if batch.rows or any(episode.passed for episode in episodes):
            self._fruitless = 0
            return
        self._fruitless += 1
        why = describe_no_progress(iteration, records)
        if self._fruitless == MAX_FRUITLESS or all(episode.score is None for episode in episodes):
            raise TrainingError(why)
        self._progress.log(f"[yellow]{escape(why)}; version {iteration + 1} is published unchanged[/yellow]")

    def _line(
        self, records: Sequence[GroupRecord], batch: TrainingBatch, manifest: dict[str, Any], **measured: Any
    ) -> IterationMetrics:
        """Return the metrics of the iteration of a published batch.

        Args:
            records: Groups of the iteration.
            manifest: Manifest of the version that was trained on the batch.
            measured: Fields that follow from no file: times, waits and counters.
        """
        journal = self.run.journal
        if (servers := self.run.rollouts.servers) is not None and not measured.get("recovered"):
            measured["servers_behind"] = len(servers.behind)
        return IterationMetrics(
            **episode_figures(records),
            iteration=batch.version - 1,
            version=batch.version,
            groups={"total": len(batch.group_ids), "zero_variance": batch.zero_variance_groups},
            rows=len(batch.rows),
            train=train_metrics(manifest),
            train_split=manifest["seconds"],
            episodes=journal.episodes(batch.group_ids),
            abstentions=journal.abstentions(batch.group_ids),
            **measured,
        )

    def _append(self, line: IterationMetrics) -> None:
        """Store and show the line of an iteration.

        A version that is made again, because the first one was damaged, has its line already.
        """
        run, iteration = self.run, line.iteration
        if iteration not in self._recorded:
            run.metrics.append(line, iteration)
            self._recorded.add(iteration)
        self._progress.iteration(iteration + 1, describe_iteration(line))
        if late := describe_late_batches(line.batches, run.config.rollout.batch_deadline):
            self._progress.log(f"  {late}")

    def _waits(
        self, pipelines: Sequence[Mapping[str, Mapping[str, Any]]], manifest: Mapping[str, Any]
    ) -> dict[str, dict[str, float]]:
        """Return idle shares, mean seconds in queues and generation batches since the previous
        line.

        Each holds only what was measured.
        """
        idle, queues, batches = self._workers_use.close()
        idle |= trainer_idle(manifest)
        return {"idle": idle, "queues": {**mean_waits(pipelines), **queues}, "batches": {**batches}}

    def _set_outdated_aside(self, version: int) -> None:
        """Move the evaluation of a version aside if it has other weights since."""
        if message := move_outdated_aside(self.run.store, version):
            self._progress.log(message)

    def _recover_ledger(self) -> None:
        """Record versions that the trainer has published since the run was opened.

        The trainer goes on by itself with a batch that it finds.
        """
        run = self.run
        recorded = set(run.journal.updates())
        for version in run.store.versions():
            if 0 < version <= self.version and version not in recorded:
                run.journal.record_update(published_batch(run.store, version))

    def _recover_lines(self) -> None:
        """Write missing metrics lines of iterations that were published right before a kill.

        They are made from the iterations' files.
        """
        run = self.run
        for version in run.store.versions():
            if version == 0 or version > self.version or version - 1 in self._recorded:
                continue
            manifest, batch = run.store.manifest(version), read_batch(run.store, version)
            trained = sum(manifest["seconds"].values())
            line = self._line(
                run.records(batch.group_ids),
                batch,
                manifest,
                wall=self._wall_before,
                seconds={"train": trained, "total": trained},
                rollout_split={},
                idle=trainer_idle(manifest),
                recovered=True,
            )
            run.metrics.append(line, version - 1)
            self._recorded.add(version - 1)


def _pace(evaluations: Sequence[EvaluationMetrics]) -> float | None:
    """Return seconds per episode of the last evaluation that played any; ``None`` before the
    first."""
    for line in reversed(evaluations):
        if (episodes := line.n + line.abstained) and line.seconds is not None:
            return line.seconds / episodes
    return None


class PhaseTimer:
    """Measures seconds of named stretches, and of all the time since it was made."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._made = time.perf_counter()
        self._name = ""
        self._since = 0.0

    def __call__(self, name: str) -> PhaseTimer:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self._name] += time.perf_counter() - self._since

    def total(self) -> float:
        return time.perf_counter() - self._made


def describe_no_progress(iteration: int, records: Sequence[GroupRecord]) -> str:
    """Explain why an iteration without a passed episode ends the run, and what to do.

    Abstentions say nothing of the policy; failures do.
    """
    episodes = [
        episode for record in records for episode in record.episodes if episode.stop_reason is not StopReason.ABANDONED
    ]
    causes = Counter(episode.abstained or "" for episode in episodes if episode.score is None)
    message = f"iteration {iteration}: "
    if causes:
        (cause, times), abstained = causes.most_common(1)[0], causes.total()
        message += f"{abstained} of {len(episodes)} episodes abstained (commonest cause, {times} times: {cause})"
        if abstained == len(episodes):
            return f"{message}, so nothing is known of the policy; look at them in the report, remove the cause, and start the same command again"
        return (
            f"{message}, and the other {len(episodes) - abstained} failed, so there is nothing to learn from; look at them in the report: remove "
            f"the cause of the abstentions, and start from a policy that succeeds at times (docs/warm-start.md)"
        )
    return (
        f"{message}all {len(episodes)} episodes failed, so there is nothing to learn from; look at them in the report, and start from a policy "
        f"that succeeds at times (docs/warm-start.md)"
    )


def describe_iteration(line: IterationMetrics) -> str:
    """Return a sentence about an iteration for the terminal."""
    groups, seconds = line.groups, line.seconds
    train = line.asynchronous.train if line.asynchronous is not None else seconds["train"]
    return (
        f"iteration {line.iteration:3d}: success {format_share(line.success)}, "
        f"{groups['total'] - groups['zero_variance']}/{groups['total']} groups "
        f"to learn from, rollout {seconds['rollout']:.1f} s, train {train:.1f} s, overhead {seconds['orchestrate']:.1f} s"
    )


def train_metrics(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the trainer's measurements in the form of the metrics lines."""
    metrics = manifest["metrics"]
    if not {"clip_low", "clip_high"} <= metrics.keys():  # cloning, or no rows
        return dict(metrics)
    return {**metrics, "clip_fraction": metrics["clip_low"] + metrics["clip_high"]}
