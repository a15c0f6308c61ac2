"""Imports and exports W8 task folders with a ``rubric.json``.

W8's tasks: folders with a ``rubric.json``, anywhere in a tree (theirs is by difficulty: ``1``, ``2-3``, ``4-6``, ``7+``).

Of such a folder only ``rubric.json`` is described publicly. What a task needs besides, its start page and its instruction, is read from a
``task.json`` beside it (``start_url``, ``instruction``, and ``reference``: the page that similarities are computed with, as a path of the same site
or its whole address), the instruction also from ``instruction.md``; a key of ``rubric.json`` itself serves where
those have none.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.ends import Bucket
from envs.rewards.formats import from_w8, to_w8
from envs.tasks.imports.base import (
    ONE_SEED,
    ImportedTask,
    TaskFormat,
    UnknownColumns,
    rubric_fields,
    size_fields,
    split_address,
    start_of,
)
from envs.tasks.rows import CHECKS, Found, OnProblem, TaskProblem, parse_object, refuse
from envs.types import Rubric, Split, TaskError, WebTask
from envs.types.rubrics import SubscoreFact

KEYS = {"fact_groups", "pass_threshold", "pass_requirements", "start_url", "instruction", "reference"}
RUBRIC, ABOUT, SAID = "rubric.json", "task.json", "instruction.md"


class W8(TaskFormat):
    """A tree of task folders.

    The difficulty is the number of facts, the kind the folder above (none of the difficulties' own).

    What is written back is the same folders; a rubric that was changed is written in W8's form, if it has a place there.
    """

    name = "w8"

    def read(self, path: Path, split: Split | None = None, on_problem: OnProblem = refuse) -> Iterator[ImportedTask]:
        """Tasks of a tree, by their folders' names."""
        found = sorted(path.rglob(RUBRIC))
        if not found:
            on_problem(TaskProblem(str(path), 0, "file", f"has no tasks; expected folders with a {RUBRIC}"))
        columns = UnknownColumns(self.name)
        for number, file in enumerate(found, start=1):
            reference, problems = _read_folder(file.parent)
            for name in (RUBRIC, ABOUT):
                columns.look((key, value) for key, value in reference.get(name, {}).items() if key not in KEYS)
            task: WebTask | None = None
            if not problems:
                try:
                    task = self._task(file.parent.relative_to(path), reference, split or Split.TRAIN)
                    problems = [problem for check in CHECKS for problem in check(task)]
                except ValueError as error:
                    field, _, reason = str(error).partition(": ")
                    problems = [(field, reason)]
            for field, reason in problems:
                on_problem(TaskProblem(str(file.parent), number, field, reason))
            if task is not None and not problems:
                reference["folder"] = file.parent.relative_to(path).as_posix()
                yield ImportedTask(task=task, source=self.name, reference=reference)

    def write(self, path: Path, items: Sequence[ImportedTask]) -> None:
        """The folders as they came, with what was changed in the tasks."""
        for item in items:
            folder, reference = path / item.reference["folder"], item.reference
            folder.mkdir(parents=True, exist_ok=True)
            if item.task.rubric is None:
                raise TaskError(f"{item.task.task_id}: has no rubric, and a folder of W8's is one")
            same = item.task.rubric == from_w8(reference[RUBRIC])
            _write(folder / RUBRIC, reference[RUBRIC] if same else to_w8(item.task.rubric))
            about = _about_now(item)
            if about:
                _write(folder / ABOUT, about)
            if SAID in reference:
                changed = item.task.instruction != _instruction(reference) and not _key(reference, "instruction")
                said = f"{item.task.instruction or ''}\n" if changed else reference[SAID]
                (folder / SAID).write_text(said, encoding="utf-8")

    def _task(self, folder: Path, reference: Mapping[str, Any], split: Split) -> WebTask:
        url = _key(reference, "start_url")
        if not isinstance(url, str) or not url:
            raise ValueError(f"start_url: is missing; give the page that the task starts at in {ABOUT}")
        above = [name for name in folder.parts[:-1] if name not in set(Bucket)]
        rubric = rubric_fields(lambda data: from_w8(data, RUBRIC), reference[RUBRIC])
        place = start_of(url, "start_url")
        page = _reference_page(reference, place["site"])
        if not page and _needs_reference(rubric["rubric"]):
            raise ValueError(
                f"reference: is missing, and the rubric asks how like it the last page is; give the path of that page in {ABOUT}"
            )
        return WebTask(
            task_id=f"{self.name}/{folder.as_posix()}",
            **place,
            reference=page,
            kind=above[-1] if above else self.name,
            instruction=_instruction(reference),
            seeds={split: ONE_SEED},
            **size_fields(rubric["rubric"].fact_count),
            **rubric,
        )


def _read_folder(folder: Path) -> tuple[dict[str, Any], Found]:
    """What its files say, and what is wrong with them."""
    reference: dict[str, Any] = {}
    problems: Found = []
    for name in (RUBRIC, ABOUT):
        try:
            raw, found = parse_object((folder / name).read_bytes().removeprefix(BOM_UTF8))
        except FileNotFoundError:
            continue
        except OSError as error:
            raw, found = None, [("file", f"cannot be read: {error.strerror}")]
        problems += [(f"{name}.{field}", reason) for field, reason in found]
        reference[name] = raw or {}
    try:
        reference[SAID] = (folder / SAID).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        pass  # the instruction may be elsewhere, or the page gives it
    except (OSError, UnicodeDecodeError) as error:
        problems.append((SAID, f"cannot be read: {error}"))
    return reference, problems


def _key(reference: Mapping[str, Any], name: str) -> Any:
    return reference.get(ABOUT, {}).get(name) or reference[RUBRIC].get(name)


def _instruction(reference: Mapping[str, Any]) -> str | None:
    said = _key(reference, "instruction") or reference.get(SAID, "").strip()
    if said and not isinstance(said, str):
        raise ValueError("instruction: expected a text")
    return said or None


def _reference_page(reference: Mapping[str, Any], site: str) -> str:
    """Path of the reference page on the task's site; empty without one."""
    given = _key(reference, "reference") or ""
    if not isinstance(given, str):
        raise ValueError("reference: expected a path or an address")
    if not given or re.fullmatch(r"/([^/\s]\S*)?", given):
        return given
    place = start_of(given, "reference")
    if place["site"] != site:
        raise ValueError(f"reference: {given!r} is not on {site}, where the task is")
    return place["path"]


def _needs_reference(rubric: Rubric) -> bool:
    return bool(rubric.pass_requirements.floors) or any(isinstance(fact, SubscoreFact) for fact in rubric.facts())


def _about_now(item: ImportedTask) -> dict[str, Any]:
    """``task.json`` with what was changed in the task."""
    about, task = dict(item.reference.get(ABOUT, {})), item.task
    if split_address(_key(item.reference, "start_url")) != (task.site, task.path):
        about["start_url"] = f"https://{task.site}{task.path}"
    if _reference_page(item.reference, split_address(_key(item.reference, "start_url"))[0]) != task.reference:
        about["reference"] = task.reference
    elsewhere = SAID in item.reference and not _key(item.reference, "instruction")
    if task.instruction != _instruction(item.reference) and not elsewhere:
        about["instruction"] = task.instruction
    return about


def _write(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
