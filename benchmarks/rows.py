"""Training rows like the quickstart's, for the benchmarks of the model side: its kinds, played by
their oracles in a real browser."""

from __future__ import annotations

import os
from pathlib import Path

from tasks_lib.config import TrainConfig, resolve, resolve_path
from tasks_lib.folder.task_sets import open_tasks
from tasks_lib.rollouts.sampling import GroupSampler
from tasks_lib.rollouts.shards import Rollouts
from tasks_lib.worker.rollout_worker import RolloutWorker
from training.ledger.store import RunStore, write_json
from training.policy.bans import banned_ids
from training.records.batches import BatchRow, TrainingBatch
from training.records.groups import shapes_of
from training.trainer.spec import TrainerSpec

# As the trainer has it, so that both sides are alike; OpenMP reads it when torch is imported, which
# the functions below do.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ROWS = 256
"""Of one batch: four minibatches of the quickstart."""
GROUPS = 24
"""Of 8 episodes; they have more than ``ROWS`` steps in all."""


def quickstart() -> TrainConfig:
    """The preset's configuration."""
    config: TrainConfig = resolve(TrainConfig, {"preset": "quickstart"})
    return config


def make_store(folder: Path, config: TrainConfig) -> RunStore:
    """A run's folder at version 0 with stored episodes."""
    store = RunStore(folder)
    store.publish_policy(0, resolve_path(config.policy.checkpoint), {})
    rollout = config.rollout.model_copy(update={"groups_per_iteration": GROUPS})
    groups = GroupSampler(store, open_tasks(config.tasks), config.model_copy(update={"rollout": rollout})).groups(0, 0)
    request = Rollouts(store, config.policy, config.rollout, seed=0).request(groups, 0, "oracle")
    worker = RolloutWorker()
    worker.setup(None)
    try:
        worker.roll_out(request)
    finally:
        worker.teardown(None)
    return store


def make_spec(store: RunStore, config: TrainConfig, updates: int) -> TrainerSpec:
    """What the run's trainer would be told."""
    return TrainerSpec(
        template=config.policy.template,
        temperature=config.policy.temperature,
        banned_ids=tuple(banned_ids(store.policy_path(0))),
        algorithm=config.algorithm,
        trainer=config.trainer,
        total_updates=updates,
    )


def write_batch(store: RunStore, version: int) -> TrainingBatch:
    """``ROWS`` steps of the stored episodes as the batch of a version, with advantages of both
    signs."""
    trajectories = [store.trajectory(episode_id) for episode_id in sorted(store.episode_ids())]
    rows = [
        BatchRow(episode_id=trajectory.episode_id, step=step, advantage=(0.15, -0.05)[number % 2], shape=shape)
        for number, trajectory in enumerate(trajectories)
        for step, shape in enumerate(shapes_of(trajectory))
    ]
    assert len(rows) >= ROWS, f"{len(rows)} steps are stored, {ROWS} are wanted"
    batch = TrainingBatch(
        version=version,
        policy_version_before=version - 1,
        algorithm="grpo",
        rows=tuple(rows[:ROWS]),
        group_ids=tuple(dict.fromkeys(trajectory.group_id for trajectory in trajectories)),
        versions=((version - 1, version - 1),) * ROWS,
        zero_variance_groups=0,
        episodes=len({row.episode_id for row in rows[:ROWS]}),
    )
    write_json(store.batch_path(version), batch)
    return batch
