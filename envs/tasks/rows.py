"""Parses and validates one row of a task file into a `WebTask`.

A row is a JSON object with the fields of `WebTask` and an optional ``schema_version``. A row
without one has version 1, so files from before there were versions are still read. An unknown
version is refused.
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
"""Version that is written. It is also the default of rows that name none, so JSON rows omit it."""

KNOWN_VERSIONS = frozenset({1})

VERSION_FIELD = "schema_version"

RowProblems = list[tuple[str, str]]
"""Problems of one row: (field, reason)."""


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """One problem in a task file."""

    path: str
    row: int
    """Line of a JSONL file, or place in a list or Parquet file, from 1. 0 is the file itself."""
    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.row}: {self.field}: {self.reason}" if self.row else f"{self.path}: {self.reason}"


OnProblem = Callable[[TaskProblem], object]
"""Handler of a problem. `refuse` raises it; ``problems.append`` keeps it and lets reading go on."""


def refuse(problem: TaskProblem) -> NoReturn:
    """Raise the problem, which ends the reading at the first one."""
    raise TaskError(str(problem))


class SeenIds:
    """Task ids seen so far, as 8-byte digests.

    An id takes some 100 bytes, whatever its length. The chance that two of a million ids share a
    digest is 1e-8.
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._files: list[str] = []

    def claim(self, task_id: str, path: str, row: int) -> str | None:
        """Return ``None`` if the id is new, else the place of its first use.

        The place is ``line 3``, or ``other.jsonl:3`` in another file.
        """
        if not self._files or self._files[-1] != path:
            self._files.append(path)
        here = (len(self._files) - 1) << 40 | row
        first = self._first.setdefault(digest(task_id), here)
        if first == here:
            return None
        file, line = self._files[first >> 40], first & (1 << 40) - 1
        return f"line {line}" if file == path else f"{file}:{line}"


def digest(task_id: str) -> int:
    """Return 64 bits of a hash of an id."""
    return int.from_bytes(hashlib.blake2b(task_id.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def read_row(line: bytes | str) -> tuple[WebTask | None, RowProblems]:
    """Return the task of a row, and the row's problems.

    The task is returned with its problems when its types are right and one of the `CHECKS` fails.
    """
    raw, problems = parse_object(line)
    if raw is None:
        return None, problems
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


def parse_object(line: bytes | str) -> tuple[dict[str, Any] | None, RowProblems]:
    """Parse the JSON object of a row, or say why it is refused.

    Refused are text that is not UTF-8 or not JSON, other values than objects, and repeated keys.
    """
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
    """Return Pydantic's location of an error as a dotted name.

    Pydantic gives a wrong mapping key as ("seeds", "x", "[key]"); the last part is left out.
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
    current = rubric_hash(task.rubric) if task.rubric is not None else None
    if current is None:
        yield "rubric_hash", "there is no rubric; leave the hash out"
    elif current != task.rubric_hash:
        yield (
            "rubric_hash",
            f"the rubric was changed after it was frozen: its hash is {current}, not {task.rubric_hash}",
        )


def _check_evaluators(task: WebTask) -> Iterator[tuple[str, str]]:
    if not task.evaluators_hash:
        return
    current = evaluators_hash(task.evaluators) if task.evaluators is not None else None
    if current != task.evaluators_hash:
        cause = (
            f"they were changed after they were frozen: their hash is {current}"
            if current
            else "there are no evaluators; leave the hash out"
        )
        yield "evaluators_hash", f"{cause}"


CHECKS: tuple[Callable[[WebTask], Iterator[tuple[str, str]]], ...] = (
    _check_names,
    _check_files,
    _check_seeds,
    _check_rubric,
    _check_evaluators,
)
"""Checks of a task beyond its types; each yields (field, reason)."""
