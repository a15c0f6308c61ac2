"""Evaluation as a unit: greedy success of one policy version on held-out seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks import TaskIndex
from envs.types import Memory, Split, WebTask
from tasks_lib.metrics import causes, known, success, success_by_kind
from tasks_lib.planning import evaluation_groups
from tasks_lib.rewards import judge_account
from tasks_lib.rollouts import Rollouts
from tasks_lib.sampling import with_memories
from training.store import read_json, write_json


def evaluate_version(
    rollouts: Rollouts,
    version: int,
    tasks: TaskIndex | Sequence[WebTask],
    *,
    episodes: int,
    workers: int,
    split: Split = Split.HELD_OUT,
    greedy: bool = True,
    memories: Mapping[str, Memory] | None = None,
) -> dict[str, Any]:
    """Success of a published version, from ``evaluations/`` when it is there already.

    Its episodes begin with the ``memories`` of their task families, and add nothing to them.

    Raises:
        StorageError: it cannot be counted what the judge spends; before anything is played.

    Returns ``{version, mean, low, high, n, by_kind, episodes, abstained, causes, seconds}``; the interval is Wilson's at 95 %. Mean and interval
    are ``None`` where no episode has a reward, by kind too.
    """
    path = rollouts.store.evaluation_path(version)
    if path.exists():
        return known(read_json(path))
    judge_account(rollouts.rollout.judge, rollouts.store.spent_path())
    groups = evaluation_groups(
        tasks,
        phase=f"e{version:06d}",
        episodes=episodes,
        split=split,
        greedy=greedy,
        horizon=rollouts.rollout.horizon,
    )
    rollout = rollouts.run(with_memories(groups, memories or {}), version=version, workers=workers)
    summaries = [episode for record in rollout.records for episode in record.episodes]
    result = {
        "version": version,
        **success(summaries),
        "by_kind": success_by_kind(rollout.records),
        "episodes": [episode.episode_id for episode in summaries],
        "abstained": sum(episode.score is None for episode in summaries),
        "causes": causes(summaries),
        "split": str(split),
        "greedy": greedy,
        "seconds": rollout.seconds["wall"],
        "activity": rollout.seconds,
        "waves": rollout.waves,
        **judge_account(rollouts.rollout.judge, rollouts.store.spent_path()),
    }
    write_json(path, result)
    return result
