"""Checks the ``after`` of a rubric: known names, and no circle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter


def check_after(what: str, after: Mapping[str, Sequence[str]], known: Set[str]) -> None:
    """Check the ``after`` of groups or facts.

    Args:
        what: ``group`` or ``fact``, for the message.
        after: The names that come before each name.
        known: Names that may be used.

    Raises:
        ValueError: A name is unknown, or the names form a circle.
    """
    if not any(after.values()):
        return
    for name, before in after.items():
        if missing := [name for name in before if name not in known]:
            raise ValueError(f"fact_groups: {what} {name!r} is after {missing[0]!r}, which is no {what} of fact_groups")
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        circle = " after ".join(map(repr, reversed(error.args[1])))
        raise ValueError(f"fact_groups: a {what} comes after itself: {circle}") from error
