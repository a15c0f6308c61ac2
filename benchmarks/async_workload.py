"""One arm of the benchmark ``async``: a real run whose engine and trainer only take time.

Prefect, Dask, Chromium, rewards, ledger and files are the run's own. ``python -m
benchmarks.async_workload NAME FOLDER VERSIONS SETTINGS`` trains, with settings in JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import flows  # noqa: F401 - sets Prefect up, before it is imported
from benchmarks.dask_traffic import DaskTraffic
from envs.actions import format_action
from envs.rewards import GradingEvidence
from envs.types import Answer, Wait
from tasks_lib.config import TrainConfig, merge, resolve
from tasks_lib.config.parameters import parameters_of
from tasks_lib.worker.resources import RunResources
from tasks_lib.worker.rollout_worker import RolloutWorker
from training.ledger.seal import sha256_of
from training.ledger.store import RunStore
from training.policy.renderer import Renderer
from training.serving.engine import Engine, EngineStatistics, Generation, GenerationRequest, VersionSpan
from training.serving.local import LocalEngine

GROUPS, GROUP_SIZE = 16, 8
"""Of a batch and of a group."""
VERSIONS = {"async": 7, "sync": 4, "barriers": 2}
"""Of each arm: one with barriers takes five minutes."""
TURN_MEAN, TURN_SIGMA = 1.0, 1.0
"""Seconds that the engine takes for a turn: lognormal, its mean and the standard deviation of the
logarithm."""
STEPS = {True: 5.1, False: 12.5}
"""Mean steps of successes and of failures, as AsyncWebRL reports them."""
HORIZON = 30
SLOTS = 48
"""Episodes at once."""
UPDATE_SHARE = 0.5
"""Of the mean time of a rollout in lockstep of slots, `rollout_seconds`."""

ARMS: dict[str, dict[str, Any]] = {
    "async": {"mode": "async", "pacing": {"staleness": 2}},
    "sync": {"rollout": {"deterministic": False}},
    "barriers": {"rollout": {"deterministic": True, "cohorts": 1, "batch_deadline": 60}},
}
"""What each arm sets. ``barriers``: every step waits for the slowest turn, and the engine stands
still in updates, as in WebGym."""


def rollout_seconds() -> float:
    """Expected seconds of a rollout of one batch, if all slots are busy all the time."""
    return GROUPS * GROUP_SIZE * sum(STEPS.values()) / 2 * TURN_MEAN / SLOTS


def passes(key: str) -> bool:
    """Whether an episode succeeds: by its group, from never to always."""
    group, episode = key.rsplit("-s", 1)
    return random.Random(f"episode/{group}/{episode}").random() < random.Random(f"group/{group}").random()


def steps_of(key: str) -> int:
    """Steps of an episode: exponential, with the mean of its kind."""
    drawn = random.Random(f"steps/{key}").expovariate(1 / STEPS[passes(key)])
    return min(HORIZON, max(1, round(drawn)))


def turn_seconds(key: str) -> float:
    """Seconds of one turn."""
    return random.Random(f"turn/{key}").lognormvariate(-(TURN_SIGMA**2) / 2, TURN_SIGMA) * TURN_MEAN


def reward(episode: GradingEvidence) -> float:
    """The reward that the engine decided: it answers with it."""
    return float(episode.answer == "pass")


class SleepingModel:
    """Answers a batch when its slowest turn is over."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer, self._version = renderer, 0

    def load(self, version: int, folder: Path) -> None:
        """Later turns are of this version."""
        self._version = version

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One turn for each request, in order."""
        time.sleep(max(turn_seconds(request.key) for request in requests))
        return [self.turn(request) for request in requests]

    def turn(self, request: GenerationRequest) -> Generation:
        """What is answered: to wait, and in the last step whether the episode passes."""
        episode, step = request.key.split("/")
        last = int(step) + 1 >= steps_of(episode)
        action = Answer(text="pass" if passes(episode) else "fail") if last else Wait()
        ids = tuple(self._renderer.encode_response(format_action(action)))
        return Generation(ids, (0.0,) * len(ids), (VersionSpan(self._version, 0, len(ids)),), "stop")


class SleepingEngine:
    """An engine that answers each turn by itself, when its time is over, as a server does that
    batches continuously."""

    def __init__(self, model: SleepingModel) -> None:
        self._model = model
        self.statistics = EngineStatistics()

    async def generate(self, request: GenerationRequest) -> Generation:
        """The turn; its version is that of its end."""
        await asyncio.sleep(turn_seconds(request.key))
        return self._model.turn(request)

    async def publish(self, version: int, folder: Path, *, or_newer: bool = False) -> None:
        """Later turns are of this version."""
        self._model.load(version, folder)

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Nothing waits for anybody."""
        return nullcontext()

    async def close(self) -> None:
        """Nothing is held."""


