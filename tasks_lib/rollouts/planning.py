"""Plans rollouts: which groups to run, and how to divide them into shards.

Pure functions.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from envs.ends import HorizonPolicy
from envs.tasks import TaskIndex
from envs.types import ConfigError, Split, WebTask
from tasks_lib.config import EvaluateConfig
from tasks_lib.folder.task_sets import with_hashes
from training.records.groups import GroupSpec

FEW_SEEDS = 1000
"""Page seeds of a task up to which a draw repeats no seed. With more a repeat hardly happens."""

EVALUATION_SEED = 0
"""Seed of the choice of tasks where there are more than episodes.

It is the same in all runs, so that they can be compared.
"""


def with_horizon(task: WebTask, policy: HorizonPolicy | None, split: Split, iteration: int = 0) -> WebTask:
    """Return the task with the policy's horizon, or as it is without a policy."""
    if policy is None:
        return task
    return task.model_copy(update={"horizon": policy.steps(task.difficulty, split, iteration)})


def training_groups(
    tasks: Sequence[WebTask], chances: random.Random, *, phase: str, group_size: int, extra_episodes: int = 0
) -> list[GroupSpec]:
    """Return a group for each task, with page seeds drawn uniformly.

    A task of few seeds that comes again gets another seed while one is left.

    Args:
        extra_episodes: Episodes that a group starts beyond its size, in case some are slow.
    """
    groups = []
    used: defaultdict[str, set[int]] = defaultdict(set)
    for index, task in enumerate(tasks):
        seeds = task.seeds[Split.TRAIN]
        page_seed = chances.randrange(seeds.start, seeds.stop)
        if len(seeds) <= FEW_SEEDS:
            taken = used[task.task_id]
            if len(taken) == len(seeds):
                taken.clear()
            while page_seed in taken:
                page_seed = chances.randrange(seeds.start, seeds.stop)
            taken.add(page_seed)
        seeds_of_all, enough = (page_seed,) * (group_size + extra_episodes), group_size if extra_episodes else 0
        groups.append(
            GroupSpec(group_id=f"{phase}-g{index:04d}", task=with_hashes(task), seeds=seeds_of_all, enough=enough)
        )
    return groups


def evaluation_groups(
    tasks: TaskIndex | Sequence[WebTask],
    *,
    phase: str,
    episodes: int,
    split: Split = Split.HELD_OUT,
    greedy: bool = True,
    horizon: HorizonPolicy | None = None,
) -> list[GroupSpec]:
    """Return groups on the first page seeds of ``split``, ``episodes`` in all, the same each time.

    Every task gets an equal share, or all of its seeds where those are fewer. Where there are more
    tasks than episodes, one task per episode is drawn with a fixed seed, and each difficulty bucket
    of each site gets its share.

    Raises:
        ConfigError: there are fewer seeds than ``episodes``.
        TaskError: a task's rubric is not the one that was frozen.
    """
    index = tasks if isinstance(tasks, TaskIndex) else TaskIndex.build(tasks)
    rows = np.flatnonzero(index.seeds_of(split) > 0)
    if len(rows) > episodes:
        rows = np.sort(rows[index.only(rows).stratified(episodes, EVALUATION_SEED)])
    sizes = index.seeds_of(split)[rows].astype(np.int64)
    if not len(rows):
        others = [name for name in Split if index.seeds_of(name).any()]
        raise ConfigError(
            f"{len(index)} tasks, none with {split} seeds; they have {', '.join(others)}: "
            f"evaluate those by flows.evaluate --set split={others[0]}, or give tasks {split} seeds"
        )
    if sizes.sum() < episodes:
        raise ConfigError(
            f"{episodes} {split} episodes are wanted, and of {len(rows)} task{'s' * (len(rows) != 1)} there are {sizes.sum()} {split} seeds in all; "
            f"lower the number of episodes to {sizes.sum()}, or take a set with more (a generated one has a share of {split} in its spec.splits)"
        )
    groups = []
    for number, (row, share) in enumerate(zip(index.take(rows), equal_shares(episodes, sizes.tolist()), strict=True)):
        task = with_horizon(with_hashes(row), horizon, split)
        first = task.seeds[split].start
        page_seeds = tuple(range(first, first + share))
        groups.append(GroupSpec(group_id=f"{phase}-g{number:04d}", task=task, seeds=page_seeds, greedy=greedy))
    return groups


def fit_default(episodes: int, tasks: TaskIndex, split: Split) -> int:
    """Return the default number of episodes of `flows.evaluate`, cut to the seeds of a smaller set.

    Any other number is returned as it is.
    """
    if episodes != EvaluateConfig.model_fields["episodes"].default:
        return episodes
    return min(episodes, int(tasks.seeds_of(split).astype(np.int64).sum()) or episodes)


def equal_shares(total: int, limits: Sequence[int]) -> list[int]:
    """Divide ``total`` as equally as the ``limits`` allow. The rest goes to the first ones.

    ``total`` is at most the sum of ``limits``.
    """
    level, top = 0, max(limits, default=0)
    while level < top:  # search the highest level to which all can be filled
        middle = (level + top + 1) // 2
        if sum(min(limit, middle) for limit in limits) <= total:
            level = middle
        else:
            top = middle - 1
    shares = [min(limit, level) for limit in limits]
    deeper = [place for place, limit in enumerate(limits) if limit > level]
    for place in deeper[: total - sum(shares)]:
        shares[place] += 1
    return shares


def share_groups(groups: Sequence[GroupSpec], *, workers: int, groups_per_task: int) -> list[list[GroupSpec]]:
    """Cut groups into the shards of the Prefect tasks.

    Each has ``groups_per_task`` groups; where that is 0, each worker gets an equal shard.
    """
    size = groups_per_task or -(-len(groups) // max(workers, 1))
    return [list(groups[start : start + size]) for start in range(0, len(groups), size)]
