"""Opens or resumes a training run's folder.

Only one flow process may write its ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from envs.types import StorageError
from tasks_lib.config import TrainConfig
from tasks_lib.folder.derived import describe_choices, with_derived
from tasks_lib.folder.failed_start import undo_failed_start
from tasks_lib.folder.lock import run_lock
from tasks_lib.folder.metrics import MetricsLog
from tasks_lib.folder.repair import repair_run, stored_by_group
from tasks_lib.folder.task_sets import freeze_tasks
from tasks_lib.folder.trackers import open_trackers
from tasks_lib.folder.values import freeze_config
from tasks_lib.processes.dask_clients import EVALUATION_RESOURCE
from tasks_lib.processes.serving import PolicyServers, serve_policy
from tasks_lib.rollouts.sampling import GroupSampler
from tasks_lib.rollouts.shards import Rollouts
from tasks_lib.worker.requests import RolloutRequest
from training.ledger.checked import mark_checked, unchanged_versions
from training.ledger.journal import Journal, read_batch, read_group
from training.ledger.store import RunStore
from training.records.batches import TrainingBatch
from training.records.groups import GroupRecord
from training.serving.config import ServingConfig


class TrainingRun:
    """One run: its store, ledger, metrics and frozen tasks."""

    def __init__(self, config: TrainConfig) -> None:
        given, config = config, with_derived(config)
        self.config = config
        self.store = RunStore(config.run_dir)
        if (newest := self.store.latest_policy()) is not None:
            self.store.check_policy(newest)
        self.opened_at = newest or 0
        """Newest version when the run was opened. The trainer may publish a newer one by itself."""
        self.tasks = freeze_tasks(config.tasks, self.store)
        freeze_config(config, self.store)
        stored = stored_by_group(self.store)
        self.checked = unchanged_versions(self.store, stored)
        """Versions that an earlier process checked, and whose files are as they were then."""
        self.repairs = repair_run(self.store, config, stored, self.checked)
        """Repairs of damaged files when the run was opened, a line each."""
        self.choices = describe_choices(given.trainer, config.trainer)
        """Settings that the configuration left open, with their values in this run."""
        self.sampler = GroupSampler(self.store, self.tasks, config)
        self.rollouts = Rollouts(
            self.store,
            config.policy,
            config.rollout,
            config.seed,
            config.rewards,
            config.tasks.live,
            config.serving_of_rollouts,
            shared=config.mode == "async",
        )
        self.measuring: Rollouts | None = None
        """Rollouts of evaluations beside training groups; ``None`` where workers and engines are
        shared."""
        self.journal = Journal(self.store.journal_path)
        self.journal.refresh(self.store, self.checked)
        for version in self.store.versions():
            if version > 0 and version not in self.checked:
                self.mark_checked(read_batch(self.store, version))
        trackers = open_trackers(config.trackers, self.store.root, config.model_dump(mode="json"))
        self.metrics = MetricsLog(self.store.metrics_path, self.store.root / "tensorboard", trackers)

    @property
    def version(self) -> int:
        """The newest published policy version."""
        version = self.store.latest_policy()
        if version is None:
            raise StorageError(f"{self.store.root} has no policy yet")
        return version

    def serve(self, serving: ServingConfig | None, name: str) -> AbstractContextManager[PolicyServers | None]:
        """Return the vLLM servers of a part of the configuration.

        Their logs are in a folder of this name; see `serve_policy`.
        """
        config = self.config
        return serve_policy(serving, config.policy, self.store, self.opened_at, config.trainer.adapter_rank, name)

    def served_by(self, servers: PolicyServers | None) -> RolloutRequest:
        """Use running vLLM servers from now on, if there are any.

        Returns the request that workers get when they start.
        """
        self.rollouts = replace(self.rollouts, servers=servers)
        return self.warm_request()

    def measured_by(self, servers: PolicyServers | None) -> None:
        """Play evaluations on their own worker, and its vLLM servers, if the configuration says
        so."""
        where = self.config.evaluation.where
        if where == "boundary":
            return
        beside = replace(self.rollouts, resource=EVALUATION_RESOURCE)
        if (serving := self.config.serving_of_evaluations) is not None:
            beside = replace(beside, serving=serving, servers=servers)
        elif beside.servers is not None:
            beside = replace(beside, servers=beside.servers.for_evaluations())
        self.measuring = beside

    def warm_request(self) -> RolloutRequest:
        """Return the request that workers get when they start."""
        return self.rollouts.warm_request(self.tasks[0], self.opened_at)

    @property
    def places(self) -> int:
        """Units that each worker has to offer: where shards take turns, one is enough."""
        return self.config.rollout.concurrency if self.config.mode == "async" else 1

    @property
    def groups_per_task(self) -> int:
        """Groups of one Prefect task of an asynchronous run."""
        rollout = self.config.rollout
        return self.config.pacing.groups_per_task(
            rollout.groups_per_task, rollout.concurrency, self.config.episodes_per_group
        )

    def least_groups(self, running: int, workers: int) -> int:
        """Return how few groups are worth a Prefect task: any, while a place is empty.

        Args:
            running: Groups under way.
            workers: Number of workers.
        """
        playable = running * self.config.episodes_per_group
        return self.groups_per_task if playable > workers * self.config.rollout.concurrency else 1

    def mark_checked(self, batch: TrainingBatch) -> None:
        """Record that the files of a published version were checked, for the next start."""
        records = self.records(batch.group_ids)
        mark_checked(self.store, batch.version, len(batch.rows), records)

    def records(self, group_ids: Iterable[str]) -> list[GroupRecord]:
        """Return the commit records of these groups."""
        return [read_group(self.store, group_id) for group_id in group_ids]

    def close(self, failed: bool) -> None:
        self.journal.close()
        self.metrics.close(failed)


@contextmanager
def open_run(config: TrainConfig) -> Iterator[TrainingRun]:
    """Open (or resume) the run under its lock."""
    with run_lock(config.run_dir), undo_failed_start(RunStore(config.run_dir)):
        run = TrainingRun(config)
        try:
            yield run
        except BaseException:
            run.close(failed=True)
            raise
        run.close(failed=False)
