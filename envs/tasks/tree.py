"""The tree of a task set: ``difficulty/{1,2-3,4-6,7+}/…``, so that a glob chooses difficulties.

Difficulty is the number of facts that must hold at the end. The buckets are those of the horizons
(`envs.ends.bucket_of`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from envs.ends import Bucket, bucket_of
from envs.tasks.parquet import save_parquet
from envs.tasks.stream import json_row
from envs.types import TaskError, WebTask
from envs.types.paths import AnyPath

ROWS_PER_FILE = 10_000
"""Rows in one JSONL or Parquet file: some megabytes."""

MAX_NAME = 120
"""Length of a file name made from a site or task id, in characters. File systems take 255 bytes."""


class TreeLayout(StrEnum):
    """File format of a tree."""

    JSON = "json"
    """One file for each task: ``difficulty/1/<site>/<task id>.json``."""
    JSONL = "jsonl"
    """``difficulty/1/part-00000.jsonl`` with `ROWS_PER_FILE` lines."""
    PARQUET = "parquet"


def write_tree(
    folder: AnyPath, tasks: Iterable[WebTask], form: TreeLayout = TreeLayout.JSONL, rows_per_file: int = ROWS_PER_FILE
) -> dict[Path, int]:
    """Write tasks below ``folder/difficulty``, each into its bucket, in the order given.

    At most four files' rows are held in memory.

    Returns:
        The files, with the tasks in each.

    Raises:
        TaskError: there are task files already (old and new ones would be read as one set), or two
            tasks have one id (as far as
        it can be seen: in the JSON form).
    """
    root = Path(folder) / "difficulty"
    if root.exists() and any(path.is_file() for path in root.rglob("*")):
        raise TaskError(f"{root} has files already; remove them or choose another folder")
    if form is TreeLayout.JSON:
        return {_write_one(root, task): 1 for task in tasks}
    written: dict[Path, int] = {}
    waiting: dict[Bucket, list[WebTask]] = {bucket: [] for bucket in Bucket}
    for task in tasks:
        bucket = bucket_of(task.difficulty)
        waiting[bucket].append(task)
        if len(waiting[bucket]) == rows_per_file:
            _write_part(root, bucket, waiting[bucket], form, written)
            waiting[bucket] = []
    for bucket, rest in waiting.items():
        if rest:
            _write_part(root, bucket, rest, form, written)
    return written


def _write_part(root: Path, bucket: Bucket, tasks: list[WebTask], form: TreeLayout, written: dict[Path, int]) -> None:
    number = sum(path.parent.name == bucket for path in written)
    path = root / bucket / f"part-{number:05d}.{form}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if form is TreeLayout.PARQUET:
        save_parquet(path, tasks)
    else:
        path.write_text("".join(f"{json_row(task)}\n" for task in tasks), encoding="utf-8")
    written[path] = len(tasks)


def _write_one(root: Path, task: WebTask) -> Path:
    path = root / bucket_of(task.difficulty) / file_name(task.site) / f"{file_name(task.task_id)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(json_row(task) + "\n")
    except FileExistsError as error:
        raise TaskError(f"{path} is there already: two tasks have the id {task.task_id!r}") from error
    return path


def file_name(text: str) -> str:
    """Return a text as a part of a path: percent-encoded. A long one is cut and gets a digest."""
    name = quote(text, safe=" ")
    if set(name) <= {"."}:
        name = name.replace(".", "%2E")
    if len(name) > MAX_NAME:
        name = f"{name[:MAX_NAME]}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    return name
