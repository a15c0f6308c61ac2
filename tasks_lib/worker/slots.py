"""Assigns episodes to a worker's slots. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from training.records.groups import GroupSpec

CHUNK = 4
"""Episodes of one group that a slot runs in a row.

Enough that a page is seldom navigated, and few enough to balance the slots.
"""


def plan_slots(groups: Sequence[GroupSpec], slots: int) -> list[list[tuple[int, int]]]:
    """Return the (group index, sample) pairs that each slot runs, in order.

    The longest chunks go first, each onto the least loaded slot. A slot runs tasks of one kind
    together. The plan is made beforehand, so that which episodes share a generation batch does not
    depend on timing (except where over-sampled episodes are given up).
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


def order_episodes(groups: Sequence[GroupSpec]) -> list[tuple[int, int]]:
    """Return all (group index, sample) pairs, for slots that take the next one when they are free.

    The longest come first, so that no long episode starts last.
    """
    longest_first = sorted(
        range(len(groups)), key=lambda index: (-groups[index].task.horizon, groups[index].task.kind, index)
    )
    return [(index, sample) for index in longest_first for sample in range(len(groups[index].seeds))]


def _chunks(samples: range) -> list[range]:
    return [samples[start : start + CHUNK] for start in range(0, len(samples), CHUNK)]
