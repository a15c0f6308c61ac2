"""The asynchronous loop in simulated time: who waits for whom, and what holds after a kill.

Trainer, engines and rollouts are stand-ins that only take time (`benchmarks.async_stand_ins`).
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.async_stand_ins import (
    WEIGHTS,
    StandIns,
    StandInSeconds,
    mean_period,
    stand_in_config,
    stand_in_loop,
    train,
)
from envs.types import PolicyError
from tasks_lib.config import TrainConfig
from tasks_lib.folder.metrics_lines import IterationMetrics, read_lines
from tasks_lib.loops.run import open_run
from tasks_lib.rollouts.evaluation import evaluate_version
from training.ledger.journal import Journal, read_batch, read_group
from training.pacing.simulate import simulate
from training.pacing.workload import Distribution, Machine, Schedule, Workload

from .loop_clock import KilledError, LoopClock

VERSIONS = 8


class Runs:
    """Starts processes of one run, in simulated time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.config: TrainConfig = stand_in_config(folder, **{"iterations": VERSIONS, **settings})
        self._monkeypatch = monkeypatch

    def process(self, seconds: StandInSeconds, looks: int | None = None) -> StandIns:
        """Run one to its end, or until it is killed after so many waits."""
        clock = LoopClock(looks)
        clock.stand_in(self._monkeypatch)
        with open_run(self.config) as run:
            parts = StandIns(run.store, seconds, clock)
            try:
                with stand_in_loop(run, parts) as loop:
                    train(loop)
            except KilledError:
                pass
            finally:
                clock.end()
        return parts


def test_the_trainer_goes_on_while_a_version_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Runs(tmp_path, monkeypatch).process(StandInSeconds(update=1.0, publication=1.0, rollout=0.5))
    for work in (parts.updates, parts.publications):
        assert [version for version, _, _ in work] == list(range(1, VERSIONS + 1))
        assert all(before[2] <= after[1] for before, after in pairwise(work)), "one after the other"
    assert all(after[1] == before[2] for before, after in pairwise(parts.updates[2:])), "the trainer never waits"
    assert mean_period(parts.publications, skipped=2) == pytest.approx(1.0)
    lines = read_lines(parts.store.metrics_path, IterationMetrics)
    assert [line.version for line in lines] == list(range(1, VERSIONS + 1))
    assert [line.asynchronous.publish for line in lines if line.asynchronous] == pytest.approx([1.0] * VERSIONS)
    assert staleness_of(parts) <= {0, 1, 2}


@pytest.mark.parametrize("slowest", [4.0, 9.0])
def test_slow_groups_are_in_time_while_publications_are_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slowest: float
) -> None:
    runs = Runs(tmp_path, monkeypatch, iterations=20)
    parts = runs.process(StandInSeconds(update=1.0, publication=1.0, rollout=0.4, slowest=slowest))
    assert max(staleness_of(parts)) == 2, "the bound, which is reached"
    batches = [read_batch(parts.store, version) for version in parts.store.versions()[1:]]
    assert not any(batch.left_out for batch in batches), "and no group is dropped for its age"


def staleness_of(parts: StandIns) -> set[int]:
    """Versions between each row's oldest token and its batch."""
    batches = [read_batch(parts.store, version) for version in parts.store.versions()[1:]]
    return {batch.version - 1 - oldest for batch in batches for oldest, _ in batch.versions}


@pytest.mark.parametrize(
    ("update", "publication", "rollout", "staleness", "depth", "running"),
    [
        (1.0, 1.0, 0.5, 2, 2, 100),  # the trainer binds
        (1.0, 1.0, 1.0, 2, 1, 100),  # too shallow for that: (1 + 1 + 1) / 2
        (1.0, 3.0, 0.5, 4, 4, 100),  # publications bind
        (0.5, 0.25, 3.0, 2, 2, 4),  # rollouts bind
        (1.0, 0.5, 0.75, 0, 0, 100),  # one after the other
    ],
)
def test_the_simulator_says_what_the_loop_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    update: float,
    publication: float,
    rollout: float,
    staleness: int,
    depth: int,
    running: int,
) -> None:
    pacing = {"staleness": staleness, "depth": depth, "running": running}
    runs = Runs(tmp_path, monkeypatch, pacing=pacing, iterations=11)
    parts = runs.process(StandInSeconds(update, publication, rollout))
    workload = Workload(
        group_size=12,
        success_steps=Distribution(1),
        failure_steps=Distribution(1),
        reset_seconds=Distribution(0.0),
        browser_seconds=Distribution(0.0),
        generation_seconds=Distribution(rollout),
        update_seconds=Distribution(update),
        publish_seconds=publication,
        success=(1000.0, 1000.0),
    )
    schedule = Schedule(batch=4, staleness=staleness, depth=depth, running=running)
    found = simulate(workload, Machine(browsers=10_000, engine_turns=10_000), schedule, versions=6, warmup=5)
    assert mean_period(parts.publications, skipped=4) == pytest.approx(found.period, rel=0.02)
    assert max(staleness_of(parts)) <= staleness
    chain = (update + publication + rollout) / (depth + 1)
    batch = rollout * 4 / min(running, 4 * (depth + 1))
    assert found.period == pytest.approx(max(update, publication, batch, chain), rel=0.02), "docs/async.md"


