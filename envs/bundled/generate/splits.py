"""Counts generated tasks by split, and explains empty splits.

A world belongs to one split as a whole, and gives at least one task for each of its templates. So a
small set may have worlds of one split only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from envs.bundled.generate.generate import generate
from envs.bundled.generate.spec import GeneratorSpec
from envs.types import Split, TaskError, WebTask

MAX_LOOKED_AT = 3_000
"""Tasks that are drawn to find out how many are needed: some three seconds."""


def split_counts(tasks: Iterable[WebTask], spec: GeneratorSpec) -> dict[Split, int]:
    """Return the number of tasks of each split, including splits without a share.

    A task with several splits counts in each.
    """
    counts = dict.fromkeys(wanted_splits(spec), 0)
    for task in tasks:
        for split in task.seeds:
            counts[split] = counts.get(split, 0) + 1
    return counts


def wanted_splits(spec: GeneratorSpec) -> list[Split]:
    """Return the splits that the spec has a share for."""
    return [split for split, share in spec.splits.items() if share > 0]


def empty_splits(spec: GeneratorSpec, counts: Mapping[Split, int] | Mapping[str, int]) -> str:
    """Return a warning about splits without tasks; empty if there are none.

    It names the splits, the cause and the remedy.
    """
    had = {str(split) for split, count in counts.items() if count}
    missing = [str(split) for split in wanted_splits(spec) if str(split) not in had]
    if not missing:
        return ""
    why = (
        f"no task of split {', '.join(missing)}: a world belongs to one split as a whole, and {spec.count:,} tasks with per_world "
        f"{spec.per_world} come of few worlds"
    )
    fewer = spec.model_copy(update={"per_world": 1})
    takes = tasks_for_all(fewer)
    if takes is None:
        return f"{why}; set per_world to 1 and give the splits more even shares (splits), or ask for many more tasks (count)"
    if spec.per_world > 1 and takes <= spec.count:
        return f"{why}; with per_world 1 each split gets some"
    return (
        f"{why}; with per_world 1 each split gets some from a count of {takes:,} on: ask for as many, give the splits more even shares "
        f"(splits), or choose fewer kinds"
    )


def tasks_for_all(spec: GeneratorSpec) -> int | None:
    """Return the smallest count with which each split has a task.

    The spec's own count is ignored. ``None`` if it is above `MAX_LOOKED_AT`, or there are never so
    many tasks.
    """
    missing = set(wanted_splits(spec))
    drawn = generate(spec.model_copy(update={"count": MAX_LOOKED_AT}))
    try:
        for number, task in enumerate(drawn, start=1):
            missing -= task.seeds.keys()
            if not missing:
                return number
    except TaskError:  # these templates have no more different tasks
        return None
    return None
