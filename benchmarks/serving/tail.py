"""Rollouts with a lognormal tail of page times: free batches and slots against fixed ones, on a
model that only takes time."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks import Figure
from envs.types import WebTask
from tasks_lib.worker.live import LiveState
from tasks_lib.worker.permits import Permits
from tasks_lib.worker.rollout_service import ShardPlayer
from training.policy.rendered import RenderedPrompt
from training.records.groups import GroupSpec
from training.serving.engine import Generation, GenerationRequest, VersionSpan
from training.serving.local import LocalEngine

ROUNDS = 5
"""Of each arm in turn; medians are reported."""
SLOTS, GROUPS, GROUP_SIZE, HORIZON = 32, 16, 8, 10
"""Four episodes a slot."""
SCALE = 0.1
"""Of all times below, so that a round takes seconds."""
PAGE_SECONDS, PAGE_SIGMA = 1.0, 0.8
"""Median of a step's page and the standard deviation of its logarithm: live pages that take a
second, with a tail."""
BATCH_SECONDS, TURN_SECONDS = 0.1, 0.01
"""Of the model: each batch, and each turn of it."""


def figures() -> list[Figure]:
    """Episodes a second of both arms, and their ratio."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(ROUNDS):
        for deterministic in seconds:
            seconds[deterministic].append(asyncio.run(_rollout(number, deterministic)))
    rates = {arm: GROUPS * GROUP_SIZE / statistics.median(values) for arm, values in seconds.items()}
    return [
        Figure("episodes per second, rollout.deterministic: true", rates[True], "1/s", ""),
        Figure("episodes per second, rollout.deterministic: false", rates[False], "1/s", ""),
        Figure("deterministic: false / true", rates[False] / rates[True], "ratio", ">= 1.3"),
    ]


class _SleepingModel:
    """Takes as long as a batch should, and answers one token."""

    def load(self, version: int, folder: Path) -> None:
        """Nothing to load."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        time.sleep(SCALE * (BATCH_SECONDS + TURN_SECONDS * len(requests)))
        return [Generation((1,), (0.0,), (VersionSpan(0, 0, 1),), "stop") for _ in requests]


class _Runner:
    """Plays episodes whose pages are sleeps, in place of an `EpisodeRunner`."""

    def __init__(self, engine: LocalEngine, seed: int) -> None:
        self.actor = self
        self.sites = {"live": SimpleNamespace(stateless_pages=False)}
        self._engine, self._seed = engine, seed

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        return self._engine.session(name)

    async def run(self, group: GroupSpec, sample: int, status: object, session: str) -> list[Any]:
        name = f"{group.group_id}-s{sample:02d}"
        times = random.Random(f"{self._seed}/{name}")  # those of an episode are the same in both arms
        for step in range(times.randint(1, HORIZON)):
            await asyncio.sleep(SCALE * PAGE_SECONDS * times.lognormvariate(0.0, PAGE_SIGMA))
            prompt = RenderedPrompt((1,), (1,), ())
            await self._engine.generate(GenerationRequest(prompt, (), f"{name}/{step}", session, 0, 1, 1.0))
        return []


class _Committer:
    async def add(self, group: GroupSpec, attempts: list[Any]) -> None:
        """Nothing is kept."""


async def _rollout(seed: int, deterministic: bool) -> float:
    """Seconds of a rollout by a worker's own slots and engine, with the default cohorts and
    deadline."""
    task = WebTask(
        task_id="t", site="live", kind="k", path="/", instruction="x", difficulty=1, horizon=HORIZON, seeds={}
    )
    groups = [
        GroupSpec(group_id=f"i000000-g{number:04d}", task=task, seeds=(0,) * GROUP_SIZE) for number in range(GROUPS)
    ]
    engine = LocalEngine(_SleepingModel(), deterministic=deterministic, cohorts=2, deadline=SCALE * 2.0)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as slots:
        live = LiveState("i000000", GROUPS * GROUP_SIZE, dict)
        play = ShardPlayer(
            groups, cast(Any, _Runner(engine, seed)), cast(Any, _Committer()), live, slots, Permits(SLOTS)
        )
        for slot in play.slots(SLOTS, fixed=deterministic):
            slots.create_task(slot)
    seconds = time.perf_counter() - started
    await engine.close()
    return seconds
