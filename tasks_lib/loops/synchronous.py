"""The synchronous training loop: roll out, batch, update, publish, evaluate when due.

Each step is skipped when its product exists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tasks_lib.folder.metrics import sum_by_name
from tasks_lib.folder.metrics_lines import IterationMetrics
from tasks_lib.loops.base import MAX_DRAWS, PhaseTimer, TrainingLoop
from tasks_lib.processes.trainer import update_policy
from tasks_lib.rollouts.sampling import phase_name
from tasks_lib.rollouts.shards import RolloutResult
from tasks_lib.worker.reward_stage import judge_account
from training.records.batches import TrainingBatch
from training.records.groups import GroupRecord


class SynchronousLoop(TrainingLoop):
    """Runs one iteration after the other. Each trains version ``v + 1`` on episodes of version
    ``v``."""

    def iterate(self) -> IterationMetrics:
        """Run one iteration and return its metrics line."""
        run, iteration = self.run, self.run.version
        clock = PhaseTimer()
        rollout, batch = self._roll_out(iteration, clock)
        with clock("train"):
            if run.config.serving.sleep and run.rollouts.servers is not None:
                run.rollouts.servers.sleep()
            manifest = update_policy(
                run.store.root, batch, self._trainer, partial(self._batch, iteration + 1, rollout.records)
            )
        self._set_outdated_aside(iteration + 1)
        with clock("ledger"):
            batch = self._publish(iteration + 1)
        line = self._line(rollout.records, batch, manifest, **self._timings(rollout, manifest, clock))
        self._append(line)
        return line

    def _roll_out(self, iteration: int, clock: PhaseTimer) -> tuple[RolloutResult, TrainingBatch]:
        """Return the groups of an iteration and their batch.

        They are drawn again while none has a training signal; in the end the batch may be empty.
        """
        run = self.run
        records: list[GroupRecord] = []
        seconds: list[Mapping[str, float]] = []
        for draw in range(self._draws(iteration)):
            with clock("sample"):
                groups = run.sampler.groups(iteration, draw)
            rollout = run.rollouts.run(groups, version=iteration, workers=self._workers)
            records += rollout.records
            self._workers_use.add(rollout.uses)
            seconds.append(rollout.seconds)
            with clock("batch"):
                run.journal.accept(rollout.records)
                batch = self._batch(iteration + 1, records, {})
            if batch.rows:
                break
        self._check_success(iteration, batch, records)
        return replace(rollout, records=records, seconds=dict(sum_by_name(seconds))), batch

    def _draws(self, iteration: int) -> int:
        """Return how many draws an iteration may make.

        It may make `MAX_DRAWS` more than in earlier processes that ended because no episode of
        their draws got a reward. Those say nothing of the policy, and the cause may be mended
        since: a judge that was down, or its budget.
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

    def _timings(self, rollout: RolloutResult, manifest: dict[str, Any], clock: PhaseTimer) -> dict[str, Any]:
        rollout_split = {name: value for name, value in rollout.seconds.items() if name != "wall"}
        publish = manifest["seconds"]["save_state"] + manifest["seconds"]["save_policy"]
        seconds = {
            "rollout": sum(rollout_split.values()),
            "train": sum(manifest["seconds"].values()) - publish,
            "publish": publish,
            "batch": clock.seconds["batch"],
            "sample": clock.seconds["sample"],
        }
        total, run = clock.total(), self.run
        return {
            "wall": self.wall,
            "seconds": {**seconds, "orchestrate": total - sum(seconds.values()), "total": total},
            "rollout_split": rollout_split,
            "browsers": rollout.browsers,
            "pipelines": rollout.pipelines,
            **judge_account(run.config.rollout.judge, run.store.spent_path()),
            **self._waits(rollout.pipelines, manifest),
            "batches": rollout.batches,  # evaluations have their own
        }
