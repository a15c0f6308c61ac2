"""Parses and validates one row of a task file into a `WebTask`.

A row is a JSON object with the fields of `WebTask` and, if it likes, ``schema_version``. A row without one is of version 1, so the files
that were written before there were versions are read as they are; a version that this code does not know is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NoReturn

from pydantic import ValidationError

from envs.types import TaskError, WebTask, rubric_hash
from envs.types.webarena import evaluators_hash

SCHEMA_VERSION = 1
"""Version that is written. Being also the default of rows that name none, it is not written out in JSON."""

KNOWN_VERSIONS = frozenset({1})

VERSION_FIELD = "schema_version"

Found = list[tuple[str, str]]
"""What is wrong with one row: (field, reason)."""


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """One thing that is wrong with a task file."""

    path: str
    row: int
    """Line of a JSONL file, or place in a JSON list or Parquet file, from 1; 0 when it is the file itself."""
    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.row}: {self.field}: {self.reason}" if self.row else f"{self.path}: {self.reason}"


OnProblem = Callable[[TaskProblem], object]
"""What becomes of a problem: `refuse` raises it, ``problems.append`` keeps it and goes on with the good rows."""


def refuse(problem: TaskProblem) -> NoReturn:
    """The strict way: the first problem ends the reading."""
    raise TaskError(str(problem))


class SeenIds:
    """Task ids so far, as 8-byte digests: some 100 bytes an id, whatever its length (a chance of 1e-8 that two of a million share one)."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._files: list[str] = []

    def claim(self, task_id: str, path: str, row: int) -> str | None:
        """``None`` if the id is new, else where it was used first: ``line 3``, or ``other.jsonl:3`` when that is another file."""
        if not self._files or self._files[-1] != path:
            self._files.append(path)
        here = (len(self._files) - 1) << 40 | row
        first = self._first.setdefault(digest(task_id), here)
        if first == here:
            return None
        file, line = self._files[first >> 40], first & (1 << 40) - 1
        return f"line {line}" if file == path else f"{file}:{line}"


def digest(task_id: str) -> int:
    """64 bits of an id."""
    return int.from_bytes(hashlib.blake2b(task_id.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def read_row(line: bytes | str) -> tuple[WebTask | None, Found]:
    """The task of a row, and what is wrong with it.

    The task is there, beside the problems, when the types are right and only what they do not say is wrong (`CHECKS`).
    """
    raw, found = parse_object(line)
    if raw is None:
        return None, found
    if VERSION_FIELD in raw:
        version = raw.pop(VERSION_FIELD)
        if type(version) is not int or version not in KNOWN_VERSIONS:
            known = ", ".join(str(known) for known in sorted(KNOWN_VERSIONS))
            return None, [(VERSION_FIELD, f"{version!r} is not known here; known are {known}")]
        line = json.dumps(raw)
    try:
        task = WebTask.model_validate_json(line, strict=True)
    except ValidationError as error:
        return None, [(field_name(one["loc"]), one["msg"]) for one in error.errors()]
    return task, [problem for check in CHECKS for problem in check(task)]


def parse_object(line: bytes | str) -> tuple[dict[str, Any] | None, Found]:
    """The JSON object of a row, or why it is none: no UTF-8, no JSON, another value, a key given twice."""
    if isinstance(line, bytes):
        try:
            line = line.decode()
        except UnicodeDecodeError as error:
            return None, [("line", f"is no UTF-8 (byte {error.start + 1}: {error.reason})")]
    if not line.strip():
        return None, [("line", "is empty; expected a JSON object")]
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) < len(items):
            names = [name for name, _ in items]
            twice.extend(name for name in made if names.count(name) > 1)
        return made

    try:
        raw = json.loads(line, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        return None, [("line", f"is no JSON ({place}: {error.msg})")]
    except (RecursionError, ValueError) as error:
        return None, [("line", f"is no JSON that can be read ({error})")]
    if not isinstance(raw, dict):
        return None, [("line", f"is a {type(raw).__name__}; expected a JSON object")]
    return (None, [(name, "is given twice") for name in twice]) if twice else (raw, [])


def field_name(location: tuple[int | str, ...]) -> str:
    """Pydantic's place of an error as a dotted name.

    It names a wrong mapping key as ("seeds", "x", "[key]"); the mark says nothing to a
    reader.
    """
    return ".".join(str(part) for part in location if part != "[key]") or "line"


def _check_names(task: WebTask) -> Iterator[tuple[str, str]]:
    for name in ("task_id", "site", "kind"):
        if not getattr(task, name).strip():
            yield name, "is empty"
    if not task.path.startswith("/"):
        yield "path", f"{task.path!r} must begin with /"


def _check_files(task: WebTask) -> Iterator[tuple[str, str]]:
    parts = task.files.split("/")
    if task.files and (task.files.startswith("/") or "\\" in task.files or not {"", ".", ".."}.isdisjoint(parts)):
        yield "files", f"{task.files!r} must name a folder below the task file's own, such as invoices/7"


def _check_seeds(task: WebTask) -> Iterator[tuple[str, str]]:
    if not task.seeds:
        yield "seeds", "is empty; give at least one split"
    for split, seeds in task.seeds.items():
        if seeds.stop <= seeds.start:
            yield f"seeds.{split}", f"stop {seeds.stop} must be above start {seeds.start}"
    for (one, a), (other, b) in combinations(task.seeds.items(), 2):
        if a.start < b.stop and b.start < a.stop:
            yield (
                f"seeds.{other}",
                f"{b.start}..{b.stop} overlaps {one} {a.start}..{a.stop}; splits must not share seeds",
            )


def _check_rubric(task: WebTask) -> Iterator[tuple[str, str]]:
    if not task.rubric_hash:
        return
    found = rubric_hash(task.rubric) if task.rubric is not None else None
    if found is None:
        yield "rubric_hash", "there is no rubric that it is of"
    elif found != task.rubric_hash:
        yield "rubric_hash", f"the rubric was changed after it was frozen: its hash is {found}, not {task.rubric_hash}"


def _check_evaluators(task: WebTask) -> Iterator[tuple[str, str]]:
    if not task.evaluators_hash:
        return
    found = evaluators_hash(task.evaluators) if task.evaluators is not None else None
    if found != task.evaluators_hash:
        cause = (
            f"they were changed after they were frozen: their hash is {found}"
            if found
            else "there are none that it is of"
        )
        yield "evaluators_hash", f"{cause}"


CHECKS: tuple[Callable[[WebTask], Iterator[tuple[str, str]]], ...] = (
    _check_names,
    _check_files,
    _check_seeds,
    _check_rubric,
    _check_evaluators,
)
"""What the types alone do not say about a task; each yields (field, reason)."""
