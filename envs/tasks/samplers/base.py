"""Shared parts of samplers: draws, states, shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.tasks.index import Rows, TaskIndex
from envs.types import TaskError


class Sampler(ABC):
    """Draws rows of an index."""

    name: str

    def __init__(self, index: TaskIndex, seed: int = 0) -> None:
        if not len(index):
            raise TaskError("there are no tasks to draw from")
        if seed < 0:
            raise TaskError(f"sampler: seed {seed} must be from 0")
        self.index = index
        self.seed = seed
        self.drawn = 0
        """Number of rows drawn so far."""
        self.draws = 0
        """Number of draws so far."""

    def draw(self, count: int) -> Rows:
        """Draw the next ``count`` rows, for all machines together.

        Raises:
            TaskError: ``count`` is negative, or more than the sampler can give at once.
        """
        if count < 0:
            raise TaskError(f"{count} tasks cannot be drawn; give 0 or more")
        rows = self._next(count)
        self.drawn += len(rows)
        self.draws += 1
        return rows

    @abstractmethod
    def _next(self, count: int) -> Rows: ...

    def observe_group(self, kind: str, task_id: str, success: float, varied: bool) -> None:  # noqa: B027
        """Record the result of a group.

        Its mean success is in [0, 1]; ``varied`` is True if its rewards differ. Most samplers
        ignore it. For those that do not, every machine must record the same groups in the same
        order before a draw that all share.

        Raises:
            TaskError: there is no such kind or task, or ``success`` is out of range.
        """

    def arguments(self) -> dict[str, Any]:
        """Return the sampler's arguments, as JSON values."""
        return {"seed": self.seed}

    def progress(self) -> dict[str, Any]:
        """Return the part of the state that changes from draw to draw, as JSON values."""
        return {"drawn": self.drawn, "draws": self.draws}

    def state(self) -> dict[str, Any]:
        """Return everything that is needed to continue, as JSON values."""
        return {**self._fixed(), "progress": self.progress()}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a sampler with the same arguments over the same tasks.

        Raises:
            TaskError: it is the state of another sampler, other arguments or other tasks, or is
                malformed.
        """
        for name, mine in self._fixed().items():
            if name not in state or state[name] != mine:
                raise TaskError(
                    f"state of a sampler: {name} is {state.get(name)!r}, this sampler's is {mine!r}; start anew, or give it the same arguments"
                )
        progress = state.get("progress")
        if not isinstance(progress, Mapping) or set(progress) != set(self.progress()):
            raise TaskError(f"state of a sampler: progress is {progress!r}; expected {', '.join(self.progress())}")
        self._restore(progress)

    def _restore(self, progress: Mapping[str, Any]) -> None:
        for name in ("drawn", "draws"):
            value = progress[name]
            if type(value) is not int or value < 0:
                raise TaskError(f"state of a sampler: progress.{name} is {value!r}; expected a whole number from 0")
            setattr(self, name, value)

    def _fixed(self) -> dict[str, Any]:
        return {"sampler": self.name, "tasks": self.index.fingerprint, "arguments": self.arguments()}


def read_shares(progress: Mapping[str, Any], name: str) -> dict[str, float]:
    """Read a field of a state that maps names to numbers in [0, 1]."""
    shares = progress[name]
    if not isinstance(shares, Mapping):
        raise TaskError(f"state of a sampler: progress.{name} is {shares!r}; expected an object")
    for key, value in shares.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise TaskError(f"state of a sampler: progress.{name}.{key} is {value!r}; expected a number in [0, 1]")
    return dict(shares)


def concatenate_rows(parts: list[Rows]) -> Rows:
    """Concatenate parts of rows; no parts give no rows."""
    return np.concatenate([np.empty(0, dtype=np.int64), *parts]).astype(np.int64)