class SleepingResources(RunResources):
    """The resources of a run with such an engine."""

    def make_engine(self, checkpoint: Path) -> tuple[Renderer, Engine]:
        renderer = Renderer(checkpoint, self.needs.template)
        model = SleepingModel(renderer)
        deterministic, cohorts, deadline = self.needs.batching
        if deterministic:
            return renderer, LocalEngine(model, cohorts=cohorts, deadline=deadline)
        return renderer, SleepingEngine(model)


class SleepingWorker(RolloutWorker):
    """A worker with such resources."""

    resources: type[RunResources] = SleepingResources

    def setup(self, worker: Any) -> None:
        patch("tasks_lib.worker.resources.RunResources", self.resources).start()
        super().setup(worker)


class SleepingTrainer:
    """Publishes the weights of version 0 again, after as long as an update takes."""

    seconds = UPDATE_SHARE * rollout_seconds()

    def __init__(self, store: RunStore, config: TrainConfig) -> None:
        self._store = store

    def update(self, version: int) -> dict[str, Any]:
        """Wait, and publish the version; its manifest."""
        time.sleep(self.seconds)
        batch = self._store.batch_path(version)
        details = {
            "batch": sha256_of(batch),
            "metrics": {},
            "seconds": {"train": self.seconds, "save_state": 0.0, "save_policy": 0.0},
            "waited_seconds": 0.0,
        }
        self._store.publish_policy(version, self._store.policy_path(0), details)
        return self._store.manifest(version)

    def __enter__(self) -> SleepingTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs."""


def config_of(name: str, folder: str, versions: int, settings: dict[str, Any]) -> TrainConfig:
    """The quickstart's policy and pages under the workload, with further settings."""
    changes: dict[str, Any] = {
        "preset": "quickstart",
        "root": folder,
        "run_id": name,
        "iterations": versions,
        "tasks": {"kinds": ["click-test-2"], "sampler": None},
        "rollout": {
            "groups_per_iteration": GROUPS,
            "concurrency": SLOTS,
            "horizon": {"kind": "fixed", "train": HORIZON, "test": HORIZON},
            "repeats": 0,
            "episode_deadline": 600,
        },
        "rewards": {"function": f"{__name__}:reward"},
        "algorithm": {"group_size": GROUP_SIZE},
        "evaluation": {"episodes": 1, "every": versions},
    }
    config: TrainConfig = resolve(TrainConfig, merge(changes, settings))
    return config


def traffic_path(folder: Path, name: str) -> Path:
    """Where an arm leaves the bytes that passed through its scheduler."""
    return folder / f"{name}-traffic.json"


def main(name: str, folder: str, versions: str, settings: str) -> None:
    """Train one run, and write down what passed through its scheduler."""
    from flows.train import train

    with (
        DaskTraffic().count() as traffic,
        patch("tasks_lib.rollouts.cluster.RolloutWorker", SleepingWorker),
        patch("flows.train.Trainer", SleepingTrainer),
    ):
        train(**parameters_of(config_of(name, folder, int(versions), json.loads(settings))))
    traffic_path(Path(folder), name).write_text(json.dumps({"bytes": traffic.total}))


if __name__ == "__main__":
    from benchmarks import async_workload  # so that workers find the classes under their own module's name

    async_workload.main(*sys.argv[1:])
