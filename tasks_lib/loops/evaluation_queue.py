"""Evaluations of an asynchronous run that are played beside its training groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from tasks_lib.loops.side_threads import SideWork
from training.ledger.checkpoint_files import REMOVED
from training.ledger.store import RunStore


class EvaluationQueue:
    """Measures versions one after the other.

    Args:
        versions: Versions whose evaluation is due, the first one first.
        start: Starts the evaluation of a version.
        take_in: Takes in a version and its evaluation, which has ended.
    """

    def __init__(
        self,
        versions: Iterable[int],
        start: Callable[[int], SideWork],
        take_in: Callable[[int, SideWork], None],
    ) -> None:
        self._versions = deque(versions)
        self._start, self._take_in = start, take_in
        self._under_way: SideWork | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that are not measured yet, the one under way first."""
        return tuple(self._versions)

    def add(self, version: int) -> None:
        """Have a version measured after the others, unless it is waiting already."""
        if version not in self._versions:
            self._versions.append(version)

    def advance(self) -> None:
        """Take in an evaluation that has ended, and start the next due one."""
        if self._under_way is not None and self._under_way.done:
            measured, self._under_way = self._under_way, None
            self._take_in(self._versions.popleft(), measured)
        if self._under_way is None and self._versions:
            self._under_way = self._start(self._versions[0])


def missing_evaluations(store: RunStore, every: int, first: int, end: int) -> list[int]:
    """Return versions from ``first`` to before ``end`` whose due evaluation is missing.

    The run was killed before these ended. Versions without weights are left out.
    """
    due = [version for version in range(max(first, 0), end) if version % every == 0]
    missing = [version for version in due if not store.evaluation_path(version).exists()]
    return [version for version in missing if not (store.policy_path(version) / REMOVED).exists()]
