"""What comes after what in a rubric: names that are known, and no circle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter


def check_after(what: str, after: Mapping[str, Sequence[str]], known: Set[str]) -> None:
    """Check the ``after`` of groups or facts.

    Args:
        what: ``group`` or ``fact``, for the message.
        after: By name, the names that come before it.
        known: Names that may be named.

    Raises:
        ValueError: a name is not known, or the names go in a circle.
    """
    if not any(after.values()):
        return
    for name, before in after.items():
        if missing := [each for each in before if each not in known]:
            raise ValueError(f"fact_groups: {what} {name!r} is after {missing[0]!r}, which is no {what} of fact_groups")
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        circle = " after ".join(map(repr, reversed(error.args[1])))
        raise ValueError(f"fact_groups: a {what} comes after itself: {circle}") from error
