"""Reads and checks the rows of a batch before any weight changes.

Each process reads the ids and pictures of the rows that it trains on. Of the other rows it knows
advantage and shape, which the batch names, so that all processes make the same plan.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from envs.types import StorageError, TrainingError, read_ids
from training.ledger.store import RunStore
from training.records.batches import BatchRow, TrainingBatch
from training.records.groups import StepShape


@dataclass(frozen=True, kw_only=True)
class TrainingRow:
    """One step with all inputs of the model, exactly as it was sampled."""

    prompt_ids: Sequence[int]
    """Prompt; empty, as the next three are, in rows of other processes."""
    response_ids: Sequence[int]
    behaviour: Sequence[float]
    """Log-probability log pi_behaviour of each response id."""
    screenshots: tuple[bytes, ...]
    """JPEGs that the policy saw, in placeholder order."""
    advantage: float
    episode_id: str = ""
    sequence: int | None = None
    """Sequence of the episode that the row is a part of (`StepShape`); ``None``: one of its own."""
    recorded: StepShape | None = None
    """Shape of a row of other processes."""

    def __len__(self) -> int:
        """Return the number of tokens of prompt and response."""
        return self.shape.prompt + self.shape.response

    @property
    def shape(self) -> StepShape:
        """Numbers of prompt and response ids, and the sequence; -1 for one of its own."""
        own = StepShape(len(self.prompt_ids), len(self.response_ids), -1 if self.sequence is None else self.sequence)
        return self.recorded or own

    def ids(self) -> list[int]:
        """Return the ids of prompt and response."""
        return [*self.prompt_ids, *self.response_ids]


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
    own: Callable[[Sequence[StepShape], Sequence[str]], Collection[int]] | None = None,
) -> list[TrainingRow]:
    """Return the batch's rows in order, then those that are replayed from earlier iterations.

    Args:
        store: Storage of the run.
        batch: Batch that names the rows.
        banned_ids: Token ids that may not occur in a response.
        own: Function of all rows' shapes and episodes that returns the indices of the rows that
            this process reads; ``None``: all.

    Raises:
        TrainingError: A row's episode, step or screenshot does not exist, or its ids cannot have
            been sampled.
    """
    named, banned = (*batch.rows, *batch.replayed), frozenset(banned_ids)
    documents, shapes = _Documents(store), [row.shape for row in named]
    mine = range(len(named)) if own is None else sorted(own(shapes, [row.episode_id for row in named]))
    rows = [
        TrainingRow(
            prompt_ids=(),
            response_ids=(),
            behaviour=(),
            screenshots=(),
            advantage=row.advantage,
            episode_id=row.episode_id,
            sequence=row.shape.sequence,
            recorded=row.shape,
        )
        for row in named
    ]
    for index in mine:
        with _naming(batch, named[index]):
            rows[index] = documents.read(named[index], banned)
    return rows


@contextmanager
def _naming(batch: TrainingBatch, row: BatchRow) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise TrainingError(f"batch v{batch.version}: row {row.episode_id}/{row.step}: {error}") from error


class _Documents:
    """Stored trajectories as JSON documents; keeps the one that was read last.

    Their models are not made: ids are decoded for the steps that are read, not for all.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._episode_id, self._steps = "", list[dict[str, Any]]()

    def read(self, row: BatchRow, banned: frozenset[int]) -> TrainingRow:
        """Return a row with its ids and pictures."""
        step = self._step(row)
        response, behaviour = step["response_ids"], step["logprobs"]
        if not response or len(response) != len(behaviour):
            raise StorageError(f"{len(response)} response ids with {len(behaviour)} log-probabilities")
        if sampled := banned.intersection(response):
            raise StorageError(
                f"the response holds banned token ids {sorted(sampled)}: sampling and training disagree on the bans"
            )
        try:
            prompt = read_ids(step["prompt_ids"])
        except (TypeError, ValueError) as error:
            raise StorageError(f"its prompt's ids cannot be read: {error}") from error
        if (lengths := (len(prompt), len(response))) != row.shape[:2]:
            raise StorageError(f"it has {lengths} ids of prompt and response, and its batch says {row.shape[:2]}")
        names = [name for message in step["context"] for name in message["pictures"]]
        names += [step["screenshot"]] if step["screenshot"] else []
        return TrainingRow(
            prompt_ids=prompt,
            response_ids=array("i", response),
            behaviour=array("d", behaviour),
            screenshots=tuple(self._store.blob(name) for name in names),
            advantage=row.advantage,
            episode_id=row.episode_id,
            sequence=row.shape.sequence,
        )

    def _step(self, row: BatchRow) -> dict[str, Any]:
        if row.episode_id != self._episode_id:
            self._steps = self._store.trajectory_document(row.episode_id)["steps"]
            self._episode_id = row.episode_id
        if row.step >= len(self._steps):
            raise StorageError(f"the episode has {len(self._steps)} steps")
        return self._steps[row.step]
