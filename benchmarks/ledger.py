"""Costs of a version, of its learning curve and of a start, which must not grow with the run: 1,000
versions of 400 episodes (groups of 8), written without browsers or models."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks import Figure
from envs.types import StopReason
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.folder.metrics_lines import EvaluationMetrics, IterationMetrics
from tasks_lib.loops.run import open_run
from tasks_lib.loops.synchronous import SynchronousLoop
from tasks_lib.report import learning_curve_png
from training.ledger.checkpoint_files import MANIFEST, file_hashes
from training.ledger.paths import shard_of
from training.ledger.seal import sha256_of
from training.ledger.store import RunStore, write_json
from training.records.batches import build_batch
from training.records.groups import EpisodeSummary, GroupRecord, StepShape

VERSIONS = {"short": 100, "whole": 1000}
PARTS = tuple(VERSIONS)
GROUPS, SIZE = 50, 8
TOKEN = "0123456789ab"
CURVES = 5
"""Every so many versions the learning curve is drawn; each version is evaluated."""
PHASES = {"rollout": 1.0, "train": 1.0, "orchestrate": 0.0}


def run(parts: tuple[str, ...] = ("whole",)) -> list[Figure]:
    """The whole by default: 400,000 episodes."""
    figures = []
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="rollwright-ledger-") as folder:
            figures += _figures(Path(folder), VERSIONS[part])
    return figures


def _figures(folder: Path, versions: int) -> list[Figure]:
    config: TrainConfig = resolve(
        TrainConfig,
        {
            "root": str(folder),
            "preset": "quickstart",
            "run_id": "r",
            "iterations": 2 * versions,
            "algorithm": {"group_size": SIZE},
            "rollout": {"groups_per_iteration": GROUPS},
            "trainer": {"keep_policies": 3},
        },
    )
    seconds, drawn = _publish_versions(config, versions)
    tenth = versions // 10
    second, last = (_mean(seconds[part], drawn[part]) for part in (slice(tenth, 2 * tenth), slice(-tenth, None)))
    starts, used = [], []
    for _ in range(2):
        begun, cpu = time.perf_counter(), time.process_time()
        with open_run(config) as run:
            _loop(run)
        starts.append(time.perf_counter() - begun)
        used.append(time.process_time() - cpu)
    said = f"of {versions:,} versions, {versions * GROUPS * SIZE:,} episodes"
    return [
        Figure(f"flow's CPU a version, last tenth / second tenth {said}", last / second, "ratio", "<= 1.1"),
        Figure(f"flow's CPU a version, last tenth {said}", last, "s", ""),
        Figure(f"of it the learning curve, last tenth {said}", _mean(drawn[-tenth:]), "s", ""),
        Figure(f"start of a resumed run {said}", min(starts), "s", "<= 10"),
        Figure(f"CPU of a start {said}", min(used), "s", ""),
    ]


def _loop(run: Any) -> Any:
    progress = SimpleNamespace(log=lambda _: None, iteration=lambda *_: None)
    return SynchronousLoop(run, cast(Any, None), 1, cast(Any, progress))


def _mean(*lists: list[float | None]) -> float:
    """The sum of the means of these lists; a version without a curve has none."""
    known = [[value for value in values if value is not None] for values in lists]
    return sum(sum(values) / len(values) for values in known)


def _publish_versions(config: TrainConfig, versions: int) -> tuple[list[float | None], list[float | None]]:
    """Write and publish versions as a loop does. Return the seconds of CPU of each publication, and
    of each `CURVES`th version's learning curve."""
    seconds, drawn = list[float | None](), list[float | None]()
    store = RunStore(config.run_dir)
    with open_run(config) as run:
        _write_policy(store, 0, {})
        loop = _loop(run)
        for version in range(1, versions + 1):
            records = [_write_group(store, version - 1, number) for number in range(GROUPS)]
            made = build_batch(
                version, [record.episodes for record in records], config.batch_settings, seed=config.seed
            )
            write_json(store.batch_path(version), made)
            trained = {"batch": sha256_of(store.batch_path(version)), "group_ids": made.group_ids}
            _write_policy(store, version, {**trained, "metrics": {}, "seconds": {}})
            begun = time.process_time()
            run.journal.accept(records)
            batch = loop._record(version)
            loop._append(loop._line(records, batch, store.manifest(version), wall=1.0, seconds=PHASES))
            seconds.append(time.process_time() - begun)
            run.metrics.append(EvaluationMetrics(version=version, mean=0.5, low=0.4, high=0.6, n=96), version)
            begun = time.process_time()
            if version % CURVES == 0:
                lines: list[IterationMetrics | EvaluationMetrics] = [
                    *run.metrics.lines(IterationMetrics),
                    *run.metrics.lines(EvaluationMetrics),
                ]
                learning_curve_png(store.root, lines)
            drawn.append(time.process_time() - begun if version % CURVES == 0 else None)
    return seconds, drawn


def _write_policy(store: RunStore, version: int, details: dict[str, Any]) -> None:
    folder = store.policy_path(version)
    write_json(folder / "config.json", {"version": version})
    manifest = {"version": version, "files": file_hashes(folder), **details}
    write_json(folder / MANIFEST, manifest, sealed=True)


def _write_group(store: RunStore, iteration: int, number: int) -> GroupRecord:
    """A group's record, and an empty file for each of its trajectories."""
    group_id = f"i{iteration:06d}-g{number:04d}"
    episodes = tuple(
        EpisodeSummary(
            episode_id=f"{group_id}-s{sample:02d}-a0",
            seed=number,
            sample=sample,
            score=float(sample % 2),
            passed=bool(sample % 2),
            steps=8,
            response_tokens=800,
            stop_reason=StopReason.DONE,
            abstained=None,
            shapes=(StepShape(100, 100, 0),) * 8,
            sha256="",
        )
        for sample in range(SIZE)
    )
    record = GroupRecord(
        group_id=group_id, token=TOKEN, task_id="t", kind="k", policy_version=iteration, episodes=episodes
    )
    write_json(store.group_path(group_id), record, sealed=True)
    for episode in episodes:
        path = store.root / "trajectories" / shard_of(episode.episode_id) / f"{episode.episode_id}.{TOKEN}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT))
    return record
