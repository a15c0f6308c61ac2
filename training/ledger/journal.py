"""The run's ledger: the state of every training episode, entered by events.

The states are in `training.records.states`. The ledger is one SQLite file with a rollback journal,
written by the flow process alone, so that it works on a network file system too. It is an index
over the run's files and is rebuilt from them when a run is opened; it holds nothing else. Files
that disagree (an episode that is lost, named twice, or trained on without a record) are refused,
and the error names the episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from envs.types import StopReason, StorageError
from training.ledger.checked import CheckedVersion
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.journal_file import open_journal
from training.ledger.paths import group_of, phase_of
from training.ledger.store import BACKUP, RunStore, read_record
from training.records.batches import TrainingBatch
from training.records.groups import EpisodeSummary, GroupRecord
from training.records.states import NEXT, EpisodeState, Event, abstention_cause, count_states

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL,
    phase TEXT NOT NULL,
    state TEXT NOT NULL,
    cause TEXT NOT NULL,
    reason TEXT NOT NULL,
    version INTEGER,
    UNIQUE (episode_id, state)
) STRICT;
CREATE INDEX IF NOT EXISTS phases ON events (phase);
CREATE TABLE IF NOT EXISTS updates (
    version INTEGER PRIMARY KEY,
    rows INTEGER NOT NULL
) STRICT;
"""


