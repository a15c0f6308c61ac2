"""Imports and exports W8 task folders with a ``rubric.json``.

The folders are anywhere in a tree (theirs is by difficulty: ``1``, ``2-3``, ``4-6``, ``7+``). Of
such a folder only ``rubric.json`` is described publicly. The start page and the instruction are
read from a ``task.json`` beside it, with these keys: ``start_url``, ``instruction``, and
``reference``, the page that similarities are computed with, as a path of the same site or a whole
address. The instruction is also read from ``instruction.md``. Where these files lack a key, one of
``rubric.json`` itself is used.
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
from envs.tasks.rows import CHECKS, OnProblem, RowProblems, TaskProblem, parse_object, refuse
from envs.types import Rubric, Split, TaskError, WebTask
from envs.types.rubrics import SubscoreFact

KEYS = {"fact_groups", "pass_threshold", "pass_requirements", "start_url", "instruction", "reference"}
RUBRIC_FILE, TASK_FILE, INSTRUCTION_FILE = "rubric.json", "task.json", "instruction.md"


class W8(TaskFormat):
    """A tree of task folders.

    The difficulty is the number of facts, the kind the name of the folder above (unless that is a
    difficulty's). The same folders are written back. A changed rubric is written in W8's form, if
    that can express it.
    """

    name = "w8"

    def read(self, path: Path, split: Split | None = None, on_problem: OnProblem = refuse) -> Iterator[ImportedTask]:
        """Yield the tasks of a tree, in the order of the folders' names."""
        rubric_files = sorted(path.rglob(RUBRIC_FILE))
        if not rubric_files:
            on_problem(TaskProblem(str(path), 0, "file", f"has no tasks; expected folders with a {RUBRIC_FILE}"))
        columns = UnknownColumns(self.name)
        for number, file in enumerate(rubric_files, start=1):
            reference, problems = _read_folder(file.parent)
            for name in (RUBRIC_FILE, TASK_FILE):
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
        """Write the folders as they came, with the changes of the tasks."""
        for item in items:
            folder, reference = path / item.reference["folder"], item.reference
            folder.mkdir(parents=True, exist_ok=True)
            if item.task.rubric is None:
                raise TaskError(f"{item.task.task_id}: has no rubric, which a folder of W8's needs")
            same = item.task.rubric == from_w8(reference[RUBRIC_FILE])
            _write(folder / RUBRIC_FILE, reference[RUBRIC_FILE] if same else to_w8(item.task.rubric))
            about = _updated_task_file(item)
            if about:
                _write(folder / TASK_FILE, about)
            if INSTRUCTION_FILE in reference:
                changed = item.task.instruction != _instruction(reference) and not _key(reference, "instruction")
                text = f"{item.task.instruction or ''}\n" if changed else reference[INSTRUCTION_FILE]
                (folder / INSTRUCTION_FILE).write_text(text, encoding="utf-8")

    def _task(self, folder: Path, reference: Mapping[str, Any], split: Split) -> WebTask:
        url = _key(reference, "start_url")
        if not isinstance(url, str) or not url:
            raise ValueError(f"start_url: is missing; give the page that the task starts at in {TASK_FILE}")
        above = [name for name in folder.parts[:-1] if name not in set(Bucket)]
        rubric = rubric_fields(lambda data: from_w8(data, RUBRIC_FILE), reference[RUBRIC_FILE])
        place = start_of(url, "start_url")
        page = _reference_page(reference, place["site"])
        if not page and _needs_reference(rubric["rubric"]):
            raise ValueError(
                f"reference: is missing, and the rubric asks how like it the last page is; give the path of that page in {TASK_FILE}"
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


def _read_folder(folder: Path) -> tuple[dict[str, Any], RowProblems]:
    """Return the content of a folder's files, and their problems."""
    reference: dict[str, Any] = {}
    problems: RowProblems = []
    for name in (RUBRIC_FILE, TASK_FILE):
        try:
            raw, file_problems = parse_object((folder / name).read_bytes().removeprefix(BOM_UTF8))
        except FileNotFoundError:
            continue
        except OSError as error:
            raw, file_problems = None, [("file", f"cannot be read: {error.strerror}")]
        problems += [(f"{name}.{field}", reason) for field, reason in file_problems]
        reference[name] = raw or {}
    try:
        reference[INSTRUCTION_FILE] = (folder / INSTRUCTION_FILE).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        pass  # the instruction may be elsewhere, or the page gives it
    except (OSError, UnicodeDecodeError) as error:
        problems.append((INSTRUCTION_FILE, f"cannot be read: {error}"))
    return reference, problems


def _key(reference: Mapping[str, Any], name: str) -> Any:
    return reference.get(TASK_FILE, {}).get(name) or reference[RUBRIC_FILE].get(name)


def _instruction(reference: Mapping[str, Any]) -> str | None:
    instruction = _key(reference, "instruction") or reference.get(INSTRUCTION_FILE, "").strip()
    if instruction and not isinstance(instruction, str):
        raise ValueError("instruction: expected a text")
    return instruction or None


def _reference_page(reference: Mapping[str, Any], site: str) -> str:
    """Return the path of the reference page on the task's site; empty without one."""
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


def _updated_task_file(item: ImportedTask) -> dict[str, Any]:
    """Return ``task.json`` with the changes of the task."""
    about, task = dict(item.reference.get(TASK_FILE, {})), item.task
    if split_address(_key(item.reference, "start_url")) != (task.site, task.path):
        about["start_url"] = f"https://{task.site}{task.path}"
    if _reference_page(item.reference, split_address(_key(item.reference, "start_url"))[0]) != task.reference:
        about["reference"] = task.reference
    elsewhere = INSTRUCTION_FILE in item.reference and not _key(item.reference, "instruction")
    if task.instruction != _instruction(item.reference) and not elsewhere:
        about["instruction"] = task.instruction
    return about


def _write(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
