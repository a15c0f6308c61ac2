"""The batch that the groups of a version give, from the records in a run's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from training.config import AlgorithmConfig
from training.ledger.evidence import lost_evidence
from training.ledger.journal import groups_of_version, read_group
from training.ledger.seal import json_bytes
from training.ledger.store import RunStore
from training.records.batches import TrainingBatch, build_batch
from training.records.groups import EpisodeSummary
from training.records.states import EpisodeState


def batch_of(
    store: RunStore,
    version: int,
    settings: AlgorithmConfig,
    damaged: Mapping[str, str] = MappingProxyType({}),
    *,
    seed: int,
) -> TrainingBatch:
    """Return the batch that a version's groups give; ``StorageError`` if a record cannot be
    read."""
    groups = _groups_of(store, version)
    return build_batch(version, groups, settings, damaged, earlier_groups(store, version, settings), seed)


def earlier_groups(store: RunStore, version: int, settings: AlgorithmConfig) -> list[tuple[EpisodeSummary, ...]]:
    """Return the groups of earlier versions that the batch of ``version`` replays, oldest first."""
    first = max(0, version - settings.replay_iterations)
    return [group for earlier in range(first + 1, version) for group in _groups_of(store, earlier)]


def _groups_of(store: RunStore, version: int) -> list[tuple[EpisodeSummary, ...]]:
    return [read_group(store, group_id).episodes for group_id in groups_of_version(store, version)]


def possible_files(store: RunStore, version: int, settings: AlgorithmConfig, seed: int) -> Iterator[bytes]:
    """Yield the files that a batch may have had.

    They hold all episodes, or no damaged ones.
    """
    batch = batch_of(store, version, settings, seed=seed)
    yield json_bytes(batch)
    yield json_bytes(batch_of(store, version, settings, lost_evidence(store, batch), seed=seed))


def damaged_in(batch: TrainingBatch) -> dict[str, str]:
    """Return the damaged episodes that a batch was made without, each with what is damaged."""
    left_out = batch.left_out.items()
    own = {episode_id: episode.reason for episode_id, episode in left_out if episode.state is EpisodeState.DAMAGED}
    return own | batch.damaged_earlier
