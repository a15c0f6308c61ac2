"""Shared parts of importers: the imported task, start addresses, rows of JSON files."""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from envs.ends import max_steps
from envs.tasks.imports.files import set_files
from envs.tasks.rows import CHECKS, OnProblem, RowProblems, SeenIds, TaskProblem, field_name, parse_object, refuse
from envs.tasks.stream import UnreadableError, raw_rows
from envs.types import Record, Rubric, SeedRange, Split, TaskError, WebTask, rubric_hash

logger = logging.getLogger(__name__)


class ImportedTask(Record):
    """A task of another benchmark's set."""

    task: WebTask
    source: str
    """The format that it came in, a key of `FORMATS`."""
    reference: dict[str, Any]
    """The row as it came; for folders of files, their names and digests."""


class TaskFormat(ABC):
    """A task set of another benchmark, read and written back."""

    name: str

    @abstractmethod
    def read(self, path: Path, split: Split | None, on_problem: OnProblem) -> Iterator[ImportedTask]:
        """Yield the tasks of a file or folder in its order. Each problem goes to ``on_problem``."""

    @abstractmethod
    def write(self, path: Path, items: Sequence[ImportedTask]) -> None:
        """Write tasks in the form that they came in."""


class ForeignRow(BaseModel):
    """Fields of a foreign row that the import needs; others stay in the reference."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    kept: ClassVar[frozenset[str]] = frozenset()
    """Known columns that a task needs nothing of."""


_LIKE_AN_ANSWER = re.compile(
    r"answer|solution|gold|truth|expected|correct|target|reference|rubric|label", re.IGNORECASE
)


def unknown_columns(row: ForeignRow, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the unknown columns of a row and of its inner rows, with their values."""
    yield from ((f"{above}{name}", value) for name, value in (row.model_extra or {}).items() if name not in row.kept)
    for name in type(row).model_fields:
        value = getattr(row, name)
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, ForeignRow):
                yield from unknown_columns(part, f"{above}{name}.")


