"""Writes the folder of a small training run as its parts do, without a browser or a model: to be
damaged, opened and looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from envs.rewards import score
from envs.types import RewardPart, StopReason, Trajectory
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.loops.run import open_run
from tests.envs.rewards.played import trajectory
from training.ledger.checkpoint_files import file_hashes
from training.ledger.journal import Journal, published_batch, read_batch
from training.ledger.seal import sha256_of
from training.ledger.store import RunStore, write_json
from training.records.batches import build_batch
from training.records.groups import EpisodeSummary, GroupRecord

TOKEN = "0a1b2c3d4e5f"
GROUPS = [[1.0, 0.0], [1.0, 1.0], [None, 0.0]]
"""Rewards of the groups of each iteration; ``None``: its browser failed twice, then it failed for
good."""


def config_of(folder: Path) -> TrainConfig:
    """Of a run of two published versions whose third is under way."""
    config: TrainConfig = resolve(
        TrainConfig,
        {
            "root": str(folder),
            "preset": "quickstart",
            "run_id": "r",
            "iterations": 4,
            "algorithm": {"group_size": 2},
            "rollout": {"groups_per_iteration": 3, "over_sampling": 0, "attempts": 2},
        },
    )
    return config


def write_run(folder: Path) -> tuple[TrainConfig, RunStore]:
    """Versions 0 to 2 are published; the groups of iteration 2 and its batch are there."""
    config = config_of(folder)
    with open_run(config) as run:
        store = run.store
    for version in range(3):
        weights = store.policy_path(version) / "model.safetensors"
        weights.parent.mkdir(parents=True)
        weights.write_bytes(b"weights %d" % version)
        if version:
            write_iteration(store, config, version - 1)
        manifest = {"version": version, "files": file_hashes(weights.parent)}
        if version:
            manifest["batch"] = sha256_of(store.batch_path(version))
            manifest["group_ids"] = read_batch(store, version).group_ids
        write_json(weights.parent / "manifest.json", manifest, sealed=True)
    write_iteration(store, config, 2)
    journal = Journal(store.journal_path)
    journal.refresh(store)
    with open(store.metrics_path, "wb") as file:
        for version in (1, 2):
            batch = published_batch(store, version)
            counted = journal.episodes(f"i{version - 1:06d}")
            line = {
                "kind": "iteration",
                "iteration": version - 1,
                "wall": 1.0,
                "rows": len(batch.rows),
                "episodes": counted,
            }
            file.write(orjson.dumps(line) + b"\n")
    journal.close()
    return config, store


def write_iteration(store: RunStore, config: TrainConfig, iteration: int) -> None:
    """Groups of an iteration, and the batch that they give."""
    groups = []
    for number, rewards in enumerate(GROUPS):
        group_id = f"i{iteration:06d}-g{number:04d}"
        summaries = []
        for sample, reward in enumerate(rewards):
            for attempt in (0, 1) if reward is None else (0,):
                episode = played(store, group_id, sample, attempt, reward)
                summaries.append(EpisodeSummary.of(episode, store.put_trajectory(episode, TOKEN)))
        record = GroupRecord(
            group_id=group_id,
            token=TOKEN,
            task_id=episode.task_id,
            kind=episode.kind,
            policy_version=iteration,
            episodes=tuple(summaries),
        )
        groups.append(record.episodes)
        write_json(store.group_path(group_id), record, sealed=True)
    write_json(store.batch_path(iteration + 1), build_batch(iteration + 1, groups, config.algorithm, seed=config.seed))


def played(store: RunStore, group_id: str, sample: int, attempt: int, reward: float | None, **task: Any) -> Trajectory:
    """An episode of three steps with a picture each; ``None``: the browser failed."""
    steps = tuple(
        step.model_copy(
            update={
                "screenshot": store.put_blob(f"{group_id} {sample} {step.index}".encode()),
                "response_ids": (1, 2),
                "logprobs": (-0.5, -0.5),
                "policy_version": int(group_id[1:7]),
            }
        )
        for step in trajectory().steps
    )
    parts = [RewardPart(name="page", value=reward or 0.0, weight=1.0, evidence="")]
    failed = {"stop_reason": StopReason.BROWSER_ERROR, "error": "it closed"} if reward is None else {}
    return trajectory(
        episode_id=f"{group_id}-s{sample:02d}-a{attempt}",
        group_id=group_id,
        sample=sample,
        attempt=attempt,
        **({"task_id": "miniwob/click-link", "kind": "click-link"} | task),
        policy_version=int(group_id[1:7]),
        steps=steps,
        reward=score(parts, abstained="it closed" if reward is None else None),
        **failed,
    )
