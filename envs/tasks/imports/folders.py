"""Task sets that are folders of pages: Design2Code and MiniWoB++."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envs.sites import miniwob
from envs.sites.design2code import INSTRUCTION
from envs.tasks.imports.base import ONE_SEED, ImportedTask, TaskFormat, size_fields
from envs.tasks.imports.files import numbered
from envs.tasks.rows import OnProblem, TaskProblem, refuse
from envs.types import Split, TaskError, WebTask


class Design2Code(TaskFormat):
    """A folder of ``N.html`` with ``N.png``, its screenshot.

    The task starts at the screenshot (``/N.png``), which is all that the policy is shown; the page
    is the reference. The difficulty is 1, since there are no facts. Other files of the folder are
    used by the pages and are left alone.
    """

    name = "design2code"

    def read(self, path: Path, split: Split | None = None, on_problem: OnProblem = refuse) -> Iterator[ImportedTask]:
        """Yield the tasks of a folder, by number.

        A page without a screenshot, or a screenshot without a page, is a problem.
        """
        stems = {file.stem for file in path.glob("*.html")} | {file.stem for file in path.glob("*.png")}
        if not stems:
            on_problem(TaskProblem(str(path), 0, "file", "has no tasks; expected a folder with N.html and N.png"))
        for number, stem in enumerate(sorted(stems, key=numbered), start=1):
            reference: dict[str, Any] = {"folder": str(path)}
            for ending in ("html", "png"):
                file = path / f"{stem}.{ending}"
                try:
                    reference |= {ending: file.name, f"{ending}_sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
                except OSError as error:
                    on_problem(TaskProblem(str(path), number, f"{stem}.{ending}", f"cannot be read: {error.strerror}"))
            if {"html", "png"} <= set(reference):
                yield ImportedTask(task=self._task(stem, split or Split.TRAIN), source=self.name, reference=reference)

    def write(self, path: Path, items: Sequence[ImportedTask]) -> None:
        """Copy the pages and screenshots.

        Raises:
            TaskError: a file is gone, or has changed since it was imported.
        """
        path.mkdir(parents=True, exist_ok=True)
        for item in items:
            for ending in ("html", "png"):
                file = Path(item.reference["folder"]) / item.reference[ending]
                if (
                    not file.is_file()
                    or hashlib.sha256(file.read_bytes()).hexdigest() != item.reference[f"{ending}_sha256"]
                ):
                    raise TaskError(
                        f"{file} is gone or has changed since {item.task.task_id} was imported; import it again"
                    )
                shutil.copyfile(file, path / file.name)

    def _task(self, stem: str, split: Split) -> WebTask:
        return WebTask(
            task_id=f"{self.name}/{stem}",
            site=self.name,
            kind=self.name,
            path=f"/{stem}.png",
            instruction=INSTRUCTION,
            seeds={split: ONE_SEED},
            **size_fields(1),
        )


class MiniWob(TaskFormat):
    """The pages of a ``html`` folder of MiniWoB++ (`envs.sites.miniwob.import_tasks`).

    They have seeds in all splits, so no split can be named.
    """

    name = "miniwob"

    def read(self, path: Path, split: Split | None = None, on_problem: OnProblem = refuse) -> Iterator[ImportedTask]:
        """Yield one task for each page.

        Raises:
            TaskError: a split is named.
        """
        if split is not None:
            raise TaskError(f"miniwob: every page has seeds for all splits; leave the split {split} out")
        tasks = miniwob.import_tasks(path)
        if not tasks:
            on_problem(TaskProblem(str(path), 0, "file", "has no tasks; expected a folder with miniwob/*.html"))
        for task in tasks:
            yield ImportedTask(task=task, source=self.name, reference={"page": f"miniwob/{task.kind}.html"})

    def write(self, path: Path, items: Sequence[ImportedTask]) -> None:
        """Write a list of the pages, one per line. The pages belong to the package ``miniwob``."""
        path.write_text("".join(f"{item.reference['page']}\n" for item in items), encoding="utf-8")
