"""Training as a Prefect task: one update of the policy by the run's trainer process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import distributed
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from envs.types import TrainingError
from tasks_lib.config import TrainConfig
from tasks_lib.processes.dask_clients import connect_client
from tasks_lib.processes.trainer_nodes import JOIN_SECONDS, DaskNodes
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.evidence import lost_evidence
from training.ledger.store import RunStore, write_json
from training.policy.bans import banned_ids
from training.records.batches import TrainingBatch
from training.trainer.control.launch import TrainerNodes, TrainerProcess
from training.trainer.spec import TrainerSpec

START_SECONDS = 600.0
"""Longest start of a trainer, which loads model libraries and a large checkpoint from shared
storage."""
UPDATE_SECONDS = 6 * 3600.0
"""Longest update. It ends a trainer that hangs; a dead one is noticed at once."""
RESTARTS = 3
"""Restarts of a dead trainer for the same update."""


class Trainer:
    """The run's trainer process, restarted when it dies. The flow process owns it."""

    def __init__(self, store: RunStore, config: TrainConfig) -> None:
        self._store = store
        self._spec = TrainerSpec(
            template=config.policy.template,
            temperature=config.policy.temperature,
            banned_ids=tuple(banned_ids(store.policy_path(0))),
            algorithm=config.algorithm,
            trainer=config.trainer,
            total_updates=config.iterations,
            seed=config.seed,
            servers=config.serving.broadcast_host,
        )
        self._process: TrainerProcess | None = None
        self._cluster = config.cluster.address
        self._client: distributed.Client | None = None
        self._stopped = False

    def start(self) -> None:
        """Start the process group unless it is alive, and return at once."""
        if self._stopped:
            raise TrainingError("the trainer was stopped: its run ends")
        if self._process is None or not self._process.alive:
            self._process = TrainerProcess.start(self._store.root, self._spec, self._nodes())

    def _nodes(self) -> TrainerNodes | None:
        """Return the machines of ``trainer.nodes``; ``None`` for this one."""
        count = self._spec.trainer.nodes
        if not count:
            return None
        is_restart = self._client is not None
        self._client = self._client or connect_client(self._cluster)
        return DaskNodes(self._client, count, JOIN_SECONDS if is_restart else 0.0)

    def update(self, version: int) -> dict[str, Any]:
        """Wait for ``version``, whose batch is written, and return its manifest.

        A trainer that dies is started again from its last state.

        Raises:
            TrainingError: it refused the batch, or died again and again.
            StorageError: a file that it needs is damaged.
            DiskError: the disk is full, or it may not write there; it is not started again.
        """
        if (self._store.policy_path(version) / MANIFEST).exists():
            return self._store.manifest(version)
        for restart in range(RESTARTS + 1):
            self.start()
            assert self._process is not None
            try:
                return self._process.wait_for_policy(version, START_SECONDS + UPDATE_SECONDS)
            except TrainingError as error:
                if self._stopped or self._refused() or restart == RESTARTS:
                    raise
                get_run_logger().warning("the trainer is started again: %s", error)
                self._process.stop()
        raise AssertionError("unreachable")

    def _refused(self) -> bool:
        """Return True if it ended with its own error, which a restart would repeat (a bad batch,
        say)."""
        return (self._store.trainer_path / "error.json").exists()

    def stop(self) -> None:
        """End the process group. An update that another thread waits for is not tried again."""
        self._stopped = True
        if self._process is not None:
            self._process.stop()
        if self._client is not None:
            self._client.close()

    def __enter__(self) -> Trainer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@task(task_run_name="update-v{batch.version:06d}", cache_policy=NO_CACHE, persist_result=False)
def update_policy(
    store_root: Path,
    batch: TrainingBatch,
    trainer: Trainer,
    remake: Callable[[Mapping[str, str]], TrainingBatch] | None = None,
) -> dict[str, Any]:
    """Write the batch, wait for the trainer to publish its version, and return the manifest.

    A batch that is written already is kept.

    Args:
        remake: Makes the batch without the episodes in its argument, which says what each has lost.
            It is called when the trainer has refused the batch and trajectories or screenshots of
            it are lost. With ``None`` the trainer's error is raised.
    """
    store = RunStore(store_root)
    path = store.batch_path(batch.version)
    if not path.exists():
        write_json(path, batch)
    try:
        return trainer.update(batch.version)
    except TrainingError:
        lost = lost_evidence(store, batch)
        if remake is None or not lost:
            raise
    episode, what = next(iter(lost.items()))
    get_run_logger().warning(
        "version %d is trained without %d damaged episodes, the first is %s: %s",
        batch.version,
        len(lost),
        episode,
        what,
    )
    write_json(path, remake(lost))
    return trainer.update(batch.version)
