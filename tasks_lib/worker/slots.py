"""Assigns episodes to a worker's slots. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from training.groups import GroupSpec

CHUNK = 4
"""Episodes of one group that a slot runs in a row: long enough that a page is seldom navigated, short enough to balance slots."""


def plan_slots(groups: Sequence[GroupSpec], slots: int) -> list[list[tuple[int, int]]]:
    """Which (group index, sample) each slot runs, in order: longest chunks first onto the least loaded slot, kinds kept together.

    Fixed beforehand, so that which episodes share a generation batch does not depend on timing (but where over-sampled ones are given up).
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
    """All (group index, sample), for slots that take the next one when they are free: longest first, so that none is left to the end."""
    order = sorted(range(len(groups)), key=lambda index: (-groups[index].task.horizon, groups[index].task.kind, index))
    return [(index, sample) for index in order for sample in range(len(groups[index].seeds))]


def _chunks(samples: range) -> list[range]:
    return [samples[start : start + CHUNK] for start in range(0, len(samples), CHUNK)]