class Journal:
    """The ledger of one run. Open it in one process only."""

    def __init__(self, path: Path) -> None:
        self._connection = open_journal(path, _SCHEMA)

    def close(self) -> None:
        self._connection.close()

    def accept(self, records: Iterable[GroupRecord]) -> None:
        """Enter committed training groups. Entering one again changes nothing.

        Raises:
            StorageError: An episode is listed twice, belongs to another group, or was entered
                otherwise before. Nothing is entered then.
        """
        with self._transaction():
            for record in records:
                self._accept(record)

    def record_update(self, batch: TrainingBatch) -> None:
        """Record what a published update decided about the episodes of its groups.

        Recording it again changes nothing.

        Args:
            batch: The update's batch. Its groups were accepted before.

        Raises:
            StorageError: The batch does not name each episode of its groups that has a reward
                exactly once, or names another one. Nothing is recorded then.
        """
        where = f"the batch of version {batch.version}"
        phase_groups = set(batch.group_ids)
        used = list(dict.fromkeys(row.episode_id for row in batch.rows))
        rows = Counter((row.episode_id, row.step) for row in batch.rows)
        twice = [row for row, times in rows.items() if times > 1]
        if twice:
            raise StorageError(f"{where} trains on step {twice[0][1]} of episode {twice[0][0]} twice")
        decided = {episode_id: (EpisodeState.CONSUMED, "in the batch") for episode_id in used}
        for episode_id, left_out in batch.left_out.items():
            if episode_id in decided:
                raise StorageError(f"{where} both trains on episode {episode_id} and leaves it out")
            decided[episode_id] = (left_out.state, left_out.reason)
        with self._transaction():
            for episode_id in self._in_flight(phase_groups):
                if episode_id not in decided:
                    raise StorageError(
                        f"episode {episode_id} has a reward, and {where} neither trains on it nor says why not"
                    )
            for episode_id, (state, reason) in decided.items():
                if group_of(episode_id) not in phase_groups:
                    raise StorageError(f"{where} names episode {episode_id}, which is of none of its groups")
                group_id = group_of(episode_id)
                self._enter(Event(episode_id, group_id, state, reason, version=batch.version))
            self._connection.execute("INSERT OR IGNORE INTO updates VALUES (?, ?)", (batch.version, len(batch.rows)))

    def episodes(self, groups: str | Collection[str] | None = None) -> dict[str, int]:
        """Count episodes: ``started``, then the number in each state; these add up to it.

        Args:
            groups: A phase such as ``i000012``, or ids of groups; ``None``: all groups.
        """
        return count_states(EpisodeState(state) for state, _ in self._states(groups))

    def abstentions(self, groups: str | Collection[str] | None = None) -> dict[str, int]:
        """Count the abstentions by cause (`training.records.states.abstention_cause`).

        The counts add up to ``abstained``.
        """
        causes = Counter(cause for state, cause in self._states(groups) if state == EpisodeState.ABSTAINED)
        return dict(sorted(causes.items()))

    def _states(self, groups: str | Collection[str] | None) -> Iterator[tuple[str, str]]:
        """Yield the present state and cause of each episode. Only events of the groups' phases are
        read."""
        wanted = None if groups is None or isinstance(groups, str) else frozenset(groups)
        phases = {groups} if isinstance(groups, str) else {phase_of(group_id) for group_id in wanted or ()}
        where = f"WHERE phase IN ({', '.join('?' * len(phases))}) " if groups is not None else ""
        rows = self._connection.execute(
            f"SELECT episode_id, state, cause FROM events {where}ORDER BY number", sorted(phases)
        )
        newest = {episode_id: (state, cause) for episode_id, state, cause in rows}
        for episode_id, present in newest.items():
            if wanted is None or group_of(episode_id) in wanted:
                yield present

    def events(self) -> list[Event]:
        """Return all events, by episode id and, of one episode, in order of entry."""
        rows = self._connection.execute(
            "SELECT episode_id, state, cause, reason, version FROM events ORDER BY episode_id, number"
        )
        return [
            Event(episode_id, group_of(episode_id), EpisodeState(state), reason, cause, version)
            for episode_id, state, cause, reason, version in rows
        ]

    def updates(self) -> list[int]:
        """Return the versions of all recorded updates, ascending."""
        return [row[0] for row in self._connection.execute("SELECT version FROM updates ORDER BY version")]

    def refresh(self, store: RunStore, checked: Mapping[int, CheckedVersion] = MappingProxyType({})) -> None:
        """Bring the ledger up to date with the run's files.

        Args:
            checked: Versions whose files are unchanged (`training.ledger.checked`). Their entries
                stay, if they are all there; else the ledger is rebuilt.

        Raises:
            StorageError: A file cannot be read, or the files disagree about an episode. Nothing but
                the entries that stay is in the ledger then.
        """
        with self._transaction():
            whole = self._keep(checked)
        if not whole:
            self.clear()
        self._add_missing(store, checked if whole else {})

    def clear(self) -> None:
        """Delete all entries; the run's files can restore them."""
        with self._transaction():
            self._connection.execute("DELETE FROM events")
            self._connection.execute("DELETE FROM updates")

    def _keep(self, checked: Mapping[int, CheckedVersion]) -> bool:
        """Delete the entries of all other versions and groups.

        Returns:
            True if the others are those that these versions have.
        """
        groups = {group_id for line in checked.values() for group_id in line.groups}
        rows = self._connection.execute("SELECT number, episode_id FROM events").fetchall()
        others = [(number,) for number, episode_id in rows if group_of(episode_id) not in groups]
        self._connection.executemany("DELETE FROM events WHERE number = ?", others)
        updates = dict(self._connection.execute("SELECT version, rows FROM updates"))
        late = [(version,) for version in updates if version not in checked]
        self._connection.executemany("DELETE FROM updates WHERE version = ?", late)
        kept = {version: count for version, count in updates.items() if version in checked}
        events = sum(line.events for line in checked.values())
        return len(rows) - len(others) == events and kept == {line.version: line.rows for line in checked.values()}

    def _add_missing(self, store: RunStore, checked: Mapping[int, CheckedVersion]) -> None:
        groups = {group_id for line in checked.values() for group_id in line.groups}
        with self._transaction():
            for group_id in store.group_ids("i*"):
                if group_id not in groups:
                    self._accept(read_group(store, group_id))
            for version in store.versions():
                if version > 0 and version not in checked:
                    self.record_update(published_batch(store, version))

    def _accept(self, record: GroupRecord) -> None:
        for episode_id, times in Counter(episode.episode_id for episode in record.episodes).items():
            if times > 1:
                raise StorageError(f"group {record.group_id} lists episode {episode_id} {times} times")
            if group_of(episode_id) != record.group_id:
                raise StorageError(f"group {record.group_id} lists episode {episode_id}, which is of another group")
        for episode in record.episodes:
            self._enter(_commit_event(record.group_id, episode))

    def _in_flight(self, group_ids: set[str]) -> list[str]:
        phases = sorted({phase_of(group_id) for group_id in group_ids})
        rows = self._connection.execute(
            f"SELECT episode_id FROM events WHERE state = 'in_flight' AND phase IN ({', '.join('?' * len(phases))}) ORDER BY number",
            phases,
        )
        return [episode_id for (episode_id,) in rows if group_of(episode_id) in group_ids]

    def _enter(self, event: Event) -> None:
        """Append an event; one that is recorded already changes nothing."""
        known = self._connection.execute(
            "SELECT state, version FROM events WHERE episode_id = ? ORDER BY number", (event.episode_id,)
        ).fetchall()
        if (event.state, event.version) in known:
            return
        state = EpisodeState(known[-1][0]) if known else None
        if event.state not in NEXT.get(state, ()):
            before = "not in the ledger" if state is None else f"{state} by {_describe_decider(known[-1][1])}"
            raise StorageError(
                f"episode {event.episode_id} is {before}, and {event.state} by {_describe_decider(event.version)}; only one of them can be"
            )
        self._connection.execute(
            "INSERT INTO events (episode_id, phase, state, cause, reason, version) VALUES (?, ?, ?, ?, ?, ?)",
            (event.episode_id, phase_of(event.group_id), event.state, event.cause, event.reason, event.version),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Keep all changes of the block, or none.

        Inside another transaction the block is a part of it.
        """
        if self._connection.in_transaction:
            yield
            return
        with self._connection:
            self._connection.execute("BEGIN")
            yield


def _commit_event(group_id: str, episode: EpisodeSummary) -> Event:
    if episode.score is not None:
        return Event(episode.episode_id, group_id, EpisodeState.IN_FLIGHT, "its group is committed")
    reason = episode.abstained or ""
    if episode.stop_reason is StopReason.ABANDONED:
        return Event(episode.episode_id, group_id, EpisodeState.ABANDONED, reason)
    return Event(episode.episode_id, group_id, EpisodeState.ABSTAINED, reason, abstention_cause(episode.stop_reason))


def _describe_decider(version: int | None) -> str:
    return "its group's record" if version is None else f"the batch of version {version}"


def published_batch(store: RunStore, version: int) -> TrainingBatch:
    """Read the batch of a published version.

    Raises:
        StorageError: The batch cannot be read, or one of its groups has no record.
    """
    batch = read_batch(store, version)
    for group_id in batch.group_ids:
        if not store.group_path(group_id).exists():
            raise StorageError(f"the batch of version {version} was made of group {group_id}, which has no record")
    return batch


def groups_of_version(store: RunStore, version: int) -> list[str]:
    """Return the ids of a version's groups in order, by its batch or, if that is unreadable, its
    manifest.

    Raises:
        StorageError: Neither can be read.
    """
    try:
        return list(read_batch(store, version).group_ids)
    except StorageError:
        return list(trained_on(store, version)[1])


def trained_on(store: RunStore, version: int) -> tuple[str, list[str]]:
    """Return the sha256 of the batch that a version was trained on, and the ids of its groups.

    Raises:
        StorageError: The manifest cannot be read, or does not name them.
    """
    manifest = store.manifest(version)
    if missing := {"batch", "group_ids"} - manifest.keys():
        raise StorageError(
            f"{store.policy_path(version) / MANIFEST} has no {' and no '.join(sorted(missing))}; {BACKUP}"
        )
    return manifest["batch"], manifest["group_ids"]


def read_batch(store: RunStore, version: int) -> TrainingBatch:
    """Read the batch that makes a version.

    Raises:
        StorageError: The batch is missing, torn, no batch, or another version's.
    """
    path = store.batch_path(version)
    batch = read_record(path, TrainingBatch, "batch")
    if batch.version != version:
        raise StorageError(f"{path} is the batch of version {batch.version}, not of the one of its name")
    return batch


def read_group(store: RunStore, group_id: str) -> GroupRecord:
    """Read the commit record of a group.

    Raises:
        StorageError: The record is missing, torn, no group record, or another group's.
    """
    path = store.group_path(group_id)
    record = read_record(path, GroupRecord, "group record")
    if record.group_id != group_id:
        raise StorageError(f"{path} is the record of group {record.group_id}, not of the one of its name")
    return record
