"""The run of the benchmark ``scale``: a browser and an engine that only take time, behind the
protocols of the real ones.

Prefect, Dask, prompts, rewards, ledger and files are the run's own. ``python -m
benchmarks.scale_workload FOLDER BATCHES`` trains.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from PIL import Image

from benchmarks.async_workload import SleepingEngine, SleepingModel, SleepingTrainer, SleepingWorker, passes
from envs.actions import format_action
from envs.browser import PageStep
from envs.sites import Site
from envs.types import Action, Answer, Element, Observation, StopReason, Wait, WebTask
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.config.parameters import parameters_of
from tasks_lib.worker.resources import RunResources
from training.policy.renderer import Renderer
from training.serving.engine import Engine, Generation, GenerationRequest, VersionSpan

GROUPS, GROUP_SIZE = 125, 8
"""Of a batch: 1,000 episodes."""
SLOTS = 1000
"""Episodes at once, on one worker."""
GROUPS_PER_TASK = 8
"""Groups of one Prefect task."""
STEPS = 2
TURN_MEAN, TURN_SIGMA = 5.0, 0.5
"""Seconds of a turn: lognormal, its mean and the standard deviation of the logarithm. A thousand
episodes of two turns could end a hundred times a second."""
SAMPLE_SECONDS = 5.0
"""Between two looks at the processes."""


class TimedModel(SleepingModel):
    """Waits in the first step; says in the second one whether the episode passes."""

    def turn(self, request: GenerationRequest) -> Generation:
        """By the episode's name alone."""
        episode, step = request.key.split("/")
        action = Answer(text="pass" if passes(episode) else "fail") if int(step) + 1 == STEPS else Wait()
        ids = tuple(self._renderer.encode_response(format_action(action)))
        return Generation(ids, (0.0,) * len(ids), (VersionSpan(self._version, 0, len(ids)),), "stop")


class TimedEngine(SleepingEngine):
    """Takes `TURN_MEAN` seconds a turn in the mean."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """The turn; its version is that of its end."""
        drawn = random.Random(f"turn/{request.key}").lognormvariate(-(TURN_SIGMA**2) / 2, TURN_SIGMA)
        await asyncio.sleep(drawn * TURN_MEAN)
        return self._model.turn(request)


class TimedSession:
    """A page with one button; each look at it is another picture, so that each step stores a blob
    of its own."""

    server = None
    records_network = False
    _number = 0

    def __init__(self, picture: bytes) -> None:
        self._picture = picture
        self._instruction = ""

    async def reset(self, task: WebTask, seed: int) -> PageStep:
        """The page."""
        self._instruction = task.instruction or task.kind
        return self._page()

    async def step(self, action: Action) -> PageStep:
        """The page again; an answer ends the episode."""
        if isinstance(action, Answer):
            return self._page(done=True, stop=StopReason.ANSWER, said=action.text)
        return self._page()

    def _page(self, **end: Any) -> PageStep:
        TimedSession._number += 1
        button = Element(index=1, tag="button", text="Next", box=(10, 10, 60, 20))
        seen = Observation(
            instruction=self._instruction,
            elements=(button,),
            url="http://127.0.0.1/page",
            viewport=(160, 210),
            text='[1] button "Next"',
            words=("Next",),
        )
        picture = self._picture + TimedSession._number.to_bytes(8, "big")  # what follows a JPEG's end is not looked at
        return PageStep(seen, picture, **{"done": False, **end})


class TimedPool:
    """Lends such sessions."""

    def __init__(self) -> None:
        with BytesIO() as file:
            Image.new("RGB", (56, 56), "white").save(file, "JPEG")
            self._picture = file.getvalue()

    @asynccontextmanager
    async def lease(self, site: Site) -> AsyncIterator[TimedSession]:
        """For one episode."""
        yield TimedSession(self._picture)

    def metrics(self) -> dict[str, Any]:
        """Nothing is counted."""
        return {}

    async def close(self) -> None:
        """Nothing runs."""


class Nowhere(Site):
    """Serves nothing."""

    name = "miniwob"
    origin = "http://127.0.0.1"


class TimedResources(RunResources):
    """The resources of a run with such sessions and such an engine."""

    def make_engine(self, checkpoint: Path) -> tuple[Renderer, Engine]:
        renderer = Renderer(checkpoint, self.needs.template)
        return renderer, TimedEngine(TimedModel(renderer))

    async def start_web(self, sites: Collection[str]) -> None:
        self.sites = {name: Nowhere() for name in sites}
        if self.pool is None:
            self.pool = TimedPool()  # type: ignore[assignment]


class TimedWorker(SleepingWorker):
    """A worker with such resources."""

    resources = TimedResources


class CopyingTrainer(SleepingTrainer):
    """Publishes the weights of version 0 again, at once."""

    seconds = 0.0


class ProcessWatch(threading.Thread):
    """Writes down the memory and the CPU time of this process and of those below it, a line each
    `SAMPLE_SECONDS`."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="watch", daemon=True)
        self._path = path
        self._ended = threading.Event()

    def run(self) -> None:
        """Until the end of the run."""
        with self._path.open("w") as file:
            while not self._ended.wait(SAMPLE_SECONDS):
                print(json.dumps({"at": time.time(), "processes": _processes()}), file=file, flush=True)

    def __enter__(self) -> ProcessWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def _processes() -> dict[str, dict[str, float]]:
    """Memory (MB, shared pages counted once) and CPU seconds, by what a process does."""
    found: dict[str, dict[str, float]] = {}
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            command, memory, cpu = " ".join(process.cmdline()), process.memory_full_info().uss, process.cpu_times()
        except psutil.Error:
            continue  # it has just ended
        total = found.setdefault(_role(process, command), {"mb": 0.0, "cpu": 0.0})
        total["mb"] += memory / 1e6
        total["cpu"] += cpu.user + cpu.system
    return found


def _role(process: psutil.Process, command: str) -> str:
    if process.pid == psutil.Process().pid:
        return "flow"
    if "uvicorn" in command or "prefect" in command:
        return "prefect server"
    return "worker" if "spawn_main" in command else "other"


def config_of(folder: str, batches: int) -> TrainConfig:
    """The quickstart's policy, asynchronously."""
    config: TrainConfig = resolve(
        TrainConfig,
        {
            "preset": "quickstart",
            "root": folder,
            "run_id": "scale",
            "mode": "async",
            "iterations": batches,
            "tasks": {"kinds": ["click-test-2"], "sampler": None},
            "rollout": {
                "groups_per_iteration": GROUPS,
                "groups_per_task": GROUPS_PER_TASK,
                "concurrency": SLOTS,
                "deterministic": False,
                "horizon": {"kind": "fixed", "train": STEPS, "test": STEPS},
                "repeats": 0,
                "episode_deadline": 600,
            },
            "rewards": {"function": "benchmarks.async_workload:reward"},
            "algorithm": {"group_size": GROUP_SIZE},
            "trainer": {"keep_policies": 2},
            "evaluation": {"episodes": 1, "every": batches},
        },
    )
    return config


def main(folder: str, batches: str) -> None:
    """Train, and watch the processes."""
    from flows.train import train

    with (
        patch("tasks_lib.rollouts.cluster.RolloutWorker", TimedWorker),
        patch("flows.train.Trainer", CopyingTrainer),
        ProcessWatch(Path(folder) / "processes.jsonl"),
    ):
        train(**parameters_of(config_of(folder, int(batches))))


if __name__ == "__main__":
    from benchmarks import scale_workload  # so that workers find the classes under their own module's name

    scale_workload.main(*sys.argv[1:])
