"""Admitted groups over a run's files: random durations, outcomes and kills.

Each group is in one batch, none is too old, and all batches come.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envs.types import StopReason
from tasks_lib.config import TrainConfig
from tasks_lib.rollouts.admitted_groups import MAX_LEFT_OUT, MAX_WITHOUT_PASS, AdmittedGroups
from training.config import AlgorithmConfig
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.journal import read_batch, read_group
from training.ledger.store import RunStore, write_json
from training.pacing.admission import Pace, update_may_start
from training.records.batches import build_batch
from training.records.groups import EpisodeSummary, GroupRecord, StepShape
from training.records.states import EpisodeState

BATCHES = 12


class Sampler:
    """Draws groups of these names; it need not say more of them here."""

    def __init__(self, size: int) -> None:
        self._size = size

    def groups(self, block: int, draw: int) -> list[Any]:
        return [SimpleNamespace(group_id=f"i{block:06d}-g{index:04d}") for index in range(self._size)]


def record(group_id: str, version: int, scores: Sequence[float | None]) -> GroupRecord:
    episodes = tuple(
        EpisodeSummary(
            episode_id=f"{group_id}-s{sample:02d}-a0",
            seed=0,
            sample=sample,
            score=score,
            passed=score is not None and score > 0.5,
            steps=1,
            response_tokens=1,
            stop_reason=StopReason.DONE,
            abstained="lost" if score is None else None,
            shapes=(StepShape(1, 1, 0),),
            sha256="",
            versions=((version, version),),
        )
        for sample, score in enumerate(scores)
    )
    return GroupRecord(token="", group_id=group_id, task_id="t", kind="k", policy_version=version, episodes=episodes)


class Walk:
    """A run in which groups end at random, the trainer writes versions at random and engines serve
    them later, and the flow process is killed at random."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        pace: Pace,
        *,
        depth: int | None = None,
        replace: bool = True,
        learnable: float = 0.6,
    ) -> None:
        self.store, self.pace, self.replace, self.random = RunStore(folder), pace, replace, random.Random(seed)
        self.depth = pace.staleness if depth is None else depth
        self.learnable = learnable
        self._publish(0)
        self.open()

    def open(self) -> None:
        """As a process that starts: everything is read from the files."""
        self.version = self.served = self.store.latest_policy() or 0
        self.admissions = AdmittedGroups(
            self.store,
            cast(Any, Sampler(self.pace.batch)),
            self.pace,
            AlgorithmConfig(),
            newest=self.version,
            depth=self.depth,
            batches=BATCHES,
            replace_empty=self.replace,
        )
        self.running: list[tuple[str, int]] = []
        consumed = {name for version in self.store.versions()[1:] for name in self._groups_of(version)}
        self.ready = {name for name in self.store.group_ids("i*") if name not in consumed and self._counts(name)}
        self.training = self.store.batch_path(self.version + 1).exists()
        if self.training:
            self.admissions.take(self._groups_of(self.version + 1))
            self.ready -= {*self._groups_of(self.version + 1)}

    def _groups_of(self, version: int) -> tuple[str, ...]:
        return read_batch(self.store, version).group_ids

    def _counts(self, group_id: str) -> bool:
        """Whether a group that ended counts for a batch."""
        return not self.replace or has_signal(read_group(self.store, group_id))

    def step(self) -> None:
        started = [(group.group_id, self.served) for group in self.admissions.admit(self.served)]
        self.running += started
        assert len(self.running) <= self.pace.running
        ahead = len(self.running) + len(self.ready) + self.pace.batch * (self.version + self.training)
        assert not started or ahead <= (self.depth + self.served + 1) * self.pace.batch
        if not self.training and update_may_start(self.version, self.served):
            self._train()
        event = self.random.random()
        if event < 0.02:
            self.open()
        elif self.training and (event < 0.2 or not self.running):
            self.version, self.training = self.version + 1, False
            self._publish(self.version)
        elif self.served < self.version and (event < 0.4 or not self.running):
            self.served += 1
        else:
            assert self.running, "nothing is under way and the trainer waits"
            self._end(*self.running.pop(self.random.randrange(len(self.running))))

    def _train(self) -> None:
        lost = self.admissions.lost
        found = self.admissions.next_batch(self.version, partial=lost)
        if found is None:
            return
        assert len(found.trained) == self.pace.batch or lost
        assert all(self._counts(name) for name in found.trained) and {*found.trained} <= self.ready
        self.ready -= {*found.trained}
        records = [read_group(self.store, group_id) for group_id in found.group_ids]
        batch = build_batch(self.version + 1, [each.episodes for each in records], AlgorithmConfig())
        write_json(self.store.batch_path(self.version + 1), batch)
        self.admissions.take(found.group_ids)
        self.training = True

    def _end(self, group_id: str, version: int) -> None:
        scores = [0.0, 1.0] if self.random.random() < self.learnable else [0.0, 0.0]
        ended = record(group_id, version, scores)
        write_json(self.store.group_path(group_id), ended)
        self.admissions.end(ended)
        if self._counts(group_id):
            self.ready.add(group_id)

    def _publish(self, version: int) -> None:
        write_json(self.store.policy_path(version) / MANIFEST, {"version": version, "files": {}})


def has_signal(record: GroupRecord) -> bool:
    return len({episode.score for episode in record.episodes}) > 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("learnable", [0.6, 0.1, 0.0])
