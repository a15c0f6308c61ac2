"""64 GPUs (48 serve, 16 train) with places for 10,000 episodes, on paper and simulated: what each
queue and service has to bear, and what binds first.

No such machine was there. Seconds of turns, steps and publications are assumptions (below), the
trainer's rate is that of ``--dry-run``. What an episode costs Dask, Prefect, storage, the flow and
its workers is measured: here, by the recorded results of `scale` and `env`, and with ``strace``
(`OPERATIONS`).
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import distributed

from benchmarks import Figure, record
from benchmarks.scale_workload import GROUP_SIZE, GROUPS_PER_TASK, STEPS
from tasks_lib.preflight.estimate import STEP_TOKENS, TOKENS_PER_SECOND
from training.ledger.store import RunStore, atomic_write_bytes
from training.pacing.simulate import simulate
from training.pacing.workload import Distribution, Machine, Schedule, Workload

BILLIONS = 8.8
"""Parameters of the policy (Qwen3-VL-8B)."""
EPISODES, SERVERS, TRAINERS = 10_000, 48, 16
TURN_SECONDS = BROWSER_SECONDS = 3.0
"""Half each of the 6 s a step that ``--dry-run`` assumes."""
TURNS_PER_GPU = 64.0
"""Turns that a GPU generates at once at full speed: 1,024 steps a second in all."""
MEAN_STEPS = 13.0
"""AsyncWebRL reports 13.2."""
SCHEDULE = Schedule(batch=256, staleness=8, depth=8, running=2500)
"""Groups of eight. A group's long episodes outlast its short ones, so twice as many groups as
10,000 / 8 have to be under way for 10,000 episodes at once."""
TRAINED_TOKENS = {"window": STEP_TOKENS, "append": STEP_TOKENS / 5, "no update": 0.0}
"""Of a step: the whole prompt again; each token once; none, which shows what binds next."""
SHARD = 32
"""Episodes of a Prefect task: four groups."""
PICTURE_BYTES, TRAJECTORY_BYTES = 150_000, 100_000
OPERATIONS = {"step": 4.0, "episode": 8.0}
"""Calls that name a file of the run: a new picture is two look-ups, a temporary file and its new
name (the first in each of 65,536 folders two more); an episode's trajectory, its share of its
group's record, and of the ledger. Counted with ``strace -f`` in 5,398 episodes of
`scale_workload`."""
TASKS = 2000
FILES = 500

UNIT = "of one core"


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs, in CPU seconds unless it says otherwise."""

    task: float
    """Of Dask's scheduler and its client, a task."""
    prefect: float
    """Of Prefect's server, a Prefect task."""
    flow: float
    """Of the flow's process, an episode: loop, ledger, and Dask's scheduler."""
    worker: float
    """Of a worker without its browser, a step: prompts, rewards, files."""
    chromium: float
    """Of Chromium, a step with its screenshot."""


def run() -> list[Figure]:
    """Measured rates, simulated runs, and each service's load where the engines never wait."""
    costs = measured()
    figures = [
        Figure("Dask tasks of one scheduler", 1 / costs.task, "1/s", ""),
        Figure("Prefect tasks of one server", 1 / costs.prefect, "1/s", ""),
        *_storage(),
    ]
    for name, tokens in TRAINED_TOKENS.items():
        result = simulate(workload(tokens), Machine(EPISODES, TURNS_PER_GPU * SERVERS), SCHEDULE, versions=10)
        idle = {"trainer": result.trainer_idle, "engines": result.engine_idle, "browsers": result.browser_idle}
        figures += [
            Figure(f"{name}: steps", result.steps_per_second, "1/s", ""),
            Figure(f"{name}: update", result.update, "s", ""),
            Figure(f"{name}: version", result.period, "s", ""),
            *(Figure(f"{name}: {part} idle", share, "share", "") for part, share in idle.items()),
        ]
    return [*figures, *shares(SERVERS * TURNS_PER_GPU / TURN_SECONDS, costs)]


def measured() -> Costs:
    """The costs, of this machine and of the recorded results."""
    scale = {figure.name: figure.value for figure in record.read("scale").figures}
    steps = {figure.name: figure.value for figure in record.read("env").figures}
    rate = next(value for name, value in scale.items() if name.startswith("episodes per second"))
    return Costs(
        task=_dask_seconds(),
        prefect=scale["CPU, prefect server"] / (rate / (GROUP_SIZE * GROUPS_PER_TASK)),
        flow=scale["CPU, flow"] / rate,
        worker=scale["CPU, worker"] / (rate * STEPS),
        chromium=steps["CPU of a step, 8"] / 1000,
    )


def workload(tokens: float) -> Workload:
    """The episodes and updates, with so many trained tokens a step."""
    rate = TRAINERS * TOKENS_PER_SECOND / BILLIONS
    return Workload(
        success_steps=Distribution(MEAN_STEPS - 3, 0.4),
        failure_steps=Distribution(MEAN_STEPS + 3, 0.4),
        browser_seconds=Distribution(BROWSER_SECONDS, 0.8),
        generation_seconds=Distribution(TURN_SECONDS, 0.8),
        judge_seconds=Distribution(3.0),
        update_seconds=Distribution(30.0 if tokens else 0.0),
        update_step_seconds=tokens / rate,
        publish_seconds=30.0,
        pause_seconds=2.0,
        abstain=0.02,
    )


def shares(steps: float, costs: Costs) -> list[Figure]:
    """What so many steps a second ask of each service."""
    episodes = steps / MEAN_STEPS
    operations = steps * OPERATIONS["step"] + episodes * OPERATIONS["episode"]
    written = (steps * PICTURE_BYTES + episodes * TRAJECTORY_BYTES) / 1e6
    said = f"at {steps:.0f} steps a second"
    return [
        Figure(f"storage, operations, {said}", operations, "1/s", ""),
        Figure(f"storage, written, {said}", written, "MB/s", ""),
        Figure(f"Dask's scheduler, {said}", episodes / SHARD * costs.task, UNIT, "<= 0.8"),
        Figure(f"Prefect's server, {said}", episodes / SHARD * costs.prefect, UNIT, "<= 0.8"),
        Figure(f"flow's process, {said}", episodes * costs.flow, UNIT, "<= 0.8"),
        Figure(f"workers without browsers, {said}", steps * costs.worker, "cores", ""),
        Figure(f"Chromium, {said}", steps * costs.chromium, "cores", ""),
    ]


def _dask_seconds() -> float:
    """CPU seconds of scheduler and client, which share this process as in a run, a task."""
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=4, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.submit(int, 1).result()
        begun = time.process_time()
        client.gather(client.map(str, range(TASKS), pure=False))
        return (time.process_time() - begun) / TASKS


def _storage() -> list[Figure]:
    """Writes of one client on this machine's disk."""
    with tempfile.TemporaryDirectory(prefix="rollwright-cluster-") as folder:
        store = RunStore(folder)
        picture, small = bytes(PICTURE_BYTES), bytes(1000)
        pictures = _rate(lambda number: store.put_blob(b"\xff\xd8\xff" + number.to_bytes(8, "big") + picture))
        synced = _rate(lambda number: atomic_write_bytes(Path(folder, f"{number}.json"), small))
    return [
        Figure("new pictures of one client on this disk", pictures, "1/s", ""),
        Figure("synced files of one client on this disk", synced, "1/s", ""),
    ]


def _rate(write: Callable[[int], object]) -> float:
    begun = time.perf_counter()
    for number in range(FILES):
        write(number)
    return FILES / (time.perf_counter() - begun)
