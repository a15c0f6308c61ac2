"""The real asynchronous loop over a trainer, engines and rollouts that only take time.

Ledger, admission, window, batches, retention and metrics are the run's own; there is no Prefect,
Dask, browser or model. ``tests/tasks_lib/test_asynchronous.py`` drives it in simulated time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from envs.types import RewardBundle, SeedRange, Split, StopReason, Trajectory, WebTask
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.folder.metrics_lines import IterationMetrics
from tasks_lib.loops.asynchronous import AsynchronousLoop
from tasks_lib.loops.run import TrainingRun
from tasks_lib.processes.trainer import update_policy
from tasks_lib.rollouts.shards import RolloutResult, Rollouts, RunningShard
from tasks_lib.worker.requests import ActorName, RolloutReport, RolloutRequest
from training.ledger.checkpoint_files import MANIFEST, file_hashes
from training.ledger.journal import read_batch, read_group
from training.ledger.seal import sha256_of
from training.ledger.store import RunStore, write_json
from training.records.groups import EpisodeSummary, GroupRecord, GroupSpec, StepShape

GROUP_SIZE = 2
"""Episodes of a group: one passes and one fails."""

WEIGHTS = "model.safetensors"

LOOP = "tasks_lib.loops.asynchronous"


@dataclass(frozen=True, slots=True)
class StandInSeconds:
    """What each part takes."""

    update: float = 1.0
    publication: float = 1.0
    rollout: float = 0.5
    """Of each group; all that are admitted are played at once."""
    evaluation: float = 0.0
    slowest: float = 1.0
    """How many times as long one group in four takes."""


class WallClock:
    """Time as it passes."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    Thread = threading.Thread


@dataclass
class StandIns:
    """The parts of a run beside its loop, and what they record. One object for each process of the
    run."""

    store: RunStore
    seconds: StandInSeconds
    clock: Any = WallClock
    """Has `monotonic`, `sleep` and `Thread`, as `WallClock`."""
    engine: int = 0
    """Version that the engines serve."""
    updates: list[tuple[int, float, float]] = field(default_factory=list)
    """Version, beginning and end of each update."""
    publications: list[tuple[int, float, float]] = field(default_factory=list)
    measured: list[tuple[int, set[int]]] = field(default_factory=list)
    """Version of each evaluation, and the versions that the engines had meanwhile."""
    live: dict[str, int] = field(default_factory=dict)
    """Groups under way, with the version at which each was started."""

    def update(self, version: int) -> dict[str, Any]:
        """Train, as the run's trainer does: take time, and write the version once."""
        if not (self.store.policy_path(version) / MANIFEST).exists():
            began = self.clock.monotonic()
            self.clock.sleep(self.seconds.update)
            self.publish(version)
            self.updates.append((version, began, self.clock.monotonic()))
        return self.store.manifest(version)

    def publish(self, version: int) -> None:
        """Write a version whose weights are its number."""
        seconds = {"train": self.seconds.update, "save_state": 0.0, "save_policy": 0.0}
        measured = {"metrics": {}, "seconds": seconds, "waited_seconds": 0.0}
        batch = dict[str, Any]()
        if version:
            batch["batch"] = sha256_of(self.store.batch_path(version))
            batch["group_ids"] = read_batch(self.store, version).group_ids
        folder = self.store.policy_path(version)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / WEIGHTS).write_text(str(version))
        manifest = {"version": version, "files": file_hashes(folder), **batch, **measured}
        write_json(folder / MANIFEST, manifest, sealed=True)

    def tell(self, function: object, run_dir: str, version: int, folder: str) -> None:
        """Publish a version to the engines, in place of `tell_workers`."""
        began = self.clock.monotonic()
        self.clock.sleep(self.seconds.publication)
        self.engine = version
        self.publications.append((version, began, self.clock.monotonic()))

    def play(self, shard: RolloutRequest, done: Future[RolloutReport]) -> None:
        """Play the groups of a shard, and commit them."""
        oldest = self.engine
        self.live |= {group.group_id: shard.version for group in shard.groups}
        slow = random.Random(shard.groups[0].group_id).random() < 0.25
        self.clock.sleep(self.seconds.rollout * (self.seconds.slowest if slow else 1.0))
        for group in shard.groups:
            self.live.pop(group.group_id)
            self.commit(group, shard.version, (oldest, self.engine))
        names = tuple(group.group_id for group in shard.groups)
        done.set_result(RolloutReport(group_ids=names, already_committed=0, seconds={"idle": 0.0}))

    def commit(self, group: GroupSpec, version: int, versions: tuple[int, int]) -> None:
        """Write a group's record, unless it is there: every second episode passes."""
        if self.store.group_path(group.group_id).exists():
            return
        names: dict[str, Any] = {"task_id": group.task.task_id, "kind": group.task.kind, "policy_version": version}
        episodes = tuple(self._episode(group, sample, versions, names) for sample in range(len(group.seeds)))
        record = GroupRecord(token="", group_id=group.group_id, episodes=episodes, **names)
        write_json(self.store.group_path(group.group_id), record)

    def _episode(
        self, group: GroupSpec, sample: int, versions: tuple[int, int], names: dict[str, Any]
    ) -> EpisodeSummary:
        """Store an episode whose steps are in its summary alone."""
        episode_id, seed, passed = group.episode_id(sample, 0), group.seeds[sample], bool(sample % 2)
        trajectory = Trajectory(
            episode_id=episode_id,
            group_id=group.group_id,
            seed=seed,
            sample=sample,
            steps=(),
            stop_reason=StopReason.DONE,
            reward=RewardBundle(score=float(passed), passed=passed),
            **names,
        )
        digest = self.store.put_trajectory(trajectory)
        summary = EpisodeSummary.of(trajectory, digest)
        shapes = (StepShape(1, 1, 0),)
        return summary.model_copy(update={"steps": 1, "response_tokens": 1, "versions": (versions,), "shapes": shapes})


