"""Task files as one stream, whatever their form, and its shards.

``*.parquet`` is Parquet, ``*.json`` one task or a list of them, everything else JSON lines. A byte
order mark and blank lines at the end are skipped. The rows of all files, sorted by path, are one
sequence. Shard k of n has the rows whose place in it is k modulo n, bad rows counted, so every row
is in exactly one shard and all machines agree on which. A shard checks all rows and yields its own,
so a task id used twice is found even when the two rows are in different shards.

Memory: one line, JSON file or Parquet batch at a time, and some 100 bytes for each task id seen.
"""

from __future__ import annotations

import glob
import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from envs.tasks.parquet import parquet_rows
from envs.tasks.rows import OnProblem, SeenIds, TaskProblem, read_row, refuse
from envs.types import TaskError, WebTask
from envs.types.paths import AnyPath


def task_files(*patterns: str, root: AnyPath | None = None) -> list[Path]:
    """Return the files that match glob patterns, each once, sorted by path.

    ``**`` is any depth. Patterns are relative to ``root`` (default: the working folder). `[1-3]` is
    one character: it matches the folder ``1``, not ``2-3``.

    Raises:
        TaskError: a pattern matches no file.
    """
    matched: set[Path] = set()
    base = Path(root or ".")
    for pattern in patterns:
        candidates = {base / name for name in glob.glob(pattern, root_dir=base, recursive=True)}
        files = {path for path in candidates if path.is_file()}
        if not files:
            raise TaskError(f"no task file matches {pattern!r} in {base.resolve()}")
        matched |= files
    return _sorted(matched)


def iter_tasks(
    paths: AnyPath | Iterable[AnyPath], *, shard: int = 0, shards: int = 1, on_problem: OnProblem = refuse
) -> Iterator[WebTask]:
    """Yield the good tasks of files in their order, or those of one shard.

    Args:
        paths: Files, in any order (they are read sorted by path), or one.
        shard: Number of the shard among ``shards``, from 0.
        on_problem: Called with each problem of a row of this shard; problems of a whole file go to
            shard 0. By default the first one is raised.

    Raises:
        TaskError: a problem, unless ``on_problem`` handles it; or there is no such shard.
    """
    if not 0 <= shard < shards:
        raise TaskError(f"shard {shard} of {shards}: shards are numbered from 0 to {shards - 1}")
    return _iter_tasks(_sorted(paths), shard, shards, on_problem)


def json_row(task: WebTask) -> str:
    """Return a task as one line of JSON, of `SCHEMA_VERSION`."""
    return task.model_dump_json()


def _iter_tasks(paths: Sequence[Path], shard: int, shards: int, on_problem: OnProblem) -> Iterator[WebTask]:
    place = -1
    seen = SeenIds()
    for path in paths:
        name = str(path)
        number = 0
        try:
            for number, row in enumerate(raw_rows(path), start=1):
                place += 1
                task, problems = read_row(row)
                if task is not None and (first := seen.claim(task.task_id, name, number)):
                    problems = [*problems, ("task_id", f"{task.task_id!r} is already used by {first}")]
                if place % shards != shard:
                    continue
                for field, reason in problems:
                    on_problem(TaskProblem(name, number, field, reason))
                if task is not None and not problems:
                    yield task
        except UnreadableError as error:
            if shard == 0:
                on_problem(TaskProblem(name, 0, "file", f"cannot be read: {error}"))
        else:
            if number == 0 and shard == 0:
                on_problem(TaskProblem(name, 0, "file", "has no tasks; expected one JSON object per line"))


class UnreadableError(Exception):
    """A file cannot be read. Readers turn it into a problem of the file."""


def raw_rows(path: AnyPath) -> Iterator[bytes | str]:
    """Yield the JSON text of each row of a file, by its suffix.

    Raises:
        UnreadableError: the file cannot be read.
    """
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            yield from parquet_rows(path)
        elif path.suffix == ".json":
            yield from _json_rows(path.read_bytes().removeprefix(BOM_UTF8))
        else:
            with path.open("rb") as lines:
                yield from _without_blank_end(line.removeprefix(BOM_UTF8).rstrip(b"\r\n") for line in lines)
    except (OSError, ValueError) as error:
        raise UnreadableError(error.strerror if isinstance(error, OSError) and error.strerror else error) from error


def _without_blank_end(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines without blank ones at the end; blank ones elsewhere are bad rows."""
    blank: list[bytes] = []
    for line in lines:
        if not line.strip():
            blank.append(line)
            continue
        yield from blank
        blank.clear()
        yield line


def _json_rows(text: bytes) -> Iterator[bytes | str]:
    """Yield the rows of a JSON file. Anything but a list is one row, which `read_row` checks."""
    if not text.lstrip().startswith(b"["):
        yield text
        return
    try:
        rows: list[Any] = json.loads(text)
    except (RecursionError, ValueError):
        yield text
        return
    for row in rows:
        yield json.dumps(row)


def _sorted(paths: AnyPath | Iterable[AnyPath]) -> list[Path]:
    many = [paths] if isinstance(paths, str | PathLike) else paths
    return sorted({Path(path) for path in many}, key=lambda path: path.as_posix())
