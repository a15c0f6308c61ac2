"""The synchronous training loop: roll out, batch, update, publish, evaluate when due.

Every step is skipped when its product is there.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.markup import escape

from envs.types import Split, StopReason, TrainingError
from tasks_lib.config import describe_split
from tasks_lib.episode.reward_stage import judge_account
from tasks_lib.folder.metrics import describe_success, format_share
from tasks_lib.folder.progress import RunProgress, format_rough_duration
from tasks_lib.folder.repair import earlier_groups
from tasks_lib.folder.retention import remove_old_policies
from tasks_lib.loops.run import TrainingRun, iteration_line
from tasks_lib.processes.prefect_run import emit, run_as_task
from tasks_lib.processes.trainer import Trainer, update_policy
from tasks_lib.rollouts.evaluation import evaluate_version, move_outdated_aside, recover_evaluations
from tasks_lib.rollouts.sampling import phase_name
from tasks_lib.rollouts.shards import Rollout, describe_late_batches
from training.batches import TrainingBatch, build_batch
from training.groups import GroupRecord
from training.ledger.journal import published_batch, read_batch
from training.ledger.store import policy_name

MAX_DRAWS = 2
"""Times that the groups of an iteration are drawn when all of them have nothing to learn from; then a version is published unchanged, or, if
nothing was passed, the run ends."""


UPDATE_SHARE = 0.25
"""Expected time of an update, as a share of its rollout's, before any was measured."""


