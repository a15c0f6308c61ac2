"""The run's ledger: the state of every training episode, entered by events (`training.ledger.states`).

One SQLite file with a rollback journal, written by the flow process alone, so that it holds on a network file system too. It is an
index over the run's files and is rebuilt from them when a run is opened; nothing is known to it alone. Files that disagree (an episode
that is lost, named twice, or trained on without a record) are refused, and the error names the episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from envs.types import StopReason, StorageError
from training.batches import TrainingBatch, explain_left_out
from training.groups import EpisodeSummary, GroupRecord, play_order
from training.ledger.journal_file import open_journal
from training.ledger.seal import unsealed_bytes
from training.ledger.states import NEXT, EpisodeState, Event, abstention_cause, count_states
from training.ledger.store import BACKUP, RunStore, describe_first_error, group_of, phase_of

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
CREATE TABLE IF NOT EXISTS updates (
    version INTEGER PRIMARY KEY,
    rows INTEGER NOT NULL
) STRICT;
"""

_OLDER = (
    """CREATE TABLE groups (
    group_id TEXT PRIMARY KEY,
    phase TEXT NOT NULL,
    kind TEXT NOT NULL,
    policy_version INTEGER NOT NULL,
    started INTEGER NOT NULL,
    abstained INTEGER NOT NULL,
    consumed INTEGER NOT NULL DEFAULT 0,
    update_version INTEGER
) STRICT""",
)
"""Tables of ledgers from before episodes had states: sums of each group."""

_NEWEST = "number IN (SELECT max(number) FROM events GROUP BY episode_id)"