@dataclass(frozen=True)
class StandInRollouts(Rollouts):
    """Rollouts of a run that its stand-ins play."""

    stand_ins: StandIns = field(default=None)  # type: ignore[assignment]
    own: bool = False
    """Whether these are evaluations with engines of their own."""

    @classmethod
    def of(cls, rollouts: Rollouts, stand_ins: StandIns, *, own: bool = False) -> StandInRollouts:
        """The rollouts of the same settings."""
        values = {each.name: getattr(rollouts, each.name) for each in fields(Rollouts)}
        return cls(**values, stand_ins=stand_ins, own=own)

    def start(self, requests: Sequence[RolloutRequest], priority: int = 0) -> list[RunningShard]:
        return [self._start(request) for request in requests]

    def _start(self, request: RolloutRequest) -> RunningShard:
        done: Future[RolloutReport] = Future()
        clock = self.stand_ins.clock
        clock.Thread(target=self.stand_ins.play, args=(request, done), daemon=True).start()
        return RunningShard(request, done, self.store, clock.monotonic())  # type: ignore[arg-type]

    def run(self, groups: list[GroupSpec], *, version: int, workers: int, actor: ActorName = "policy") -> RolloutResult:
        """Play an evaluation. Engines that are shared go to its version, as they do."""
        parts = self.stand_ins
        if not self.own:
            parts.engine = version
        seen = {version if self.own else parts.engine}
        parts.clock.sleep(parts.seconds.evaluation)
        seen.add(version if self.own else parts.engine)
        parts.measured.append((version, seen))
        for group in groups:
            parts.commit(group, version, (min(seen), max(seen)))
        return RolloutResult(
            [read_group(self.store, group.group_id) for group in groups], {"wall": parts.seconds.evaluation}
        )


def stand_in_config(folder: Path, **settings: Any) -> TrainConfig:
    """The configuration of such a run below a folder, with further settings."""
    seeds = {Split.TRAIN: SeedRange(start=100, stop=10_000), Split.HELD_OUT: SeedRange(start=0, stop=100)}
    task = WebTask(
        task_id="shop/a", site="shop", kind="a", path="/", instruction="Do it.", difficulty=1, horizon=3, seeds=seeds
    )
    (folder / "tasks.jsonl").write_text(task.model_dump_json() + "\n")
    values = {
        "root": str(folder),
        "run_id": "stand-ins",
        "mode": "async",
        "tasks": {"file": str(folder / "tasks.jsonl")},
        "algorithm": {"group_size": GROUP_SIZE},
        "rollout": {"groups_per_iteration": 4, "groups_per_task": 1},
        "evaluation": {"every": 1000, "episodes": 2},
        "pacing": {"staleness": 2, "depth": 2, "running": 100},
    }
    config: TrainConfig = resolve(TrainConfig, values | settings)
    return config


@contextmanager
def stand_in_loop(run: TrainingRun, stand_ins: StandIns) -> Iterator[AsynchronousLoop]:
    """Make the loop of an opened run over its stand-ins, which serve its newest version."""
    if not run.store.versions():
        stand_ins.publish(0)
    stand_ins.engine = run.opened_at
    run.rollouts = StandInRollouts.of(run.rollouts, stand_ins)
    if run.config.evaluation.where != "boundary":
        run.measuring = StandInRollouts.of(run.rollouts, stand_ins, own=True)
    progress: Any = SimpleNamespace(log=lambda line: None, iteration=lambda number, line: None)
    with patch(f"{LOOP}.update_policy", update_policy.fn), patch(f"{LOOP}.tell_workers", stand_ins.tell):
        yield AsynchronousLoop(run, stand_ins, 1, progress)  # type: ignore[arg-type]


def train(loop: AsynchronousLoop) -> list[IterationMetrics]:
    """Run the loop to its end as `flows.train` does; the lines of its versions."""
    lines = []
    if loop.evaluation_due:
        loop.evaluate()
    while loop.unfinished:
        lines.append(loop.iterate())
        if loop.evaluation_due:
            loop.evaluate()
    return lines


def mean_period(publications: Sequence[tuple[int, float, float]], skipped: int) -> float:
    """Mean seconds from one served version to the next, without the first ``skipped`` ones."""
    ends = [end for _, _, end in publications[skipped:]]
    return (ends[-1] - ends[0]) / (len(ends) - 1)