class SynchronousLoop:
    """One iteration after the other; each trains version ``v + 1`` on episodes of version ``v``."""

    def __init__(self, run: TrainingRun, trainer: Trainer, workers: int, progress: RunProgress) -> None:
        self.run = run
        self._trainer = trainer
        self._workers = workers
        self._progress = progress
        lines = run.metrics.lines()
        self._wall_before = lines[-1]["wall"] if lines else 0.0
        self._started = time.perf_counter()
        self._episode_seconds = _pace(run.metrics.lines("evaluation"))
        self._set_outdated_aside()
        self._recover_lines()
        recover_evaluations(run.store, run.metrics.lines("evaluation"))

    @property
    def wall(self) -> float:
        """Seconds of the loop, earlier processes of this run included."""
        return self._wall_before + time.perf_counter() - self._started

    @property
    def unfinished(self) -> bool:
        return self.run.version < self.run.config.iterations

    @property
    def evaluation_due(self) -> bool:
        """The newest version is one that is evaluated, or its evaluation was begun (it may have been the last one then)."""
        run, version = self.run, self.run.version
        begun = bool(run.store.group_ids(f"e{version:06d}")) and not run.store.evaluation_path(version).exists()
        return version % run.config.evaluation.every == 0 or not self.unfinished or begun

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the newest version, once: what is there of its evaluation is not played again."""
        run, version = self.run, self.run.version
        episodes = run.config.evaluation.episodes
        if not run.store.evaluation_path(version).exists():
            # Before an episode was measured here nothing is known: the first ones also load models and pages.
            pace = self._episode_seconds
            expected = f", about {format_rough_duration(episodes * pace)}" if pace is not None else ""
            self._progress.log(
                f"evaluating version {version} on {episodes} {describe_split(run.config.evaluation.split)} episodes{expected} …"
            )
        result = evaluate_version(
            run.rollouts,
            version,
            run.tasks,
            episodes=episodes,
            workers=self._workers,
            split=Split(run.config.evaluation.split),
            memories=run.memories(version),
        )
        # A version that was made again with other weights has another line for them.
        same = {"version": version, "policy": result.get("policy")}
        if not any({name: line.get(name) for name in same} == same for line in run.metrics.lines("evaluation")):
            line = {name: value for name, value in result.items() if name not in ("episodes", "causes")}
            run.metrics.append({"kind": "evaluation", "wall": self.wall, **line}, version)
        self._progress.log(
            f"version {version}: {describe_split(run.config.evaluation.split)} success {describe_success(result)} "
            f"(n = {result['n']}, {result['seconds']:.0f} s)"
        )
        if late := describe_late_batches(result.get("batches", {}), run.config.rollout.wave_deadline):
            self._progress.log(f"  {late}")
        for cause, count in result.get("causes", {}).items():
            self._progress.log(f"  {count} attempts without a reward: {escape(cause)}")
        self._episode_seconds = result["seconds"] / episodes
        return result

    def announce_remaining_work(self) -> None:
        """What the rest of the run is, and about how long it takes by the pace of the last evaluation."""
        config, version = self.run.config, self.run.version
        iterations = config.iterations - version
        episodes = config.rollout.groups_per_iteration * (config.algorithm.group_size + config.rollout.spare)
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

    def iterate(self) -> dict[str, Any]:
        """One iteration; its metrics line."""
        run, iteration = self.run, self.run.version
        clock = _Stopwatch()
        rollout, batch = self._roll_out(iteration, clock)
        with clock("train"):
            manifest = update_policy(
                run.store.root, batch, self._trainer, partial(self._batch, iteration, rollout.records)
            )
        self._set_outdated_aside()
        with clock("ledger"):
            version = iteration + 1
            batch = run_as_task("publish", f"publish-v{version:06d}", lambda: self._record(version))
            emit("rollwright.version.published", run.config.run_id, {"version": version, "rows": len(batch.rows)})
        details = self._details(iteration, rollout, batch, manifest, clock)
        line = iteration_line(rollout.records, {**details, **self._accounts(iteration)})
        # A version that is made again, because the first one was damaged, has its line already.
        if not any(known["iteration"] == iteration for known in run.metrics.lines("iteration")):
            run.metrics.append(line, iteration)
        self._progress.iteration(iteration + 1, _iteration_sentence(line))
        if late := describe_late_batches(line["batches"], run.config.rollout.wave_deadline):
            self._progress.log(f"  {late}")
        return line

    def _record(self, version: int) -> TrainingBatch:
        """Enter a version that the trainer has published, and the episodes that it consumed, in the ledger."""
        batch, group_ids = published_batch(self.run.store, version)
        self.run.journal.record_update(batch, group_ids)
        run = self.run
        if removed := remove_old_policies(run.store, run.config.trainer, run.metrics.lines("evaluation")):
            self._progress.log(f"weights removed (trainer.keep_policies): {', '.join(map(policy_name, removed))}")
        return batch

    def _roll_out(self, iteration: int, clock: _Stopwatch) -> tuple[Rollout, TrainingBatch]:
        """Groups of an iteration and their batch; drawn again when none has anything to learn from, in the end an empty batch."""
        run = self.run
        records: list[GroupRecord] = []
        seconds: defaultdict[str, float] = defaultdict(float)
        for draw in range(self._draws(iteration)):
            with clock("sample"):
                groups = run.sample(iteration, draw)
            rollout = run.rollouts.run(groups, version=iteration, workers=self._workers)
            records += rollout.records
            for name, value in rollout.seconds.items():
                seconds[name] += value
            with clock("batch"):
                run.journal.accept(rollout.records)
                batch = self._batch(iteration, records, {})
            if batch.rows:
                break
        if not batch.rows and not any(episode.passed for record in records for episode in record.episodes):
            raise TrainingError(describe_no_progress(iteration, records))
        return replace(rollout, records=records, seconds=dict(seconds)), batch

    def _batch(self, iteration: int, records: Sequence[GroupRecord], damaged: Mapping[str, str]) -> TrainingBatch:
        groups = [record.episodes for record in records]
        settings = self.run.config.algorithm
        earlier = earlier_groups(self.run.store, iteration + 1, settings)
        return build_batch(iteration + 1, groups, settings, damaged, earlier)

    def _draws(self, iteration: int) -> int:
        """How often an iteration may draw: `MAX_DRAWS` more than in the processes that ended because no episode of all their draws got a reward.

        What they left says nothing of the policy, and the cause may be mended since: a judge that was down, or its budget.
        """
        run, lost = self.run, 0
        draws = defaultdict[str, list[GroupRecord]](list)
        for record in run.records(run.store.group_ids(f"i{iteration:06d}")):
            draws[record.group_id.rpartition("-")[0]].append(record)
        while len(groups := draws[phase_name(iteration, lost)]) == run.config.rollout.groups_per_iteration:
            if any(group.usable for group in groups):
                break
            lost += 1
        return MAX_DRAWS * (lost // MAX_DRAWS + 1)

    def _details(
        self,
        iteration: int,
        rollout: Rollout,
        batch: TrainingBatch,
        manifest: dict[str, Any],
        clock: _Stopwatch,
    ) -> dict[str, Any]:
        inside = {name: value for name, value in rollout.seconds.items() if name != "wall"}
        publish = manifest["seconds"]["save_state"] + manifest["seconds"]["save_policy"]
        seconds = {
            "rollout": sum(inside.values()),
            "train": sum(manifest["seconds"].values()) - publish,
            "publish": publish,
            "batch": clock.seconds["batch"],
            "sample": clock.seconds["sample"],
        }
        total, run = clock.total(), self.run
        return {
            "iteration": iteration,
            "version": iteration + 1,
            "wall": self.wall,
            "seconds": {**seconds, "orchestrate": total - sum(seconds.values()), "total": total},
            "rollout_split": inside,
            "browsers": rollout.browsers,
            "pipelines": rollout.pipelines,
            "batches": rollout.batches,
            **judge_account(run.config.rollout.judge, run.store.spent_path()),
            "groups": {"total": batch.groups, "zero_variance": batch.zero_variance_groups},
            "rows": len(batch.rows),
            "train": _train_metrics(manifest),
            "train_split": manifest["seconds"],
        }

    def _accounts(self, iteration: int) -> dict[str, dict[str, int]]:
        """What became of the episodes of an iteration, by state, and of those that abstained by cause."""
        journal, phase = self.run.journal, phase_name(iteration, 0)
        return {"episodes": journal.episodes(phase), "abstentions": journal.abstentions(phase)}

    def _set_outdated_aside(self) -> None:
        if said := move_outdated_aside(self.run.store, self.run.store.latest_policy() or 0):
            self._progress.log(said)

    def _recover_lines(self) -> None:
        """Iterations that were published right before a kill have no metrics line yet: write what their files tell."""
        run = self.run
        known = {line["iteration"] for line in run.metrics.lines("iteration")}
        for version in run.store.versions():
            if version == 0 or version - 1 in known:
                continue
            records = run.records(run.store.group_ids(f"i{version - 1:06d}"))
            batch = read_batch(run.store, version)
            manifest = run.store.manifest(version)
            trained = sum(manifest["seconds"].values())
            details = {
                "iteration": version - 1,
                "version": version,
                "wall": self._wall_before,
                "seconds": {"train": trained, "total": trained},
                "rollout_split": {},
                "groups": {"total": batch.groups, "zero_variance": batch.zero_variance_groups},
                **self._accounts(version - 1),
                "rows": len(batch.rows),
                "train": _train_metrics(manifest),
                "train_split": manifest["seconds"],
                "recovered": True,
            }
            run.metrics.append(iteration_line(records, details), version - 1)


def _pace(evaluations: Sequence[dict[str, Any]]) -> float | None:
    """Seconds of an episode in the run's last evaluation that played any; ``None`` before the first."""
    for line in reversed(evaluations):
        if episodes := line["n"] + line.get("abstained", 0):
            return float(line["seconds"] / episodes)
    return None


