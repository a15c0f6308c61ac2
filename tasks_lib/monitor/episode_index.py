"""Index of a run's episodes: rows from the group records, and a search in what was said.

A row is small: a run of 10,000 episodes has some megabytes of them. Trajectories are only read
for an episode that is opened, and by a search for text.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from envs.types import StorageError
from tasks_lib.report.data import describe_phase
from training.ledger.store import RunStore, read_json
from training.records.groups import EpisodeSummary, GroupRecord

SEARCH_SECONDS = 2.0
"""Seconds after which a search for text returns what it has, and says how far it is."""
MAX_ROWS = 500
"""Most rows of one answer."""
MAX_CAUSE = 300
"""Characters of an abstention's cause in a row."""
OUTCOMES = ("success", "failure", "abstained")
SORTS = ("newest", "oldest", "longest", "reward", "staleness")
"""Orders of the rows."""


class EpisodeRow(NamedTuple):
    """An episode in the list."""

    episode: str
    group: str
    task: str
    kind: str
    where: str
    """Phase in words: ``iteration 12``."""
    phase: str
    version: int
    sample: int
    seed: int
    score: float | None
    outcome: str
    steps: int
    tokens: int
    """Response tokens."""
    stop: str
    abstained: str
    """Cause of the abstention; empty if there is a reward."""
    staleness: int
    """Versions between the group's version and the oldest token."""

    @classmethod
    def of(cls, group: GroupRecord, episode: EpisodeSummary) -> EpisodeRow:
        """Make the row of an episode."""
        abstained = episode.score is None
        return cls(
            episode=episode.episode_id,
            group=group.group_id,
            task=group.task_id,
            kind=group.kind,
            where=describe_phase(group.phase, group.policy_version),
            phase=group.phase,
            version=group.policy_version,
            sample=episode.sample,
            seed=episode.seed,
            score=episode.score,
            outcome="abstained" if abstained else "success" if episode.passed else "failure",
            steps=episode.steps,
            tokens=episode.response_tokens,
            stop=str(episode.stop_reason),
            abstained=(episode.abstained or "")[:MAX_CAUSE],
            staleness=episode.staleness(group.policy_version),
        )


@dataclass(frozen=True, slots=True)
class EpisodeQuery:
    """Filters of the list; an empty one lets all pass."""

    kind: str = ""
    task: str = ""
    """Part of the task's id."""
    outcome: str = ""
    stop: str = ""
    phase: str = ""
    """``training``, ``evaluation``, or one phase: ``i000012``."""
    abstained: str = ""
    """Part of the abstention's cause."""
    min_steps: int = 0
    min_staleness: int = 0
    min_score: float | None = None
    max_score: float | None = None
    sort: str = "newest"

    def accepts(self, row: EpisodeRow) -> bool:
        """Return True if a row passes all filters."""
        kind = {"i": "training", "e": "evaluation"}.get(row.phase[:1], row.phase)
        return (
            (not self.kind or row.kind == self.kind)
            and self.task.lower() in row.task.lower()
            and (not self.outcome or row.outcome == self.outcome)
            and (not self.stop or row.stop == self.stop)
            and (not self.phase or self.phase in (kind, row.phase))
            and self.abstained.lower() in row.abstained.lower()
            and row.steps >= self.min_steps
            and row.staleness >= self.min_staleness
            and (self.min_score is None or (row.score is not None and row.score >= self.min_score))
            and (self.max_score is None or (row.score is not None and row.score <= self.max_score))
        )

    def in_order(self, rows: list[EpisodeRow]) -> list[EpisodeRow]:
        """Return the rows in the wanted order; equal ones newest first."""
        newest = sorted(rows, key=lambda row: (row.phase[1:], row.phase[:1], row.episode), reverse=True)
        match self.sort:
            case "oldest":
                return newest[::-1]
            case "longest":
                return sorted(newest, key=lambda row: -row.steps)
            case "reward":
                return sorted(newest, key=lambda row: (row.score is None, -(row.score or 0.0)))
            case "staleness":
                return sorted(newest, key=lambda row: -row.staleness)
        return newest


@dataclass(slots=True)
class EpisodeIndex:
    """The episodes of one run, read once, and again where groups were added."""

    store: RunStore
    rows: dict[str, EpisodeRow] = field(default_factory=dict)
    """Rows by episode id."""
    _read: set[str] = field(default_factory=set)
    """Paths of the records that were read, each of which is written once."""

    def refresh(self) -> None:
        """Read the group records that are new."""
        for folder in sorted((self.store.root / "groups").glob("*")):
            for path in sorted(folder.glob("*.json")):
                if str(path) not in self._read and (group := _record(path)) is not None:
                    self._read.add(str(path))
                    for episode in group.episodes:
                        self.rows[episode.episode_id] = EpisodeRow.of(group, episode)

    def facets(self) -> dict[str, list[str]]:
        """Return the values by which a person can filter."""
        rows = self.rows.values()
        return {
            "kind": sorted({row.kind for row in rows}),
            "outcome": [name for name in OUTCOMES if any(row.outcome == name for row in rows)],
            "stop": sorted({row.stop for row in rows}),
            "phase": sorted({row.phase for row in rows}),
        }

    def select(self, query: EpisodeQuery) -> list[EpisodeRow]:
        """Return the rows that pass, in the query's order."""
        return query.in_order([row for row in self.rows.values() if query.accepts(row)])

    def group(self, group_id: str) -> list[EpisodeRow]:
        """Return the episodes of a group, by sample."""
        return sorted((row for row in self.rows.values() if row.group == group_id), key=lambda row: row.sample)

    def counts(self) -> dict[str, int]:
        """Return the number of episodes by outcome."""
        return dict(Counter(row.outcome for row in self.rows.values()))


class SearchResult(NamedTuple):
    """Rows whose texts hold the words, and how far the search came."""

    rows: list[EpisodeRow]
    searched: int
    """Number of rows that were looked at, from the first one on."""


def search(store: RunStore, rows: list[EpisodeRow], words: str, start: int = 0, limit: int = MAX_ROWS) -> SearchResult:
    """Search instructions and responses for words, without regard to case.

    Ends after `SEARCH_SECONDS`, with `limit` rows, or at the last row.

    Args:
        start: Number of rows that were searched before.
    """
    matches: list[EpisodeRow] = []
    deadline, wanted = time.monotonic() + SEARCH_SECONDS, words.casefold()
    for number, row in enumerate(rows[start:], start=start + 1):
        if any(wanted in text.casefold() for text in _texts(store, row.episode)):
            matches.append(row)
        if len(matches) >= limit or time.monotonic() > deadline:
            return SearchResult(matches, number)
    return SearchResult(matches, len(rows))


def _texts(store: RunStore, episode_id: str) -> Iterator[str]:
    """Yield the instruction and the responses of an episode; nothing if its file cannot be read,
    which the episode's own page says."""
    try:
        document = store.trajectory_document(episode_id)
    except StorageError:
        return
    for number, step in enumerate(document.get("steps", ())):
        if number == 0:
            yield str(step.get("observation", {}).get("instruction", ""))
        yield str(step.get("response", ""))


def _record(path: Path) -> GroupRecord | None:
    """Read a group record; ``None`` if it is none, which `flows.doctor` names."""
    try:
        return GroupRecord.model_validate(read_json(path), extra="ignore")
    except (StorageError, ValidationError):
        return None


def row_values(rows: list[EpisodeRow]) -> list[dict[str, Any]]:
    """Return rows as JSON values."""
    return [row._asdict() for row in rows]
