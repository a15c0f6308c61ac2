"""Decides which published policies lose their weights. Pure.

`tasks_lib.folder.weight_removal` removes the weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def removable_versions(published: Iterable[int], keep: int, needed: Collection[int] = ()) -> list[int]:
    """Return the versions whose weights may be removed, ascending.

    Version 0 stays: it is the base of adapters, the reference of a KL term, and the start of a run
    that has no whole state. So do the two newest, of which one is served while the other is new.

    Args:
        published: All versions of the run.
        keep: Number of newest versions that stay, besides the others that do; 0: all.
        needed: Versions that stay whatever their age: those with a trainer state, and the best one.
    """
    versions = sorted(published)
    if not keep:
        return []
    kept = {0, *needed, *versions[-max(keep, 2) :]}
    return [version for version in versions if version not in kept]


def best_version(means: Mapping[int, float | None]) -> int | None:
    """Return the version with the highest mean success, or ``None`` if none is known.

    Of equal ones it is the newest.

    Args:
        means: Mean success by evaluated version; ``None`` where no episode had a reward.
    """
    known = [(mean, version) for version, mean in means.items() if mean is not None]
    return max(known)[1] if known else None
