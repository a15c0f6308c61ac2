"""Reads and writes whole task files: strictly, or collecting every bad row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.tasks.rows import TaskProblem
from envs.tasks.stream import iter_tasks, json_row
from envs.types import TaskError, WebTask
from envs.types.paths import AnyPath

MAX_SHOWN = 20
"""Number of problems listed in one error; the rest are counted."""


@dataclass(frozen=True, slots=True)
class TaskRead:
    """Content of task files. Every row that is left out has a problem that says why."""

    tasks: list[WebTask]
    """The good rows, in order."""
    problems: list[TaskProblem]

    @property
    def bad_rows(self) -> int:
        """Number of refused rows. A row may have several problems."""
        return len({(problem.path, problem.row) for problem in self.problems if problem.row})


def load_tasks(path: AnyPath) -> list[WebTask]:
    """Load all tasks of a file (``.parquet``, ``.json``, else JSON lines), in its order.

    Raises:
        TaskError: the file cannot be read, is empty, or has bad rows. Each bad row is named with
            line, field and reason, and no task is returned.
    """
    read = read_tasks(path)
    if read.problems:
        raise TaskError(listed(read.problems))
    return read.tasks


def read_tasks(*paths: AnyPath) -> TaskRead:
    """Read the good rows of files, and the problems of the others. Bad content never raises."""
    problems: list[TaskProblem] = []
    return TaskRead(list(iter_tasks(paths, on_problem=problems.append)), problems)


def listed(problems: Sequence[TaskProblem]) -> str:
    """Format problems as the lines of one message, at most `MAX_SHOWN` of them."""
    rest = [f"and {len(problems) - MAX_SHOWN} more"] if len(problems) > MAX_SHOWN else []
    return "\n".join([*map(str, problems[:MAX_SHOWN]), *rest])


def save_tasks(path: AnyPath, tasks: Iterable[WebTask]) -> None:
    """Write tasks as JSON lines, in the form that `load_tasks` reads."""
    Path(path).write_text("".join(f"{json_row(task)}\n" for task in tasks), encoding="utf-8")
