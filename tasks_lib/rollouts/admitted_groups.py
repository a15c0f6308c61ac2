"""Admission of an asynchronous run: which groups start, run, are ready or in a batch.

Groups are numbered as they are admitted and drawn in blocks of one batch: group ``i000002-g0003``
of a run with 16 groups in a batch is number 35. All state follows from the run's files, so a run
that was killed goes on with the same counts. Groups without a record are started again, before any
new one. Groups with a record are ready or left out, and those that a batch names are consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from tasks_lib.rollouts.sampling import GroupSampler
from training.config import AlgorithmConfig
from training.ledger.checked import CheckedVersion
from training.ledger.journal import groups_of_version, read_group
from training.ledger.store import RunStore
from training.pacing.admission import Pace, capacity
from training.pacing.window import LiveGroup, fits, next_batch
from training.records.batches import build_batch
from training.records.groups import GroupRecord, GroupSpec

MAX_LEFT_OUT = 2
"""Batches' worth of groups without a training signal, after which a batch takes what there is."""
MAX_WITHOUT_PASS = 5
"""Batches' worth of groups of which no episode passed, after which a batch is made without rows.

Of tasks of which a twentieth can be solved, 16 to a batch, 98 % of versions have a row by then.
"""


class NextBatch(NamedTuple):
    """Groups that go into one batch."""

    trained: tuple[str, ...]
    """Groups that count: as many as a batch has, unless no more can be had."""
    left_out: tuple[str, ...]
    """Groups that ended since the previous batch and have no training signal."""

    @property
    def group_ids(self) -> tuple[str, ...]:
        """All groups of the batch, in the order of admission."""
        return tuple(sorted((*self.trained, *self.left_out)))


