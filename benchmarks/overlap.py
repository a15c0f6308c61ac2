"""Asynchronous training without added delay: its rate against what overlap could give, its success
against the synchronous mode's."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import Figure
from benchmarks.asynchronous import consumed_per_second, iterations, orchestration_share
from tasks_lib.config import PROJECT
from tasks_lib.folder.metrics_lines import IterationMetrics
from training.ledger.journal import read_group
from training.ledger.store import RunStore

VERSIONS = 8
SEEDS = (0, 1, 2)
SETTINGS = {"iterations": VERSIONS, "evaluation.every": VERSIONS}
ASYNC = {"mode": "async", "pacing.staleness": 2, "pacing.replace": False}
"""Groups that leave nothing to learn from count, as in the synchronous mode: both play as many
episodes for a version."""
ARMS: dict[str, dict[str, object]] = {
    "sync": {"rollout.deterministic": False},
    "async": ASYNC,
    "coupled": {**ASYNC, "algorithm.proximal": "behaviour"},
}
"""Of the quickstart. ``coupled``: the clip is around the policy that sampled; one seed of it is
enough for its clipped tokens."""


LOOK_SECONDS = 0.5
"""Between two looks at how many versions a run has published."""


@dataclass(frozen=True)
class Trained:
    """A run, and what it did without the first version, which starts everything, and the last,
    which ends it."""

    store: RunStore
    lines: list[IterationMetrics]
    """Of the metrics, all versions."""
    seconds_per_version: float
    cores: float
    """Share of the machine's cores in use."""
    played: float
    """Episodes that ended, over those of the batches."""

    @property
    def consumed_per_second(self) -> float:
        """Episodes that gave rows."""
        return consumed_per_second(self.lines[:-1])


def run() -> list[Figure]:
    """Runs of the arms in turn."""
    found: dict[str, list[Trained]] = {arm: [] for arm in ARMS}
    scores: dict[str, dict[str, float]] = {"sync": {}, "async": {}}
    with tempfile.TemporaryDirectory(prefix="rollwright-overlap-") as folder:
        for seed in SEEDS:
            for arm in ARMS if seed == SEEDS[0] else ("sync", "async"):
                trained = train(f"{arm}-{seed}", {**SETTINGS, **ARMS[arm], "seed": seed}, Path(folder))
                found[arm].append(trained)
                if arm in scores:
                    scores[arm] |= {f"{seed}/{key}": score for key, score in last_scores(trained.store).items()}
    rates = {arm: statistics.fmean(each.consumed_per_second for each in runs) for arm, runs in found.items()}
    ceiling = overlap_ceiling([line for each in found["sync"] for line in each.lines[1:]])
    clipped = {
        arm: statistics.fmean(line.trained["clip_fraction"] for line in runs[0].lines[1:])  # of the seed that all have
        for arm, runs in found.items()
    }
    orchestration = statistics.fmean(orchestration_share(each.lines[1:]) for each in found["async"])
    cores = {arm: statistics.fmean(each.cores for each in found[arm]) for arm in scores}
    wall = {arm: statistics.fmean(each.seconds_per_version for each in found[arm]) for arm in scores}
    return [
        *[Figure(f"consumed episodes per second, {arm}", rate, "1/s", "") for arm, rate in rates.items()],
        Figure("ceiling of overlap", ceiling, "ratio", ""),
        Figure("async / sync", rates["async"] / rates["sync"], "ratio", ""),
        Figure("async / sync, of the ceiling", rates["async"] / rates["sync"] / ceiling, "share", ">= 0.85"),
        *[Figure(f"seconds per version, {arm}", seconds, "s", "") for arm, seconds in wall.items()],
        Figure(
            "episodes played per one in a batch, async",
            statistics.fmean(each.played for each in found["async"]),
            "ratio",
            "",
        ),
        *[Figure(f"cores in use, {arm}", share, "share", "") for arm, share in cores.items()],
        Figure("ceiling of these cores", 1 / cores["sync"], "ratio", ""),
        Figure("orchestration share, async", orchestration, "share", ""),
        *[Figure(f"clipped tokens, {arm}", share, "share", "") for arm, share in clipped.items()],
        Figure("clipped tokens, async / coupled", clipped["async"] / clipped["coupled"], "ratio", "<= 0.6"),
        *success_figures(scores["sync"], scores["async"]),
    ]


def overlap_ceiling(lines: list[IterationMetrics]) -> float:
    """Of synchronous iterations: ``(rollout + train) / max(rollout, train)``."""
    rollout = sum(line.seconds["rollout"] for line in lines)
    update = sum(sum(line.train_split.values()) for line in lines)
    return float((rollout + update) / max(rollout, update))


def success_figures(sync: dict[str, float], other: dict[str, float]) -> list[Figure]:
    """Success of both after as many groups; the difference over pairs of the same seed and held-out
    page, and its 95 % interval."""
    differences = [other[key] - sync[key] for key in sync.keys() & other.keys()]
    mean = statistics.fmean(differences)
    half = 1.96 * statistics.stdev(differences) / len(differences) ** 0.5
    return [
        Figure("held-out success, sync", statistics.fmean(sync.values()), "share", ""),
        Figure("held-out success, async", statistics.fmean(other.values()), "share", ""),
        Figure("async - sync, paired", mean, "share", ""),
        Figure("the same, lower end of 95 %", mean - half, "share", ""),
        Figure("the same, upper end of 95 %", mean + half, "share", ">= 0"),
        Figure("pairs", len(differences), "episodes", ""),
    ]


def train(name: str, settings: dict[str, object], folder: Path) -> Trained:
    """A quickstart run with these settings."""
    store = RunStore(folder / name)
    given = {**settings, "root": folder, "run_id": name}
    command = [sys.executable, "-m", "flows.train", "--preset", "quickstart"]
    command += [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    # Of each version: when it was published, seconds of the cores until then, and those in use.
    published: list[tuple[float, float, float]] = []
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
            if store.metrics_path.exists() and len(iterations(store)) > len(published):
                published.append((time.time(), *_seconds_of_cores()))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    lines = iterations(store)
    assert len(published) == len(lines), f"{name} published versions faster than they were looked at"
    (began, all_before, used_before), (ended, all_after, used_after) = published[0], published[-2]
    versions = len(published) - 2
    times = [store.trajectory_path(each).stat().st_mtime for each in store.episode_ids() if each.startswith("i")]
    batch = len(times) / len(published)
    return Trained(
        store=store,
        lines=lines,
        seconds_per_version=(ended - began) / versions,
        cores=(used_after - used_before) / (all_after - all_before),
        played=sum(began < each <= ended for each in times) / (versions * batch),
    )


def _seconds_of_cores() -> tuple[float, float]:
    """Of all cores of this machine since it was started, and those of them in use."""
    times = psutil.cpu_times()
    whole = sum(times) - times.guest - times.guest_nice  # these are in user and nice
    return whole, whole - times.idle - times.iowait


def last_scores(store: RunStore) -> dict[str, float]:
    """1 or 0 for each held-out episode of the last version that was graded."""
    episodes = [episode for each in store.group_ids(f"e{VERSIONS:06d}") for episode in read_group(store, each).episodes]
    return {each.episode_id: float(each.passed) for each in episodes if each.score is not None}
