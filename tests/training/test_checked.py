"""What a run that goes on reads again, and what the ledger reads for one version."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envs.types import StorageError
from training.config import AlgorithmConfig
from training.ledger.checked import mark_checked, unchanged_versions
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.journal import Journal
from training.ledger.store import RunStore, write_json
from training.records.batches import build_batch
from training.records.groups import GroupRecord

MakeGroup = Callable[..., GroupRecord]
VERSIONS = 3
CHANGES = {
    "batch": lambda store: os.utime(store.batch_path(2)),
    "manifest": lambda store: os.utime(store.policy_path(2) / MANIFEST),
    "record": lambda store: os.utime(store.group_path("i000001-g0000")),
    "nothing": lambda store: None,
}


def publish(store: RunStore, version: int, make_group: MakeGroup) -> GroupRecord:
    record = make_group(f"i{version - 1:06d}-g0000", [1.0, 0.0])
    write_json(store.group_path(record.group_id), record)
    batch = build_batch(version, [record.episodes], AlgorithmConfig())
    write_json(store.batch_path(version), batch)
    write_json(store.policy_path(version) / MANIFEST, {"version": version})
    mark_checked(store, version, len(batch.rows), [record])
    return record


@pytest.mark.parametrize("change", [*CHANGES, "trajectory"])
def test_versions_are_read_again_from_the_first_that_changed(
    change: str, tmp_path: Path, synthetic_group: MakeGroup
) -> None:
    store = RunStore(tmp_path)
    records = [publish(store, version, synthetic_group) for version in range(1, VERSIONS + 1)]
    stored = {each.group_id: [(episode.episode_id, each.token) for episode in each.episodes] for each in records}
    if change == "trajectory":
        stored["i000001-g0000"].pop()
    else:
        CHANGES[change](store)
    assert [*unchanged_versions(store, stored)] == ([1, 2, 3] if change == "nothing" else [1])


def test_a_run_that_goes_on_reads_only_what_came_since(tmp_path: Path, synthetic_group: MakeGroup) -> None:
    """A record that cannot be read, of the size and time of the one that was checked, shows it."""
    store, journal = RunStore(tmp_path), Journal(tmp_path / "journal.sqlite")
    records = [publish(store, version, synthetic_group) for version in range(1, VERSIONS + 1)]
    stored = {each.group_id: [(episode.episode_id, each.token) for episode in each.episodes] for each in records}
    journal.refresh(store)
    path = store.group_path("i000001-g0000")
    status = path.stat()
    path.write_bytes(b"x" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    write_json(store.group_path("i000003-g0000"), synthetic_group("i000003-g0000", [1.0, 0.0]))
    journal.refresh(store, unchanged_versions(store, stored))
    assert journal.episodes()["started"] == 2 * VERSIONS + 2
    with pytest.raises(StorageError, match="i000001-g0000"):
        journal.refresh(store)
    journal.close()


def test_a_version_costs_the_ledger_the_same_however_long_the_run(tmp_path: Path, synthetic_group: MakeGroup) -> None:
    """Counted in instructions of SQLite."""
    journal = Journal(tmp_path / "journal.sqlite")
    done = 0

    def count() -> None:
        nonlocal done
        done += 1

    journal._connection.set_progress_handler(count, 1)
    costs = []
    for version in range(1, 61):
        record = synthetic_group(f"i{version - 1:06d}-g0000", [1.0, 0.0])
        done = 0
        journal.accept([record])
        assert journal.episodes(f"i{version - 1:06d}")["started"] == 2
        assert journal.episodes([record.group_id])["in_flight"] == 2
        journal.record_update(build_batch(version, [record.episodes], AlgorithmConfig()))
        costs.append(done)
    assert sum(costs[-10:]) <= 1.1 * sum(costs[10:20])
    journal.close()