class AdmittedGroups:
    """The groups of one run. Only its flow process uses this."""

    def __init__(
        self,
        store: RunStore,
        sampler: GroupSampler,
        pace: Pace,
        algorithm: AlgorithmConfig,
        *,
        newest: int,
        depth: int,
        batches: int,
        replace_empty: bool,
        checked: Mapping[int, CheckedVersion] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            pace: Pace of the run.
            newest: Version that the run was opened at.
            depth: Versions that admission runs ahead, at most the staleness: less of it leaves slow
                groups more time.
            batches: Batches of the whole run.
            replace_empty: Groups without a training signal do not count for a batch.
            checked: Versions whose groups are known without reading their batches.
        """
        self._store, self._sampler, self._pace, self._algorithm = store, sampler, pace, algorithm
        self._admission = Pace(batch=pace.batch, staleness=depth, running=pace.running)
        self._batches, self._replace = batches, replace_empty
        self._block: tuple[int, list[GroupSpec]] = (-1, [])
        self._live: dict[int, LiveGroup] = {}
        self.left_out: list[GroupRecord] = []
        """Groups that ended since the newest batch and count for none."""
        self.taken = 0
        """Number of batches made: those of published versions, and the one being trained."""
        self._unfinished, self._next = self._read(newest, checked)
        self._restored = len(self.left_out)
        """Number of ``left_out`` that an earlier process drew."""

    def limit(self, running: int) -> None:
        """Have at most so many groups under way from now on. Those under way go on."""
        self._admission = replace(self._admission, running=running)

    @property
    def running(self) -> int:
        """Groups under way."""
        return sum(not group.ready for group in self._live.values())

    @property
    def ready(self) -> int:
        """Groups that wait for a batch."""
        return len(self._live) - self.running

    @property
    def lost(self) -> bool:
        """True when too many groups had no training signal.

        No more are started then, and the batch is made of what there is. While no episode has
        passed, more groups are drawn, also by a process that goes on with a run.
        """
        count, enough = len(self.left_out), MAX_LEFT_OUT * self._pace.batch
        if count < enough:
            return False
        episodes = [episode for record in self.left_out for episode in record.episodes]
        if self.ready or any(episode.passed for episode in episodes):
            return True
        drawn = count - self._restored
        graded = any(episode.score is not None for episode in episodes)
        return drawn >= (MAX_WITHOUT_PASS * self._pace.batch if graded else enough)

    @property
    def versions_under_way(self) -> set[int]:
        """Versions that groups under way were started with."""
        return {group.version for group in self._live.values() if not group.ready}

    def admit(self, version: int, at_least: int = 1) -> list[GroupSpec]:
        """Return the groups to start now; they count as under way from now on.

        Args:
            version: Version that the engines serve.
            at_least: Start none before so many may start: groups of one Prefect task.
        """
        if self.lost:
            return []
        accepted = self.taken * self._pace.batch + self.ready
        room = capacity(self._admission, version=version, accepted=accepted, running=self.running)
        room = min(room, self._batches * self._pace.batch - accepted - self.running)
        return [self._start(version) for _ in range(room if room >= at_least else 0)]

    def end(self, record: GroupRecord) -> None:
        """Record that a group ended."""
        number = self.number(record.group_id)
        if self._replace and not has_rows(record, self._algorithm):
            self._live.pop(number, None)
            self.left_out.append(record)
        else:
            self._live[number] = LiveGroup(number, record.policy_version, ready=True)

    def next_batch(self, version: int, *, partial: bool = False) -> NextBatch | None:
        """Return the groups of the batch to train on ``version``; ``None`` while it must wait.

        Args:
            partial: Take the ready groups, however few, where a whole batch cannot be had.
        """
        last = self.taken + 1 >= self._batches
        if self.running and last:
            return None  # groups that end after the last batch are in no batch
        live = list(self._live.values())
        numbers = next_batch(self._pace, version, live)
        if numbers is None and partial:
            ready = sorted((group for group in live if group.ready), key=lambda group: (group.version, group.number))
            numbers = tuple(group.number for group in ready[: self._pace.batch])
            if not fits(self._pace, version, [group for group in live if group.number not in numbers]):
                numbers = None
        if last and (numbers is not None or partial):
            numbers = tuple(self._live)
        if numbers is None:
            return None
        return NextBatch(
            tuple(self.name(number) for number in numbers), tuple(record.group_id for record in self.left_out)
        )

    def take(self, group_ids: Iterable[str]) -> None:
        """Record that a batch was made of these groups."""
        taken = set(group_ids)
        self.taken += 1
        self.left_out = [record for record in self.left_out if record.group_id not in taken]
        self._restored = min(self._restored, len(self.left_out))
        for group_id in taken:
            self._live.pop(self.number(group_id), None)

    def number(self, group_id: str) -> int:
        """Return the number of a group: ``i000002-g0003`` is 35 where a batch has 16 groups."""
        block, _, index = group_id[1:].partition("-g")
        return int(block) * self._pace.batch + int(index)

    def name(self, number: int) -> str:
        """Return the id of the group with this number."""
        block, index = divmod(number, self._pace.batch)
        return f"i{block:06d}-g{index:04d}"

    def _start(self, version: int) -> GroupSpec:
        if self._unfinished:
            number = self._unfinished.pop(0)
        else:
            number, self._next = self._next, self._next + 1
        self._live[number] = LiveGroup(number, version, ready=False)
        return self._spec(number)

    def _spec(self, number: int) -> GroupSpec:
        block, index = divmod(number, self._pace.batch)
        if self._block[0] != block:
            self._block = (block, self._sampler.groups(block, 0))
        return self._block[1][index]

    def _read(self, newest: int, checked: Mapping[int, CheckedVersion]) -> tuple[list[int], int]:
        """Restore the state from the run's files.

        Returns the numbers of the groups to start again, and the next new number.
        """
        self.taken = newest
        consumed = {group for line in checked.values() for group in line.groups}
        for version in range(1, newest + 1):
            if version not in checked:
                consumed |= {*groups_of_version(self._store, version)}
        ended = set(self._store.group_ids("i*"))
        for group_id in sorted(ended - consumed):
            self.end(read_group(self._store, group_id))
        numbers = {self.number(group_id) for group_id in ended}
        top = max(numbers, default=-1) + 1
        return [number for number in range(top) if number not in numbers], top


def has_rows(record: GroupRecord, algorithm: AlgorithmConfig) -> bool:
    """Return True if a group has a training signal.

    Its rewards differ, or, for cloning, one of its episodes passed.
    """
    return bool(build_batch(record.policy_version + 1, [record.episodes], algorithm).rows)