class _Stopwatch:
    """Seconds of named stretches, and of all since it was made."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._made = time.perf_counter()
        self._name = ""
        self._since = 0.0

    def __call__(self, name: str) -> _Stopwatch:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self._name] += time.perf_counter() - self._since

    def total(self) -> float:
        return time.perf_counter() - self._made


def describe_no_progress(iteration: int, records: Sequence[GroupRecord]) -> str:
    """Why an iteration without a passed episode ends the run: what abstained says nothing of the policy, what failed does. With what to do."""
    episodes = [
        episode for record in records for episode in record.episodes if episode.stop_reason is not StopReason.ABANDONED
    ]
    causes = Counter(episode.abstained or "" for episode in episodes if episode.score is None)
    said = f"iteration {iteration}: "
    if causes:
        (cause, times), abstained = causes.most_common(1)[0], causes.total()
        said += f"{abstained} of {len(episodes)} episodes abstained (commonest cause, {times} times: {cause})"
        if abstained == len(episodes):
            return f"{said}, so nothing is known of the policy; look at them in the report, remove the cause, and start the same command again"
        return (
            f"{said}, and the other {len(episodes) - abstained} failed, so there is nothing to learn from; look at them in the report: remove "
            f"the cause of the abstentions, and start from a policy that succeeds at times (docs/warm-start.md)"
        )
    return (
        f"{said}all {len(episodes)} episodes failed, so there is nothing to learn from; look at them in the report, and start from a policy "
        f"that succeeds at times (docs/warm-start.md)"
    )


def _iteration_sentence(line: dict[str, Any]) -> str:
    groups, seconds = line["groups"], line["seconds"]
    return (
        f"iteration {line['iteration']:3d}: success {format_share(line['success'])}, "
        f"{groups['total'] - groups['zero_variance']}/{groups['total']} groups "
        f"to learn from, rollout {seconds['rollout']:.1f} s, train {seconds['train']:.1f} s, overhead {seconds['orchestrate']:.1f} s"
    )


def _train_metrics(manifest: dict[str, Any]) -> dict[str, Any]:
    metrics = manifest["metrics"]
    if not {"clip_low", "clip_high"} <= metrics.keys():  # of cloning, or of a batch without rows
        return dict(metrics)
    return {**metrics, "clip_fraction": metrics["clip_low"] + metrics["clip_high"]}
