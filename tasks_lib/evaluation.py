"""Evaluation as a unit: greedy success of one policy version on held-out seeds."""

from __future__ import annotations

from typing import Any

from envs.types import Split, WebTask
from tasks_lib.config import RolloutConfig
from tasks_lib.metrics import success, success_by_kind
from tasks_lib.planning import evaluation_groups
from tasks_lib.rollouts import roll_out
from training.config import PolicyConfig
from training.store import RunStore, read_json, write_json


def evaluate_version(
    *,
    store: RunStore,
    version: int,
    tasks: list[WebTask],
    episodes: int,
    policy: PolicyConfig,
    rollout: RolloutConfig,
    seed: int,
    workers: int,
    split: Split = Split.HELD_OUT,
    greedy: bool = True,
) -> dict[str, Any]:
    """Success of a published version, from ``evaluations/`` when it is there already.

    Returns ``{version, mean, low, high, n, by_kind, episodes, seconds}``; the interval is Wilson's at 95 %.
    """
    path = store.evaluation_path(version)
    if path.exists():
        known: dict[str, Any] = read_json(path)
        return known
    groups = evaluation_groups(tasks, phase=f"e{version:06d}", episodes=episodes, split=split, greedy=greedy)
    rollout_ = roll_out(
        groups, store=store, version=version, policy=policy, rollout=rollout, seed=seed, workers=workers
    )
    summaries = [episode for record in rollout_.records for episode in record.episodes]
    result = {
        "version": version,
        **success(summaries),
        "by_kind": success_by_kind(rollout_.records),
        "episodes": [episode.episode_id for episode in summaries],
        "abstained": sum(episode.score is None for episode in summaries),
        "split": str(split),
        "greedy": greedy,
        "seconds": rollout_.seconds["wall"],
        "activity": rollout_.seconds,
    }
    write_json(path, result)
    return result
