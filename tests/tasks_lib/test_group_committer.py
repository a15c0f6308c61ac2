"""Committing a group: the first attempt wins, and its record agrees with its trajectories whatever
another worker does meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from envs.episodes.grading import JUDGED_WALL
from envs.rewards import score
from envs.types import RewardPart, Trajectory, WebTask
from tasks_lib.worker.activity import ActivityClock
from tasks_lib.worker.blocklist import Blocklist
from tasks_lib.worker.group_committer import GroupCommitter
from tests.envs.rewards.played import trajectory
from training.ledger.journal import read_group
from training.ledger.store import RunStore
from training.records.groups import GroupSpec

TASK = WebTask(task_id="shop/lamp", site="shop", kind="lamp", path="/", difficulty=1, horizon=9, seeds={})
GROUP = GroupSpec(group_id="i000000-g0000", task=TASK, seeds=(1, 1))
OUTCOMES = {"first": (1.0, 0.0), "second": (0.0, 1.0)}
"""Rewards of the two episodes as each of two workers plays them: an engine that is not
repeatable."""


class Killed(BaseException):
    """The worker's process is killed."""


class Ungraded:
    """A reward stage that leaves episodes as they are."""

    async def grade(self, task: WebTask, episode: Trajectory) -> Trajectory:
        return episode


class Turns:
    """Lets one of several threads go on at a time, from one file operation to its next."""

    def __init__(self, workers: set[str]) -> None:
        self._changed = threading.Condition()
        self._waiting: set[str] = set()
        self._over: set[str] = set()
        self._next = ""
        self._workers = workers

    def wait(self, worker: str) -> None:
        """Called by a worker before each operation."""
        with self._changed:
            self._waiting.add(worker)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next == worker)
            self._next = ""
            self._waiting.discard(worker)

    def ended(self, worker: str) -> None:
        with self._changed:
            self._over.add(worker)
            self._changed.notify_all()

    def ready(self) -> list[str]:
        """The workers that wait for a turn, once no other one runs; none when all have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._next and self._waiting | self._over == self._workers)
            return sorted(self._waiting)

    def give(self, worker: str) -> None:
        with self._changed:
            self._next = worker
            self._changed.notify_all()


async def play(store: RunStore, worker: str) -> None:
    """Commit the group as a worker has played it."""
    clock = ActivityClock(("reward", "store"))
    with ThreadPoolExecutor(1, worker) as files:
        committer = GroupCommitter([GROUP], store, clock, files, Ungraded())  # type: ignore[arg-type]
        for sample, value in enumerate(OUTCOMES[worker]):
            reward = score([RewardPart(name="page", value=value, weight=1.0, evidence="")])
            episode_id = GROUP.episode_id(sample, 0)
            ended = trajectory(episode_id=episode_id, group_id=GROUP.group_id, sample=sample, reward=reward)
            await committer.add(GROUP, [ended])


@pytest.fixture
def before_operation(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[str], None]]]:
    """What is called in a worker's thread before each operation that others can see: a file
    appears, or goes away."""
    hooks: list[Callable[[str], None]] = []

    def hooked(operation: Callable[..., object]) -> Callable[..., object]:
        def run(path: object, *more: object, **options: object) -> object:
            worker = threading.current_thread().name.partition("_")[0]
            if worker in OUTCOMES and not (operation is unlink and str(path).endswith(".tmp")):
                for hook in hooks:
                    hook(worker)
            return operation(path, *more, **options)

        return run

    unlink = Path.unlink
    for name in ("replace", "link"):
        monkeypatch.setattr(os, name, hooked(getattr(os, name)))
    monkeypatch.setattr(Path, "unlink", hooked(unlink))
    yield hooks


def check_agrees(store: RunStore) -> None:
    """The record is one worker's, of both its episodes, and the trajectories that are read are that
    worker's."""
    record = read_group(store, GROUP.group_id)
    assert tuple(episode.score for episode in record.episodes) in OUTCOMES.values()
    for episode in record.episodes:
        assert store.trajectory(episode.episode_id).reward.score == episode.score
    named = {episode.episode_id for episode in record.episodes}
    assert set(store.episode_ids()) == named, "what is left of another attempt is counted"
    files = {path.name for path in store.root.glob("trajectories/*/*.json")}
    orphans = {store.trajectory_path(*each).name for each in store.orphans()}
    assert files - orphans == {store.trajectory_path(each).name for each in named}


