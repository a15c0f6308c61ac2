"""Registry of the import formats."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from envs.rewards.formats import rubric_of_instruction
from envs.tasks.imports.base import ONE_SEED, ImportedTask, TaskFormat
from envs.tasks.imports.browsergym_sets import TimeWarp, WebArenaLite
from envs.tasks.imports.folders import Design2Code, MiniWob
from envs.tasks.imports.live import Mind2Web, OnlineMind2Web, WebGym, WebVoyager
from envs.tasks.imports.real import Real
from envs.tasks.imports.visualwebarena import VisualWebArena
from envs.tasks.imports.w8 import W8
from envs.tasks.imports.webarena import WebArena
from envs.tasks.imports.webarena_verified import WebArenaVerified
from envs.tasks.rows import CHECKS, OnProblem, SeenIds, TaskProblem, refuse
from envs.types import ConfigError, Split, TaskError, WebTask, rubric_hash
from envs.types.extensions import Extensions
from envs.types.paths import AnyPath

FORMATS: Extensions[Any] = Extensions(
    "task format",
    "rollwright.importers",
    {
        made.name: made
        for made in (
            MiniWob(),
            WebArena(),
            WebArenaVerified(),
            WebArenaLite(),
            VisualWebArena(),
            TimeWarp(),
            Real(),
            WebGym(),
            Mind2Web(),
            OnlineMind2Web(),
            WebVoyager(),
            Design2Code(),
            W8(),
        )
    },
)
"""Formats by name: a `TaskFormat`, or a function from a path to tasks."""


class FunctionFormat(TaskFormat):
    """An extension's function that reads tasks: ``def read(path: Path) -> Iterable[WebTask]``."""

    def __init__(self, name: str, function: Callable[[Path], Iterable[WebTask]]) -> None:
        self.name = name
        self._function = function

    def read(self, path: Path, split: Split | None, on_problem: OnProblem) -> Iterator[ImportedTask]:
        """Yield its tasks, checked like rows of a file; a given ``split`` replaces their own."""
        seen = SeenIds()
        for number, task in enumerate(self._function(path), start=1):
            if not isinstance(task, WebTask):
                raise TaskError(f"task format {self.name}: item {number} is {task!r}; expected a WebTask")
            if split is not None and set(task.seeds) != {split}:
                task = task.model_copy(update={"seeds": {split: next(iter(task.seeds.values()), ONE_SEED)}})
            problems = [problem for check in CHECKS for problem in check(task)]
            if first := seen.claim(task.task_id, str(path), number):
                problems = [*problems, ("task_id", f"{task.task_id!r} is already used by {first}")]
            for field, reason in problems:
                on_problem(TaskProblem(str(path), number, field, reason))
            if not problems:
                yield ImportedTask(task=task, source=self.name, reference={})

    def write(self, path: Path, items: Sequence[ImportedTask]) -> None:
        """Refuse: the function can only read.

        Raises:
            TaskError: always.
        """
        raise TaskError(f"task format {self.name} can only be read; save its tasks with envs.tasks.save_tasks")


BY_THEIR_PAGES = (Design2Code.name, MiniWob.name)
"""Sets whose pages say the result of an episode: a rubric would replace that."""


def import_tasks(
    source: str,
    path: AnyPath,
    *,
    split: Split | None = None,
    on_problem: OnProblem = refuse,
    judged: bool = False,
) -> Iterator[ImportedTask]:
    """Yield the tasks of a file or folder in another benchmark's format.

    Args:
        source: A key of `FORMATS`.
        path: The file or folder that the format's class describes.
        split: Split of the tasks; by default held out for benchmarks, training for training sets.
        on_problem: Called with each problem; by default the first is raised.
        judged: True gives a rubric to tasks without any grading: a judge says whether the
            instruction was carried out. Tasks with evaluators, of Design2Code, or with a reference
            page keep what they have. The difficulty stays the set's own.

    Raises:
        TaskError: the format is not known; or a problem, unless ``on_problem`` handles it.
    """
    items = _find_format(source).read(Path(path), split, on_problem)
    return map(_add_judged_rubric, items) if judged else items


def _add_judged_rubric(item: ImportedTask) -> ImportedTask:
    task = item.task
    graded = task.rubric is not None or task.evaluators is not None or task.reference or item.source in BY_THEIR_PAGES
    if graded or not task.instruction:
        return item
    rubric = rubric_of_instruction(task.instruction)
    changed = {"rubric": rubric, "rubric_hash": rubric_hash(rubric)}
    return item.model_copy(update={"task": task.model_copy(update=changed)})


def export_tasks(path: AnyPath, items: Iterable[ImportedTask]) -> None:
    """Write imported tasks back in their format, which must be the same for all.

    Raises:
        TaskError: there are no tasks, or tasks of several formats.
    """
    made = list(items)
    sources = sorted({item.source for item in made})
    if len(sources) != 1:
        raise TaskError(
            f"{path}: tasks of one format can be exported together; these are of {', '.join(sources) or 'none'}"
        )
    _find_format(sources[0]).write(Path(path), made)


def _find_format(source: str) -> TaskFormat:
    try:
        entry = FORMATS.find(source)
    except ConfigError as error:
        raise TaskError(str(error)) from error
    if inspect.isclass(entry):
        entry = entry()
    return entry if isinstance(entry, TaskFormat) else FunctionFormat(source, entry)
