"""Pure decisions of the loop: which groups to roll out, and which slot of a worker runs which episode."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from envs.ends import HorizonPolicy
from envs.types import ConfigError, Split, WebTask
from training.groups import GroupRecord, GroupSpec

CHUNK = 4
"""Episodes of one group that a slot runs in a row: long enough that a page is seldom navigated, short enough to balance slots."""


def running_success(records: Iterable[GroupRecord], memory: float) -> dict[str, float]:
    """Success so far of each kind: an exponential mean over its groups, in the order given (oldest first)."""
    success: dict[str, float] = {}
    for record in records:
        if record.mean is not None:
            old = success.get(record.kind)
            success[record.kind] = record.mean if old is None else memory * old + (1 - memory) * record.mean
    return success


def with_horizons(
    tasks: Sequence[WebTask], policy: HorizonPolicy | None, split: Split, iteration: int = 0
) -> list[WebTask]:
    """The tasks with the horizons that a policy gives them; their own without one."""
    if policy is None:
        return list(tasks)
    return [task.model_copy(update={"horizon": policy.steps(task.difficulty, split, iteration)}) for task in tasks]


def sample_groups(
    tasks: Sequence[WebTask],
    success: Mapping[str, float],
    *,
    phase: str,
    count: int,
    group_size: int,
    exploration: float,
    seed: int,
) -> list[GroupSpec]:
    """Draw ``count`` groups: tasks by weight p(1-p) + exploration (a kind not seen yet counts as p = 1/2), page seeds uniformly.

    The draw depends on the arguments alone, so an interrupted iteration draws the same groups again.
    """
    random_ = random.Random(f"groups/{seed}/{phase}")
    weights = [(p := success.get(task.kind, 0.5)) * (1 - p) + exploration for task in tasks]
    groups = []
    for index, task in enumerate(random_.choices(tasks, weights, k=count)):
        seeds = task.seeds[Split.TRAIN]
        page_seed = random_.randrange(seeds.start, seeds.stop)
        groups.append(GroupSpec(group_id=f"{phase}-g{index:04d}", task=task, seeds=(page_seed,) * group_size))
    return groups


def evaluation_groups(
    tasks: Sequence[WebTask], *, phase: str, episodes: int, split: Split = Split.HELD_OUT, greedy: bool = True
) -> list[GroupSpec]:
    """The first page seeds of ``split`` for every task, ``episodes`` in all and the same each time."""
    shares = [episodes // len(tasks) + (index < episodes % len(tasks)) for index in range(len(tasks))]
    groups = []
    for index, (task, share) in enumerate(zip(tasks, shares, strict=True)):
        seeds = task.seeds[split]
        if share > len(seeds):
            raise ConfigError(
                f"{share} {split} seeds are wanted for {task.task_id}, which has {len(seeds)}; lower the number of episodes"
            )
        if share:
            page_seeds = tuple(range(seeds.start, seeds.start + share))
            groups.append(GroupSpec(group_id=f"{phase}-g{index:04d}", task=task, seeds=page_seeds, greedy=greedy))
    return groups


def share_groups(groups: Sequence[GroupSpec], *, workers: int, groups_per_task: int) -> list[list[GroupSpec]]:
    """Cut groups into the lots of the Prefect tasks: ``groups_per_task`` each, or an equal lot for each worker when it is 0."""
    size = groups_per_task or -(-len(groups) // max(workers, 1))
    return [list(groups[start : start + size]) for start in range(0, len(groups), size)]


def plan_slots(groups: Sequence[GroupSpec], slots: int) -> list[list[tuple[int, int]]]:
    """Which (group index, sample) each slot runs, in order: longest chunks first onto the least loaded slot, kinds kept together.

    Fixed beforehand, so that which episodes share a generation batch does not depend on timing.
    """
    chunks = [
        (groups[index].task.horizon * len(samples), index, samples)
        for index in range(len(groups))
        for samples in _chunks(range(len(groups[index].seeds)))
    ]
    chunks.sort(key=lambda chunk: (-chunk[0], groups[chunk[1]].task.kind, chunk[1], chunk[2][0]))
    load = [0] * slots
    plans: list[list[tuple[int, int]]] = [[] for _ in range(slots)]
    for cost, index, samples in chunks:
        slot = min(range(slots), key=lambda candidate: (load[candidate], candidate))
        load[slot] += cost
        plans[slot] += [(index, sample) for sample in samples]
    return [sorted(plan, key=lambda item: (groups[item[0]].task.kind, item)) for plan in plans if plan]


def _chunks(samples: range) -> list[range]:
    return [samples[start : start + CHUNK] for start in range(0, len(samples), CHUNK)]