@pytest.mark.parametrize(
    ("batch", "eta", "depth", "running"), [(2, 0, 0, 8), (3, 1, 1, 4), (4, 2, 1, 40), (3, 2, 2, 40)]
)
def test_each_group_is_in_one_batch_and_none_is_too_old(
    tmp_path: Path, seed: int, learnable: float, batch: int, eta: int, depth: int, running: int
) -> None:
    walk = Walk(tmp_path, seed, Pace(batch=batch, staleness=eta, running=running), depth=depth, learnable=learnable)
    for _ in range(4000):
        if walk.version == BATCHES:
            break
        walk.step()
    store = walk.store
    assert store.versions() == list(range(BATCHES + 1))
    consumed: Counter[str] = Counter()
    for version in range(1, BATCHES + 1):
        for group_id in read_batch(store, version).group_ids:
            consumed[group_id] += 1
            if has_signal(read_group(store, group_id)):
                assert version - 1 - read_group(store, group_id).policy_version <= eta
    assert set(consumed) == set(store.group_ids("i*")), "every group that ended is in a batch"
    assert set(consumed.values()) == {1}


@pytest.mark.parametrize("scores", [[0.0, 0.0], [0.5, 0.5]], ids=["failed", "half"])
def test_a_hard_task_set_is_drawn_on(tmp_path: Path, scores: list[float]) -> None:
    """Two batches' worth of groups without a pass are no reason to stop; the first one that leaves
    something closes the batch. So too after a restart."""
    walk = Walk(tmp_path, 0, Pace(batch=4, staleness=1, running=4))

    def written(group_id: str, scores: list[float]) -> GroupRecord:
        ended = record(group_id, 0, scores)
        write_json(walk.store.group_path(group_id), ended)
        return ended

    def end_all(scores: list[float]) -> int:
        started = [group.group_id for group in walk.admissions.admit(0)]
        for group_id in started:
            walk.admissions.end(written(group_id, scores))
        return len(started)

    ended = 0
    while ended < MAX_LEFT_OUT * 4:
        ended += end_all(scores)
    assert not walk.admissions.lost and end_all(scores), "it draws on"
    while not walk.admissions.lost:
        assert end_all(scores)
    assert len(walk.admissions.left_out) >= MAX_WITHOUT_PASS * 4 and not walk.admissions.admit(0), "within bounds"
    walk.open()
    assert not walk.admissions.lost and end_all(scores), "a run that is started again has another try"
    assert end_all([0.0, 1.0]) and walk.admissions.lost
    found = walk.admissions.next_batch(0, partial=True)
    assert found is not None and found.trained and len(found.left_out) > MAX_WITHOUT_PASS * 4


def test_groups_of_which_nothing_has_a_reward_are_not_drawn_on(tmp_path: Path) -> None:
    """Their cause is no hard task: what broke has to be mended first."""
    walk = Walk(tmp_path, 0, Pace(batch=4, staleness=1, running=4))
    while not walk.admissions.lost:
        for group in walk.admissions.admit(0):
            walk.admissions.end(record(group.group_id, 0, [None, None]))
    assert len(walk.admissions.left_out) == MAX_LEFT_OUT * 4


def test_without_replacement_and_ahead_of_nothing_each_batch_is_a_block(tmp_path: Path) -> None:
    """So that a synchronous run and an asynchronous one with staleness 0 train on the same
    groups."""
    walk = Walk(tmp_path, 0, Pace(batch=4, staleness=0, running=4), replace=False)
    while walk.version < BATCHES:
        walk.step()
    for version in range(1, BATCHES + 1):
        assert read_batch(walk.store, version).group_ids == tuple(f"i{version - 1:06d}-g{n:04d}" for n in range(4))


def test_a_ready_group_keeps_the_version_at_which_it_was_started(tmp_path: Path) -> None:
    """After a kill too, where a group of a lower number is started again at a newer version."""
    walk = Walk(tmp_path, 0, Pace(batch=1, staleness=1, running=8))
    consumed, ready = record("i000000-g0000", 0, [0.0, 1.0]), record("i000002-g0000", 0, [0.0, 1.0])
    for ended in (consumed, ready):
        write_json(walk.store.group_path(ended.group_id), ended)
    batch = build_batch(1, [consumed.episodes], AlgorithmConfig())
    write_json(walk.store.batch_path(1), batch)
    write_json(walk.store.policy_path(1) / MANIFEST, {"version": 1, "files": {}})
    walk.open()
    assert [group.group_id for group in walk.admissions.admit(1)] == ["i000001-g0000"]
    walk.admissions.end(record("i000001-g0000", 1, [0.0, 1.0]))
    chosen = walk.admissions.next_batch(1)
    assert chosen is not None and chosen.trained == (ready.group_id,), "it may not wait for another batch"


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_no_asynchronous_run_trains_on_a_group_that_comes_too_late(staleness: int) -> None:
    """As one that a worker of before a kill commits: admission and window did not let it become so
    old."""
    config = TrainConfig.model_validate({"mode": "async", "pacing": {"staleness": staleness}})
    late, fresh = record("i000000-g0000", 3, [0.0, 1.0]), record("i000000-g0001", 5, [0.0, 1.0])
    for version in (4 + staleness, 5 + staleness):
        batch = build_batch(version, [late.episodes, fresh.episodes], config.batch_settings)
        trained = {row.episode_id.rpartition("-s")[0] for row in batch.rows}
        assert trained == ({"i000000-g0000", "i000000-g0001"} if version - 1 - 3 <= staleness else {"i000000-g0001"})
        left = {episode for episode, why in (batch.left_out or {}).items() if why.state is EpisodeState.STALE}
        assert {episode.rpartition("-s")[0] for episode in left} == {"i000000-g0000", "i000000-g0001"} - trained
    settings = config.batch_settings.model_copy(update={"replay_iterations": 4})
    assert build_batch(9, [], settings, earlier=[late.episodes]).replayed, "replayed episodes are old on purpose"
    synchronous = config.model_copy(update={"mode": "sync"})
    assert build_batch(9, [late.episodes], synchronous.batch_settings).rows