class UnknownColumns:
    """Warns once of each column that an import does not know.

    Such columns stay in the rows' references and are not used.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._seen = set[str]()

    def look(self, columns: Iterable[tuple[str, Any]]) -> None:
        """Warn of new unknown columns of a row; columns without a value are ignored."""
        new = [name for name, value in columns if value not in (None, "", [], {}) and name not in self._seen]
        self._seen.update(new)
        answers = [name for name in new if _LIKE_AN_ANSWER.search(name.rpartition(".")[2])]
        others = [name for name in new if name not in answers]
        if others:
            logger.warning(
                "%s: unknown columns, kept in the reference and not used: %s", self._source, ", ".join(others)
            )
        if answers:
            logger.warning(
                "%s: %s may say what is right, and no task is graded by it: the format does not know the column. Give it the name that "
                "docs/importing-tasks.md has for the right answer, or leave it out",
                self._source,
                ", ".join(answers),
            )


R = TypeVar("R", bound=ForeignRow)


class RowFormat(TaskFormat, Generic[R]):
    """A task set of JSON objects.

    It is a ``.jsonl`` file, a ``.json`` file (a list or one object), a folder of ``.json`` files,
    or the wheel (``.whl``) that has them.
    """

    model: type[R]
    split: Split
    """Split of the tasks, unless the caller names one."""
    instruction_key: str
    url_key: str | None = None
    file_key: str = ""
    """Key of the name of a row's file when a folder is written; empty: the row's number."""
    wheel_files: str = ""
    """Pattern of the files in the set's wheel; empty if it comes in none."""

    def fields_in(self, row: R, file: Path) -> dict[str, Any]:
        """Return the fields of the task in a file, whose name may say more than the row.

        Raises:
            ValueError: a problem of the row, as ``field: reason``.
        """
        return self.fields(row)

    @abstractmethod
    def fields(self, row: R) -> dict[str, Any]:
        """Return the fields of the task except the seeds.

        ``task_id`` is without the format's name, which is added later.

        Raises:
            ValueError: a problem of the row, as ``field: reason``.
        """

    def new_url(self, old: str, task: WebTask) -> str:
        """Return the row's start address: the old one if it still is the task's place."""
        return old if split_address(old) == (task.site, task.path) else f"https://{task.site}{task.path}"

    def read(self, path: Path, split: Split | None = None, on_problem: OnProblem = refuse) -> Iterator[ImportedTask]:
        """Yield the tasks of a file or folder."""
        seen, columns = SeenIds(), UnknownColumns(self.name)
        with set_files(path, self.wheel_files) as files:
            for file, shown in files:
                number = 0
                try:
                    for number, text in enumerate(raw_rows(file), start=1):
                        item, problems = self._read_row(text, file, split or self.split, columns)
                        if item and (first := seen.claim(item.task.task_id, shown, number)):
                            problems = [("task_id", f"{item.task.task_id!r} is already used by {first}")]
                        for field, reason in problems:
                            on_problem(TaskProblem(shown, number, field, reason))
                        if item and not problems:
                            yield item
                except UnreadableError as error:
                    on_problem(TaskProblem(shown, 0, "file", f"cannot be read: {error}"))
                else:
                    if number == 0:
                        on_problem(TaskProblem(shown, 0, "file", "has no tasks"))

    def export(self, item: ImportedTask) -> dict[str, Any]:
        """Return the row as it came, with the changes of the task."""
        row = {**item.reference, self.instruction_key: item.task.instruction}
        if self.url_key:
            row[self.url_key] = self.new_url(str(row[self.url_key]), item.task)
        return row

    def write(self, path: Path, items: Sequence[ImportedTask]) -> None:
        """Write JSON lines to ``.jsonl``, a list to ``.json``, else a file per row."""
        rows = [self.export(item) for item in items]
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        elif path.suffix == ".json":
            path.write_text(json.dumps(rows, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        else:
            path.mkdir(parents=True, exist_ok=True)
            for number, row in enumerate(rows):
                file = path / f"{row[self.file_key] if self.file_key else number}.json"
                file.write_text(json.dumps(row, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    def _read_row(
        self, text: bytes | str, file: Path, split: Split, columns: UnknownColumns
    ) -> tuple[ImportedTask | None, RowProblems]:
        raw, problems = parse_object(text)
        if raw is None:
            return None, problems
        try:
            row = self.model.model_validate(raw)
            columns.look(unknown_columns(row))
            fields = self.fields_in(row, file)
            task = WebTask(**{**fields, "task_id": f"{self.name}/{fields['task_id']}"}, seeds={split: ONE_SEED})
        except ValidationError as error:
            return None, [(field_name(one["loc"]), one["msg"]) for one in error.errors()]
        except ValueError as error:
            field, _, reason = str(error).partition(": ")
            return None, [(field, reason)]
        problems = [problem for check in CHECKS for problem in check(task)]
        return (None, problems) if problems else (ImportedTask(task=task, source=self.name, reference=raw), [])


ONE_SEED = SeedRange(start=0, stop=1)
"""Seeds of a task on a live site, which has no page seeds."""

LEVELS = {"easy": 1, "medium": 4, "hard": 7}
"""Difficulty by level, for a set without facts.

It is the least of each of WebGym's ranges (up to 3 facts, up to 6, more).
"""


def size_fields(difficulty: int) -> dict[str, int]:
    """Return the difficulty, and the horizon that goes with it."""
    return {"difficulty": difficulty, "horizon": max_steps(difficulty)}


def rubric_fields(read: Callable[[Any], Rubric | None], data: Any) -> dict[str, Any]:
    """Return ``rubric`` and ``rubric_hash`` from a row's data; empty without a rubric.

    Raises:
        ValueError: the first problem, as ``field: reason``.
    """
    try:
        rubric = read(data)
    except TaskError as error:
        raise ValueError(str(error).splitlines()[0].split(": ", 1)[1]) from error
    return {} if rubric is None else {"rubric": rubric, "rubric_hash": rubric_hash(rubric)}


def split_address(url: str) -> tuple[str, str]:
    """Return site and path of an address; one without a scheme counts as a host.

    Raises:
        ValueError: it is no http or https address.
    """
    url = url.strip()
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url)
    parts = urlsplit(url if scheme else f"//{url}")
    if parts.scheme not in ("", "http", "https") or not parts.hostname or re.search(r"[\s\x00-\x1f]", url):
        raise ValueError(f"{url!r} is no http or https address")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    site = host if parts.port is None else f"{host}:{parts.port}"
    rest = url[(scheme.end() if scheme else 0) + len(parts.netloc) :]
    return site, rest if rest.startswith("/") else f"/{rest}"


def start_of(url: str, field: str) -> dict[str, str]:
    """Return ``site`` and ``path`` of a row's address.

    Raises:
        ValueError: it is no address, as ``field: reason``.
    """
    try:
        site, path = split_address(url)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
    return {"site": site, "path": path}
