"""Reads and checks the rows of a batch before any weight changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import ValidationError

from envs.types import Step, StorageError, TrainingError, Trajectory
from training.ledger.store import RunStore
from training.records.batches import BatchRow, TrainingBatch


@dataclass(frozen=True, kw_only=True)
class TrainingRow:
    """One step with all inputs of the model, exactly as it was sampled."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    behaviour: tuple[float, ...]
    """Log-probability log pi_behaviour of each response id."""
    screenshots: tuple[bytes, ...]
    """JPEGs that the policy saw, in placeholder order; empty in rows of other processes."""
    advantage: float
    episode_id: str = ""

    def __len__(self) -> int:
        """Return the number of tokens of prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)


def read_batch_file(store: RunStore, version: int) -> tuple[TrainingBatch, str]:
    """Return the batch that makes ``version``, and the sha256 of its file.

    Raises:
        TrainingError: The file cannot be parsed, or makes another version.
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


def read_rows(
    store: RunStore,
    batch: TrainingBatch,
    banned_ids: tuple[int, ...] = (),
    own: Callable[[Sequence[int]], Collection[int]] | None = None,
) -> list[TrainingRow]:
    """Return the batch's rows in order, then those that are replayed from earlier iterations.

    Args:
        store: Storage of the run.
        batch: Batch that names the rows.
        banned_ids: Token ids that may not occur in a response.
        own: Function of all rows' lengths that returns the indices of the rows whose pictures this
            process reads; ``None``: all.

    Raises:
        TrainingError: A row's episode, step or screenshot does not exist, or its ids cannot have
            been sampled.
    """
    trajectories: dict[str, Trajectory] = {}
    banned = frozenset(banned_ids)
    named = (*batch.rows, *batch.replayed)
    steps = []
    for row in named:
        with _naming(batch, row):
            if row.episode_id not in trajectories:
                trajectories[row.episode_id] = store.trajectory(row.episode_id)
            steps.append(_step(trajectories[row.episode_id], row, banned))
    mine = None if own is None else frozenset(own([len(step.prompt_ids) + len(step.response_ids) for step in steps]))
    rows = []
    for index, (row, step) in enumerate(zip(named, steps, strict=True)):
        with _naming(batch, row):
            read = mine is None or index in mine
            screenshots = tuple(store.blob(name) for name in step.pictures) if read else ()
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


@contextmanager
def _naming(batch: TrainingBatch, row: BatchRow) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise TrainingError(f"batch v{batch.version}: row {row.episode_id}/{row.step}: {error}") from error


def _step(trajectory: Trajectory, row: BatchRow, banned: frozenset[int]) -> Step:
    if row.step >= len(trajectory.steps):
        raise StorageError(f"the episode has {len(trajectory.steps)} steps")
    step = trajectory.steps[row.step]
    if not step.response_ids or len(step.response_ids) != len(step.logprobs):
        raise StorageError(f"{len(step.response_ids)} response ids with {len(step.logprobs)} log-probabilities")
    if sampled := banned.intersection(step.response_ids):
        raise StorageError(
            f"the response holds banned token ids {sorted(sampled)}: sampling and training disagree on the bans"
        )
    return step
