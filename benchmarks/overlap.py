"""Asynchronous training without added delay: its rate against what overlap could give, its success against the synchronous mode's."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import Figure
from benchmarks.asynchronous import consumed_per_second, iterations, orchestration_share
from tasks_lib.config import PROJECT
from training.ledger.journal import read_group
from training.ledger.store import RunStore

VERSIONS = 8
SEEDS = (0, 1, 2)
SETTINGS = {"iterations": VERSIONS, "evaluation.every": VERSIONS}
ASYNC = {"mode": "async", "pacing.staleness": 2, "pacing.replace": False}
"""Groups that leave nothing to learn from count, as in the synchronous mode: both play as many episodes for a version."""
ARMS: dict[str, dict[str, object]] = {
    "sync": {"rollout.deterministic": False},
    "async": ASYNC,
    "coupled": {**ASYNC, "algorithm.proximal": "behaviour"},
}
"""Of the quickstart. ``coupled``: the clip is around the policy that sampled; one seed of it is enough for its clipped tokens."""


def run() -> list[Figure]:
    """Runs of the arms in turn; rates without the first version, which starts everything, and the last, which ends it."""
    lines: dict[str, list[list[dict[str, Any]]]] = {arm: [] for arm in ARMS}
    scores: dict[str, dict[str, float]] = {"sync": {}, "async": {}}
    with tempfile.TemporaryDirectory(prefix="rollwright-overlap-") as folder:
        for seed in SEEDS:
            for arm in ARMS if seed == SEEDS[0] else ("sync", "async"):
                store = train(f"{arm}-{seed}", {**SETTINGS, **ARMS[arm], "seed": seed}, Path(folder))
                lines[arm].append(iterations(store))
                if arm in scores:
                    scores[arm] |= {f"{seed}/{key}": score for key, score in last_scores(store).items()}
    rates = {arm: statistics.fmean(consumed_per_second(each[:-1]) for each in runs) for arm, runs in lines.items()}
    ceiling = overlap_ceiling([line for each in lines["sync"] for line in each[1:]])
    clipped = {
        arm: statistics.fmean(line["train"]["clip_fraction"] for line in runs[0][1:])  # of the seed that all arms have
        for arm, runs in lines.items()
    }
    orchestration = statistics.fmean(orchestration_share(each[1:]) for each in lines["async"])
    return [
        *[Figure(f"consumed episodes per second, {arm}", rate, "1/s", "") for arm, rate in rates.items()],
        Figure("ceiling of overlap", ceiling, "ratio", ""),
        Figure("async / sync", rates["async"] / rates["sync"], "ratio", ""),
        Figure("async / sync, of the ceiling", rates["async"] / rates["sync"] / ceiling, "share", ">= 0.85"),
        Figure("orchestration share, async", orchestration, "share", ""),
        *[Figure(f"clipped tokens, {arm}", share, "share", "") for arm, share in clipped.items()],
        Figure("clipped tokens, async / coupled", clipped["async"] / clipped["coupled"], "ratio", "<= 0.6"),
        *success_figures(scores["sync"], scores["async"]),
    ]


def overlap_ceiling(lines: list[dict[str, Any]]) -> float:
    """Of synchronous iterations: ``(rollout + train) / max(rollout, train)``."""
    rollout = sum(line["seconds"]["rollout"] for line in lines)
    update = sum(sum(line["train_split"].values()) for line in lines)
    return float((rollout + update) / max(rollout, update))


def success_figures(sync: dict[str, float], other: dict[str, float]) -> list[Figure]:
    """Success of both after as many groups; the difference over pairs of the same seed and held-out page, and its 95 % interval."""
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


def train(name: str, settings: dict[str, object], folder: Path) -> RunStore:
    """A quickstart run with these settings."""
    given = {**settings, "root": folder, "run_id": name}
    command = [sys.executable, "-m", "flows.train", "--preset", "quickstart"]
    command += [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    return RunStore(folder / name)


def last_scores(store: RunStore) -> dict[str, float]:
    """1 or 0 for each held-out episode of the last version that was graded."""
    episodes = [episode for each in store.group_ids(f"e{VERSIONS:06d}") for episode in read_group(store, each).episodes]
    return {each.episode_id: float(each.passed) for each in episodes if each.score is not None}
