"""What importers share: the imported task, start addresses, rows of JSON files."""

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
from envs.tasks.rows import CHECKS, Found, OnProblem, SeenIds, TaskProblem, field_name, parse_object, refuse
from envs.tasks.stream import UnreadableError, raw_rows
from envs.types import Record, Rubric, SeedRange, Split, TaskError, WebTask, rubric_hash
from envs.types.paths import AnyPath

logger = logging.getLogger(__name__)


class ImportedTask(Record):
    """A task of another set."""

    task: WebTask
    source: str
    """The format that it came in, a key of `FORMATS`."""
    reference: dict[str, Any]
    """The row as it came; for folders of files, their names and digests."""


class TaskFormat(ABC):
    """A task set of others: read and written back."""

    name: str

    @abstractmethod
    def read(self, path: Path, split: Split | None, on_problem: OnProblem) -> Iterator[ImportedTask]:
        """Tasks of a file or folder in its order; each problem is told to ``on_problem``."""

    @abstractmethod
    def write(self, path: Path, items: Sequence[ImportedTask]) -> None:
        """Write them as they came."""


class ForeignRow(BaseModel):
    """Fields of a foreign row that the import needs; others stay in the reference."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    kept: ClassVar[frozenset[str]] = frozenset()
    """Columns of the format that say nothing that a task has a place for."""


_LIKE_AN_ANSWER = re.compile(
    r"answer|solution|gold|truth|expected|correct|target|reference|rubric|label", re.IGNORECASE
)


def unknown_columns(row: ForeignRow, above: str = "") -> Iterator[tuple[str, Any]]:
    """Columns of a row, and of the rows in it, that its format does not know, with their values."""
    yield from ((f"{above}{name}", value) for name, value in (row.model_extra or {}).items() if name not in row.kept)
    for name in type(row).model_fields:
        value = getattr(row, name)
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, ForeignRow):
                yield from unknown_columns(each, f"{above}{name}.")


class UnknownColumns:
    """Warns of columns that an import does not know, of each once: they stay in the rows' references, and nothing is made of them."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._seen = set[str]()

    def look(self, columns: Iterable[tuple[str, Any]]) -> None:
        """Columns of one row that its format does not know; those without a value are none."""
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
    """A set that is JSON objects: a ``.jsonl`` file, a ``.json`` file (a list or one object), or a folder of ``.json`` files."""

    model: type[R]
    split: Split
    """Unless the caller names one."""
    instruction_key: str
    url_key: str | None = None

    @abstractmethod
    def fields(self, row: R) -> dict[str, Any]:
        """Fields of the task except the seeds.

        ``task_id`` is without the format's name, which is put before it.

        Raises:
            ValueError: what is wrong, as ``field: reason``.
        """

    def file_stem(self, reference: dict[str, Any], number: int) -> str:
        """Name of the row's file when a folder is written."""
        return str(number)

    def new_url(self, old: str, task: WebTask) -> str:
        """The row's start address: the old one when it still is the task's place."""
        return old if split_address(old) == (task.site, task.path) else f"https://{task.site}{task.path}"

    def read(self, path: Path, split: Split | None = None, on_problem: OnProblem = refuse) -> Iterator[ImportedTask]:
        """Tasks of a file or folder."""
        seen, columns = SeenIds(), UnknownColumns(self.name)
        for file in _files(path):
            number = 0
            try:
                for number, text in enumerate(raw_rows(file), start=1):
                    item, found = self._read_row(text, split or self.split, columns)
                    if item and (first := seen.claim(item.task.task_id, str(file), number)):
                        found = [("task_id", f"{item.task.task_id!r} is already used by {first}")]
                    for field, reason in found:
                        on_problem(TaskProblem(str(file), number, field, reason))
                    if item and not found:
                        yield item
            except UnreadableError as error:
                on_problem(TaskProblem(str(file), 0, "file", f"cannot be read: {error}"))
            else:
                if number == 0:
                    on_problem(TaskProblem(str(file), 0, "file", "has no tasks"))

    def export(self, item: ImportedTask) -> dict[str, Any]:
        """The row as it came, with what has been changed in the task."""
        row = {**item.reference, self.instruction_key: item.task.instruction}
        if self.url_key:
            row[self.url_key] = self.new_url(str(row[self.url_key]), item.task)
        return row

    def write(self, path: Path, items: Sequence[ImportedTask]) -> None:
        """JSON lines for a ``.jsonl`` path, a list for ``.json``, one file a row for a folder."""
        rows = [self.export(item) for item in items]
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        elif path.suffix == ".json":
            path.write_text(json.dumps(rows, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        else:
            path.mkdir(parents=True, exist_ok=True)
            for number, row in enumerate(rows):
                file = path / f"{self.file_stem(row, number)}.json"
                file.write_text(json.dumps(row, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    def _read_row(self, text: bytes | str, split: Split, columns: UnknownColumns) -> tuple[ImportedTask | None, Found]:
        raw, found = parse_object(text)
        if raw is None:
            return None, found
        try:
            row = self.model.model_validate(raw)
            columns.look(unknown_columns(row))
            fields = self.fields(row)
            task = WebTask(**{**fields, "task_id": f"{self.name}/{fields['task_id']}"}, seeds={split: ONE_SEED})
        except ValidationError as error:
            return None, [(field_name(one["loc"]), one["msg"]) for one in error.errors()]
        except ValueError as error:
            field, _, reason = str(error).partition(": ")
            return None, [(field, reason)]
        found = [problem for check in CHECKS for problem in check(task)]
        return (None, found) if found else (ImportedTask(task=task, source=self.name, reference=raw), [])


ONE_SEED = SeedRange(start=0, stop=1)
"""Of a live site, which has no page seeds."""

LEVELS = {"easy": 1, "medium": 4, "hard": 7}
"""Difficulty of a set that has levels and no facts: the least of WebGym's ranges (up to 3 facts, up to 6, more)."""


def size_fields(difficulty: int) -> dict[str, int]:
    """Difficulty, and the horizon that goes with it."""
    return {"difficulty": difficulty, "horizon": max_steps(difficulty)}


def rubric_fields(read: Callable[[Any], Rubric | None], data: Any) -> dict[str, Any]:
    """``rubric`` and ``rubric_hash`` of a task, read from what its row has; nothing if it has none.

    Raises:
        ValueError: as ``field: reason``, the first of what is wrong.
    """
    try:
        rubric = read(data)
    except TaskError as error:
        raise ValueError(str(error).splitlines()[0].split(": ", 1)[1]) from error
    return {} if rubric is None else {"rubric": rubric, "rubric_hash": rubric_hash(rubric)}


def split_address(url: str) -> tuple[str, str]:
    """Site and path of an address; one without a scheme is taken for a host.

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
    """``site`` and ``path`` of a row's address.

    Raises:
        ValueError: as ``field: reason``.
    """
    try:
        site, path = split_address(url)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
    return {"site": site, "path": path}


def save_imported(path: AnyPath, items: Iterable[ImportedTask]) -> None:
    """Write tasks with their references as JSON lines."""
    Path(path).write_text("".join(f"{item.model_dump_json()}\n" for item in items), encoding="utf-8")


def load_imported(path: AnyPath) -> list[ImportedTask]:
    """What `save_imported` wrote.

    Raises:
        TaskError: the file cannot be read, or a line is malformed: the first is named.
    """
    items = []
    try:
        for number, text in enumerate(raw_rows(path), start=1):
            try:
                items.append(ImportedTask.model_validate_json(text, strict=True))
            except ValidationError as error:
                first = error.errors()[0]
                raise TaskError(f"{path}:{number}: {field_name(first['loc'])}: {first['msg']}") from error
    except UnreadableError as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    return items


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"), key=lambda file: numbered(file.stem))
    return found or [path / "*.json"]  # which cannot be read, and is said to be so


def numbered(stem: str) -> tuple[int, str]:
    """Key that sorts 2 before 10, and names after numbers."""
    return (int(stem), "") if stem.isdecimal() and stem.isascii() else (1 << 62, stem)
