"""Checks that the trajectories and screenshots of a batch's rows can be read."""

from __future__ import annotations

from envs.types import StorageError, Trajectory
from training.ledger.store import RunStore
from training.records.batches import TrainingBatch


def lost_evidence(store: RunStore, batch: TrainingBatch) -> dict[str, str]:
    """Return the episodes of a batch with lost evidence, each with what is lost.

    Evidence is the trajectory and the screenshots of the rows; it is lost if missing or damaged.
    """
    lost: dict[str, str] = {}
    trajectories: dict[str, Trajectory] = {}
    for row in (*batch.rows, *batch.replayed):
        if row.episode_id in lost:
            continue
        try:
            if row.episode_id not in trajectories:
                trajectories[row.episode_id] = store.trajectory(row.episode_id)
            steps = trajectories[row.episode_id].steps
            if row.step >= len(steps):
                raise StorageError(f"its trajectory has {len(steps)} steps and not the one of index {row.step}")
            for name in steps[row.step].pictures:
                store.blob(name)
        except StorageError as error:
            # Without the folder's name: the batch stores this text, and its bytes must not depend
            # on where the run lies.
            lost[row.episode_id] = str(error).replace(f"{store.root}/", "")
    return lost


def blobs_of(trajectory: Trajectory) -> list[str]:
    """Return the names of all blobs that a trajectory refers to."""
    steps = [name for step in trajectory.steps for name in (*step.pictures, step.dom_diff)]
    names = [*steps, trajectory.final_dom, trajectory.final_screenshot, trajectory.judgement]
    return [name for name in dict.fromkeys(names) if name]