def test_two_workers_commit_a_group_in_every_order_of_operations(
    tmp_path: Path, before_operation: list[Callable[[str], None]]
) -> None:
    chosen: list[tuple[int, int]] = []  # (which of the workers that are ready, of how many) at each point
    tried = 0
    while True:
        tried += 1
        store, turns = RunStore(tmp_path / str(tried)), Turns(set(OUTCOMES))
        before_operation[:] = [turns.wait]

        def run(worker: str, store: RunStore = store, turns: Turns = turns) -> None:
            try:
                asyncio.run(play(store, worker))  # of a thread of its own
            finally:
                turns.ended(worker)

        threads = [threading.Thread(target=run, args=(worker,), name=f"run-{worker}") for worker in OUTCOMES]
        for thread in threads:
            thread.start()
        point = 0
        while ready := turns.ready():
            if point == len(chosen):
                chosen.append((0, len(ready)))
            turns.give(ready[chosen[point][0]])
            point += 1
        for thread in threads:
            thread.join()
        check_agrees(store)
        shutil.rmtree(store.root)
        while chosen and chosen[-1][0] + 1 == chosen[-1][1]:
            chosen.pop()
        if not chosen:
            break
        chosen[-1] = (chosen[-1][0] + 1, chosen[-1][1])
    assert tried >= 20, "each worker has three operations at least, so there are as many orders"


@pytest.mark.parametrize("operations", range(5))
async def test_a_worker_killed_at_any_operation_leaves_nothing_that_counts(
    tmp_path: Path, before_operation: list[Callable[[str], None]], operations: int
) -> None:
    left = operations

    def kill(worker: str) -> None:
        nonlocal left
        if worker == "first":
            if not left:
                raise Killed
            left -= 1

    store = RunStore(tmp_path)
    before_operation.append(kill)
    try:
        await play(store, "first")
    except Killed:
        assert left == 0
    assert not store.orphans(), "while there is no record, nothing has lost"
    await play(store, "second")
    check_agrees(store)
    winner = "first" if operations >= 3 else "second"
    scores = tuple(episode.score for episode in read_group(store, GROUP.group_id).episodes)
    assert scores == OUTCOMES[winner]
    assert len(store.orphans()) == (min(operations, 2) if winner == "second" else 0)


async def test_a_trajectory_changed_after_its_commit_is_refused(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    await play(store, "first")
    one, other = (store.trajectory_path(GROUP.episode_id(sample, 0)) for sample in (0, 1))
    whole = one.read_bytes()
    one.write_bytes(whole.replace(b'"score":1.0', b'"score":0.5'))
    with pytest.raises(Exception, match="not the one that its group's record was made of"):
        store.trajectory(GROUP.episode_id(0, 0))
    one.write_bytes(other.read_bytes())
    with pytest.raises(Exception, match=r"holds episode i000000-g0000-s01-a0, not the one of its name"):
        store.trajectory(GROUP.episode_id(0, 0))


def test_attempts_without_a_record_are_told_apart(tmp_path: Path) -> None:
    """Until there is a record nobody can say which of two attempts counts; an older run has names
    without a token."""
    store = RunStore(tmp_path)
    episode = trajectory(episode_id="i000000-g0001-s00-a0", group_id="i000000-g0001")
    store.put_trajectory(episode)
    assert store.trajectory(episode.episode_id) == episode
    store.put_trajectory(episode, "0a1b")
    with pytest.raises(Exception, match="2 attempts have stored i000000-g0001-s00-a0"):
        store.trajectory(episode.episode_id)
    store.trajectory_path(episode.episode_id, "").unlink()
    assert store.trajectory(episode.episode_id) == episode


async def test_a_group_is_committed_with_the_last_of_its_rewards(tmp_path: Path) -> None:
    store, clock = RunStore(tmp_path), ActivityClock(("reward", "store"))
    task = WebTask(task_id="shop/lamp", site="shop", kind="lamp", path="/", difficulty=1, horizon=9, seeds={})
    group = GroupSpec(group_id="i000000-g0000", task=task, seeds=(1, 1, 1))
    first_two = asyncio.Event()

    class Stage:
        """The second reward takes until both others are stored."""

        async def grade(self, task: WebTask, episode: Trajectory) -> Trajectory:
            if episode.sample == 1:
                await first_two.wait()
            return episode

    def ended(sample: int, **more: Any) -> list[Trajectory]:
        return [trajectory(episode_id=f"i000000-g0000-s0{sample}-a0", group_id=group.group_id, sample=sample, **more)]

    with ThreadPoolExecutor(2) as files:
        committer = GroupCommitter([group], store, clock, files, Stage(), {"shop"})  # type: ignore[arg-type]
        waiting = asyncio.create_task(committer.add(group, ended(1)))
        await committer.add(group, ended(0, wall=JUDGED_WALL))
        abstained = {"reward": score([], abstained="a wall"), "wall": "cloudflare", "error": "a wall"}
        await committer.add(group, ended(2, **abstained))
        assert not store.group_path(group.group_id).exists() and len(list(store.episode_ids())) == 2
        first_two.set()
        await waiting
    assert [episode.sample for episode in read_group(store, group.group_id).episodes] == [0, 1, 2]
    (wall,) = Blocklist(store).read_walls().values()
    assert (wall.site, wall.wall, wall.evidence) == ("shop", "cloudflare", "a wall")