def test_a_shared_evaluation_holds_publications_back_and_not_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(tmp_path, monkeypatch, evaluation={"every": 2, "episodes": 2})
    parts = runs.process(StandInSeconds(update=1.0, publication=0.5, rollout=0.5, evaluation=4.0))
    assert parts.measured == [(version, {version}) for version in range(0, VERSIONS + 1, 2)]
    served = {version: end for version, _, end in parts.publications}
    began = {version: begin for version, begin, _ in parts.publications}
    trained = {version: end for version, _, end in parts.updates}
    for version in range(2, VERSIONS - 1, 2):
        assert began[version + 1] >= served[version] + 4.0, "the version is measured on its own weights"
        assert trained[version + 2] <= served[version] + 4.0, "and the trainer is two versions on, no more"


@pytest.mark.parametrize("where", ["boundary", "replica"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_moment_a_process_is_killed_at_the_run_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, where: str
) -> None:
    """Each group is in one batch, none too old; versions are served in order; each evaluation is of
    its own version; what groups need stays on disk."""
    chance, staleness, every = random.Random(seed), 2, 1 + seed % 2
    runs = Runs(
        tmp_path,
        monkeypatch,
        pacing={"staleness": staleness, "depth": staleness, "running": 12},
        evaluation={"every": every, "episodes": 2, "where": where},
        trainer={"keep_policies": 2},
    )
    seconds = [StandInSeconds(*(chance.random() for _ in range(4)), slowest=6.0) for _ in range(30)]
    measured: list[tuple[int, set[int]]] = []
    for paces in seconds:
        parts = runs.process(paces, chance.randrange(1, 12))
        measured += parts.measured
        newest = parts.store.latest_policy() or 0
        assert all((parts.store.policy_path(version) / WEIGHTS).exists() for version in parts.live.values())
        order = [version for version, _, _ in parts.publications]
        assert order == sorted(order)
        if newest == VERSIONS and chance.random() < 0.5:
            break
        if parts.store.batch_path(newest + 1).exists() and chance.random() < 0.5:
            parts.publish(newest + 1)  # the trainer goes on for a moment
    parts = runs.process(seconds[0])
    measured += parts.measured
    store = parts.store
    assert store.versions() == list(range(VERSIONS + 1))
    lines = read_lines(store.metrics_path, IterationMetrics)
    assert [line.iteration for line in lines] == list(range(VERSIONS))
    batches = [read_batch(store, version) for version in range(1, VERSIONS + 1)]
    consumed = Counter(group_id for batch in batches for group_id in batch.group_ids)
    assert set(consumed) == set(store.group_ids("i*")) and set(consumed.values()) == {1}
    for batch in batches:
        assert len(batch.group_ids) == 4 and not batch.left_out
        for record in (read_group(store, group_id) for group_id in batch.group_ids):
            assert batch.version - 1 - record.policy_version <= staleness
            tokens = [oldest for episode in record.episodes for oldest, _ in episode.versions]
            assert min(tokens) >= record.policy_version, "engines served it when the group was started"
    assert staleness_of(parts) <= set(range(staleness + 1))
    assert all(versions == {version} for version, versions in measured)
    assert {version for version, _ in measured} == set(range(0, VERSIONS + 1, every)), "no due evaluation is left out"
    journal = Journal(store.journal_path)
    assert journal.updates() == list(range(1, VERSIONS + 1))
    assert journal.episodes()["consumed"] == sum(len(batch.rows) for batch in batches)
    journal.close()


def test_an_evaluation_with_tokens_of_another_version_is_refused(tmp_path: Path) -> None:
    def switch(seconds: float) -> None:
        parts.engine = 1  # as another run does that publishes to the same servers

    with open_run(stand_in_config(tmp_path)) as run:
        parts = StandIns(run.store, StandInSeconds(), SimpleNamespace(sleep=switch))
        with stand_in_loop(run, parts):
            with pytest.raises(PolicyError, match=r"of v0 has tokens of v1 .* its groups were moved to"):
                evaluate_version(run.rollouts, 0, run.tasks, episodes=2, workers=1)
            assert not run.store.group_ids("e*") and not run.store.evaluation_path(0).exists()
            assert list((run.store.root / "outdated").rglob("e000000-g0000.json"))
            parts.clock = SimpleNamespace(sleep=lambda seconds: None)
            assert evaluate_version(run.rollouts, 0, run.tasks, episodes=2, workers=1)["mean"] == 0.5