class Journal:
    """The ledger of one run. Open it in one process only."""

    def __init__(self, path: Path) -> None:
        self._connection = open_journal(path, _SCHEMA, _OLDER)

    def close(self) -> None:
        self._connection.close()

    def accept(self, records: Iterable[GroupRecord]) -> None:
        """Enter committed training groups. Entering one again changes nothing.

        Raises:
            StorageError: an episode is listed twice, belongs to another group, or was entered otherwise before. Nothing is entered then.
        """
        with self._transaction():
            for record in records:
                self._accept(record)

    def record_update(self, batch: TrainingBatch, group_ids: Iterable[str]) -> None:
        """A published update decided about the episodes of these groups. Recording it again changes nothing.

        Args:
            batch: With its ``left_out`` (`training.batches.explain_left_out`).
            group_ids: All groups that the batch was made of; accepted before.

        Raises:
            StorageError: the batch does not name each episode of these groups that has a reward exactly once, or names another one.
                Nothing is recorded then.
        """
        where = f"the batch of version {batch.version}"
        if batch.left_out is None:
            raise StorageError(f"{where} does not say which episodes it left out")
        phase_groups = set(group_ids)
        used = list(dict.fromkeys(row.episode_id for row in batch.rows))
        twice = [each for each, times in Counter((row.episode_id, row.step) for row in batch.rows).items() if times > 1]
        if twice:
            raise StorageError(f"{where} trains on step {twice[0][1]} of episode {twice[0][0]} twice")
        decided = {each: (EpisodeState.CONSUMED, "in the batch") for each in used}
        for episode_id, left_out in batch.left_out.items():
            if episode_id in decided:
                raise StorageError(f"{where} both trains on episode {episode_id} and leaves it out")
            decided[episode_id] = (left_out.state, left_out.reason)
        with self._transaction():
            for episode_id in self._with_reward(phase_groups):
                if episode_id not in decided:
                    raise StorageError(
                        f"episode {episode_id} has a reward, and {where} neither trains on it nor says why not"
                    )
            for episode_id, (state, reason) in decided.items():
                if group_of(episode_id) not in phase_groups:
                    raise StorageError(f"{where} names episode {episode_id}, whose group has no record")
                group_id = group_of(episode_id)
                self._enter(Event(episode_id, group_id, state, reason, version=batch.version))
            self._connection.execute("INSERT OR IGNORE INTO updates VALUES (?, ?)", (batch.version, len(batch.rows)))

    def episodes(self, groups: str | Collection[str] | None = None) -> dict[str, int]:
        """``started``, then the number of episodes in each state, which add up to it.

        Args:
            groups: Of a phase such as ``i000012``, or of these groups; ``None``: of all.
        """
        return count_states(EpisodeState(state) for state, _ in self._now(groups))

    def abstentions(self, groups: str | Collection[str] | None = None) -> dict[str, int]:
        """Causes of the abstentions (`training.ledger.states.abstention_cause`) and how many episodes have each; they add up to ``abstained``."""
        causes = Counter(cause for state, cause in self._now(groups) if state == EpisodeState.ABSTAINED)
        return dict(sorted(causes.items()))

    def _now(self, groups: str | Collection[str] | None) -> Iterator[tuple[str, str]]:
        """State and cause of each episode."""
        wanted = None if groups is None or isinstance(groups, str) else frozenset(groups)
        phases = {groups} if isinstance(groups, str) else {phase_of(group_id) for group_id in wanted or ()}
        where = f" AND phase IN ({', '.join('?' * len(phases))})" if groups is not None else ""
        found = self._connection.execute(
            f"SELECT episode_id, state, cause FROM events WHERE {_NEWEST}{where}", sorted(phases)
        )
        for episode_id, state, cause in found:
            if wanted is None or group_of(episode_id) in wanted:
                yield state, cause

    def events(self) -> list[Event]:
        """All events, in the order of their episodes' ids and, of one episode, as they came."""
        found = self._connection.execute(
            "SELECT episode_id, state, cause, reason, version FROM events ORDER BY episode_id, number"
        )
        return [
            Event(episode_id, group_of(episode_id), EpisodeState(state), reason, cause, version)
            for episode_id, state, cause, reason, version in found
        ]

    def updates(self) -> list[int]:
        """Versions of all recorded updates, ascending."""
        return [row[0] for row in self._connection.execute("SELECT version FROM updates ORDER BY version")]

    def rebuild(self, store: RunStore) -> None:
        """Make the ledger anew from the run's files.

        Raises:
            StorageError: a file cannot be read, or the files disagree about an episode. The ledger stays empty then.
        """
        self.clear()
        with self._transaction():
            for group_id in store.group_ids("i*"):
                self._accept(read_group(store, group_id))
            for version in store.versions():
                if version > 0:
                    self.record_update(*published_batch(store, version))

    def clear(self) -> None:
        """Forget everything: files can give it back."""
        with self._transaction():
            self._connection.execute("DELETE FROM events")
            self._connection.execute("DELETE FROM updates")

    def _accept(self, record: GroupRecord) -> None:
        for episode_id, times in Counter(episode.episode_id for episode in record.episodes).items():
            if times > 1:
                raise StorageError(f"group {record.group_id} lists episode {episode_id} {times} times")
            if group_of(episode_id) != record.group_id:
                raise StorageError(f"group {record.group_id} lists episode {episode_id}, which is of another group")
        for episode in record.episodes:
            self._enter(_at_commit(record.group_id, episode))

    def _with_reward(self, group_ids: set[str]) -> list[str]:
        phases = sorted({phase_of(group_id) for group_id in group_ids})
        found = self._connection.execute(
            f"SELECT episode_id FROM events WHERE state = 'in_flight' AND phase IN ({', '.join('?' * len(phases))}) ORDER BY number",
            phases,
        )
        return [episode_id for (episode_id,) in found if group_of(episode_id) in group_ids]

    def _enter(self, event: Event) -> None:
        """Append an event; one that is there already changes nothing."""
        known = self._connection.execute(
            "SELECT state, version FROM events WHERE episode_id = ? ORDER BY number", (event.episode_id,)
        ).fetchall()
        if (event.state, event.version) in known:
            return
        state = EpisodeState(known[-1][0]) if known else None
        if event.state not in NEXT.get(state, ()):
            before = "not in the ledger" if state is None else f"{state} by {_decider(known[-1][1])}"
            raise StorageError(
                f"episode {event.episode_id} is {before}, and {event.state} by {_decider(event.version)}; only one of them can be"
            )
        self._connection.execute(
            "INSERT INTO events (episode_id, phase, state, cause, reason, version) VALUES (?, ?, ?, ?, ?, ?)",
            (event.episode_id, phase_of(event.group_id), event.state, event.cause, event.reason, event.version),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of what happens inside is kept, or nothing; inside of another one it is part of that."""
        if self._connection.in_transaction:
            yield
            return
        with self._connection:
            self._connection.execute("BEGIN")
            yield


def _at_commit(group_id: str, episode: EpisodeSummary) -> Event:
    if episode.score is not None:
        return Event(episode.episode_id, group_id, EpisodeState.IN_FLIGHT, "its group is committed")
    reason = episode.abstained or ""
    if episode.stop_reason is StopReason.ABANDONED:
        return Event(episode.episode_id, group_id, EpisodeState.ABANDONED, reason)
    return Event(episode.episode_id, group_id, EpisodeState.ABSTAINED, reason, abstention_cause(episode.stop_reason))


def _decider(version: int | None) -> str:
    return "its group's record" if version is None else f"the batch of version {version}"


def published_batch(store: RunStore, version: int) -> tuple[TrainingBatch, list[str]]:
    """The batch that a published version was trained on, with what it left out, and the ids of the groups that it was made of.

    Raises:
        StorageError: the batch, or the record of a group, cannot be read.
    """
    batch = read_batch(store, version)
    group_ids = groups_of_batch(store, batch)
    records = [read_group(store, group_id) for group_id in group_ids]
    if batch.groups != len(records):
        raise StorageError(
            f"the batch of version {version} was made of {batch.groups} groups, and {len(records)} of its iteration have a record"
        )
    return explain_left_out(batch, [record.episodes for record in records]), group_ids


def groups_of_batch(store: RunStore, batch: TrainingBatch) -> list[str]:
    """The groups that a batch was made of: those that it names, or all of its iteration."""
    if batch.group_ids is not None:
        return list(batch.group_ids)
    return store.group_ids(f"i{batch.version - 1:06d}")


def groups_of_version(store: RunStore, version: int) -> list[str]:
    """The groups that a version was made of, in their order, also where its batch cannot be read."""
    named = named_groups_of(store, version)
    if named is not None:
        return named
    return sorted(store.group_ids(f"i{version - 1:06d}"), key=play_order)


def named_groups_of(store: RunStore, version: int) -> list[str] | None:
    """The groups that a version's batch, or else its manifest, names; ``None`` if none does: those of its iteration (synchronous runs)."""
    try:
        named = read_batch(store, version).group_ids
    except StorageError:
        named = store.manifest(version).get("group_ids") if version in store.versions() else None
    return None if named is None else list(named)


def read_batch(store: RunStore, version: int) -> TrainingBatch:
    """The batch that makes a version.

    Raises:
        StorageError: it is missing, torn, no batch, or another version's.
    """
    path = store.batch_path(version)
    try:
        batch = TrainingBatch.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist") from error
    except ValidationError as error:
        raise StorageError(f"{path} is no batch: {describe_first_error(error)}") from error
    if batch.version != version:
        raise StorageError(f"{path} is the batch of version {batch.version}, not of the one of its name")
    return batch


def read_group(store: RunStore, group_id: str) -> GroupRecord:
    """The commit record of a group.

    Raises:
        StorageError: it is missing, torn, no group record, or another group's.
    """
    path = store.group_path(group_id)
    try:
        record = GroupRecord.model_validate_json(unsealed_bytes(path, path.read_bytes(), BACKUP))
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist") from error
    except ValidationError as error:
        raise StorageError(f"{path} is no group record: {describe_first_error(error)}") from error
    if record.group_id != group_id:
        raise StorageError(f"{path} is the record of group {record.group_id}, not of the one of its name")
    return record
