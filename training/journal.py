"""The run's ledger: which groups were accepted, which update consumed them, and the counters that must add up.

One SQLite file with a rollback journal, written by the flow process alone, so that it holds on a network file system too. It is an index
over the run's files and is rebuilt from them when a run is opened; nothing is known to it alone.

Every started episode is in exactly one of: consumed (it gave rows to a published update), discarded (its group had nothing to learn
from, or it failed a filter), abstained (no usable reward), in flight (accepted, its update not published yet).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from envs.types import StorageError
from training.batches import TrainingBatch
from training.groups import GroupRecord
from training.store import RunStore, read_json

_SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (
    group_id TEXT PRIMARY KEY,
    phase TEXT NOT NULL,
    kind TEXT NOT NULL,
    policy_version INTEGER NOT NULL,
    started INTEGER NOT NULL,
    abstained INTEGER NOT NULL,
    consumed INTEGER NOT NULL DEFAULT 0,
    update_version INTEGER
) STRICT;
CREATE TABLE IF NOT EXISTS updates (
    version INTEGER PRIMARY KEY,
    rows INTEGER NOT NULL
) STRICT;
"""


class Journal:
    """The ledger of one run. Open it in one process only."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=DELETE")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        self._connection.close()

    def accept(self, records: Iterable[GroupRecord]) -> None:
        """Enter committed training groups. Entering one again changes nothing."""
        rows = [(r.group_id, r.phase, r.kind, r.policy_version, len(r.episodes), r.abstentions) for r in records]
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany(
                "INSERT OR IGNORE INTO groups (group_id, phase, kind, policy_version, started, abstained) VALUES (?,?,?,?,?,?)",
                rows,
            )

    def record_update(self, batch: TrainingBatch, group_ids: Iterable[str]) -> None:
        """A published update used (or set aside) these groups. Recording it again changes nothing."""
        consumed: dict[str, set[str]] = {}
        for row in batch.rows:
            consumed.setdefault(row.episode_id.rsplit("-s", 1)[0], set()).add(row.episode_id)
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.execute("INSERT OR IGNORE INTO updates VALUES (?, ?)", (batch.version, len(batch.rows)))
            self._connection.executemany(
                "UPDATE groups SET update_version = ?, consumed = ? WHERE group_id = ?",
                [(batch.version, len(consumed.get(group_id, ())), group_id) for group_id in group_ids],
            )

    def episodes(self) -> dict[str, int]:
        """``started``, ``consumed``, ``discarded``, ``abstained``, ``in_flight``; the last four add up to the first."""
        started, abstained, consumed, in_flight = self._connection.execute(
            """SELECT coalesce(sum(started), 0), coalesce(sum(abstained), 0), coalesce(sum(consumed), 0),
                      coalesce(sum(CASE WHEN update_version IS NULL THEN started - abstained ELSE 0 END), 0) FROM groups"""
        ).fetchone()
        return {
            "started": started,
            "consumed": consumed,
            "discarded": started - abstained - consumed - in_flight,
            "abstained": abstained,
            "in_flight": in_flight,
        }

    def updates(self) -> list[int]:
        """Versions of all recorded updates, ascending."""
        return [row[0] for row in self._connection.execute("SELECT version FROM updates ORDER BY version")]

    def rebuild(self, store: RunStore) -> None:
        """Make the ledger anew from the run's files."""
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.execute("DELETE FROM groups")
            self._connection.execute("DELETE FROM updates")
        self.accept(read_group(store, group_id) for group_id in store.group_ids("i*"))
        for version in store.versions():
            if version > 0:
                batch = TrainingBatch.model_validate(read_json(store.batch_path(version)))
                self.record_update(batch, store.group_ids(f"i{version - 1:06d}"))


def read_group(store: RunStore, group_id: str) -> GroupRecord:
    """The commit record of a group."""
    try:
        return GroupRecord.model_validate(read_json(store.group_path(group_id)))
    except ValueError as error:
        raise StorageError(f"{store.group_path(group_id)} is no group record: {error}") from error
