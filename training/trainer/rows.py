"""Reads and checks a batch's rows before any weight changes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pydantic import ValidationError

from envs.types import Step, StorageError, TrainingError, Trajectory
from training.batches import BatchRow, TrainingBatch
from training.ledger.store import RunStore


@dataclass(frozen=True, kw_only=True)
class TrainingRow:
    """One step with everything the model needs, exactly as it was sampled."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    behaviour: tuple[float, ...]
    """log pi_behaviour of each response id."""
    screenshots: tuple[bytes, ...]
    """The JPEGs that the policy saw, in the order of their placeholders."""
    advantage: float
    episode_id: str = ""

    def __len__(self) -> int:
        """Tokens of prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)


def read_batch_file(store: RunStore, version: int) -> tuple[TrainingBatch, str]:
    """The batch that makes ``version``, and the sha256 of its file.

    Raises:
        TrainingError: The file is torn, or is for another version.
    """
    path = store.batch_path(version)
    data = path.read_bytes()
    try:
        batch = TrainingBatch.model_validate_json(data)
    except ValidationError as error:
        raise TrainingError(f"batch {path} cannot be read: {error}") from error
    if (batch.version, batch.policy_version_before) != (version, version - 1):
        raise TrainingError(
            f"batch {path} makes version {batch.version} out of {batch.policy_version_before},"
            f" but this run is at version {version - 1} and needs {version} out of {version - 1}"
        )
    return batch, hashlib.sha256(data).hexdigest()


def read_rows(store: RunStore, batch: TrainingBatch, banned_ids: tuple[int, ...] = ()) -> list[TrainingRow]:
    """The batch's rows in its order, then those of earlier iterations.

    Raises:
        TrainingError: A row names an episode, step or screenshot that is not there, or holds ids that sampling cannot have drawn.
    """
    trajectories: dict[str, Trajectory] = {}
    banned = frozenset(banned_ids)
    rows = []
    for row in (*batch.rows, *batch.replayed):
        try:
            if row.episode_id not in trajectories:
                trajectories[row.episode_id] = store.trajectory(row.episode_id)
            step = _step(trajectories[row.episode_id], row, banned)
            screenshots = tuple(store.blob(name) for name in step.pictures)
        except StorageError as error:
            raise TrainingError(f"batch v{batch.version}: row {row.episode_id}/{row.step}: {error}") from error
        rows.append(
            TrainingRow(
                prompt_ids=step.prompt_ids,
                response_ids=step.response_ids,
                behaviour=step.logprobs,
                screenshots=screenshots,
                advantage=row.advantage,
                episode_id=row.episode_id,
            )
        )
    return rows


def _step(trajectory: Trajectory, row: BatchRow, banned: frozenset[int]) -> Step:
    if row.step >= len(trajectory.steps):
        raise StorageError(f"the episode has {len(trajectory.steps)} steps")
    step = trajectory.steps[row.step]
    if not step.response_ids or len(step.response_ids) != len(step.logprobs):
        raise StorageError(f"{len(step.response_ids)} response ids with {len(step.logprobs)} log-probabilities")
    if found := banned.intersection(step.response_ids):
        raise StorageError(
            f"the response holds banned token ids {sorted(found)}: sampling and training disagree on the bans"
        )
    return step
