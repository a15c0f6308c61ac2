"""Finds, reads and freezes the tasks of a run.

So a resumed run has the same.

A small set is copied into the run's ``tasks.jsonl``. Of a large one only what its files held is written down (``tasks.json``): 300,000 rows would
be copied into every run for nothing. Either way a rubric cannot change unseen: rows are copied with their rubric's hash, files are checked
against the written hash when the run is opened again, and `with_hashes` checks every task that is handed to a worker.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envs.tasks import TaskIndex, iter_tasks, json_row, task_files
from envs.types import ConfigError, Record, StorageError, TaskError, WebTask, evaluators_hash, rubric_hash
from tasks_lib.config import PROJECT, TasksConfig, resolve_path
from tasks_lib.folder.frozen_config import TASKS_SHA256, read_frozen
from training.ledger.store import (
    BACKUP,
    RunStore,
    atomic_write_bytes,
    describe_first_error,
    read_json,
    sha256_of,
    write_json,
)

COPIED = 10_000
"""Tasks up to which a set is copied into the run: some megabytes, read in a second."""

ENDINGS = (".jsonl", ".json", ".parquet")
"""Of the files that are read below a folder; anything else there (a README, a manifest of another kind) is no task file."""

MAX_NAMED = 12
"""Kinds that there are, of those that an error names."""


class FolderContent(Record):
    """What the task files of one folder held."""

    files: int
    bytes: int
    sha256: str
    """Of the lines ``<sha256 of the file> <name>``, in the order of the names."""


class FrozenSet(Record):
    """A large set as a run found it: ``tasks.json``."""

    tasks: int
    fingerprint: str
    """Of the task ids in their order (`TaskIndex`), after the choice of kinds."""
    folders: dict[str, FolderContent]
    """By path: relative to the project when it lies there."""


def task_paths(file: str) -> list[Path]:
    """The task files that ``tasks.file`` names: one, all below a folder, or those that match a glob; sorted.

    Raises:
        TaskError: there are none.
    """
    path = resolve_path(file)
    if path.is_file() or not (path.is_dir() or glob.has_magic(file)):
        return [path]  # a missing one is told by whoever reads it
    if path.is_dir():
        found = sorted(one for one in path.rglob("*") if one.suffix in ENDINGS and one.is_file())
        if not found:
            raise TaskError(f"tasks.file: {path} has no task files ({', '.join(ENDINGS)})")
        return found
    return task_files(str(path))


def open_tasks(config: TasksConfig) -> TaskIndex:
    """The tasks of a configuration, of all kinds or of those named.

    Raises:
        TaskError: files that cannot be read, bad rows, or a kind that is not there.
    """
    return read_index(task_paths(config.file), config.kinds)


def read_index(paths: Sequence[Path], kinds: Sequence[str] = ()) -> TaskIndex:
    """The tasks of files, of all kinds or of those named.

    Raises:
        TaskError: as `open_tasks`.
    """
    tasks: Iterable[WebTask] = iter_tasks(paths)
    if not kinds:
        return TaskIndex.build(tasks)
    index = TaskIndex.build(_of_kinds(tasks, frozenset(kinds)))
    missing = sorted(set(kinds) - set(index.kinds))
    if missing:
        there = sorted({task.kind for task in iter_tasks(paths)})
        near = sorted({like for kind in missing for like in difflib.get_close_matches(kind, there, n=2)})
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(there[:MAX_NAMED])}"
        raise TaskError(
            f"tasks.kinds: no task of kind {', '.join(missing)} in {', '.join(map(str, paths[:3]))}; {hint} ([] takes all)"
        )
    return index


def tasks_of(config: TasksConfig, store: RunStore) -> TaskIndex:
    """The tasks of a run: as they were when it began, or as they are if it has not begun. Nothing is written.

    Raises:
        TaskError: as `open_tasks`.
        ConfigError: the files of a large set are not what they were.
    """
    if store.tasks_path.exists():
        check_frozen_tasks(store)
        try:
            return TaskIndex.open([store.tasks_path])
        except TaskError as error:
            raise TaskError(f"{error}; it has the tasks that the run began with: {BACKUP}") from error
    return _reopen(config, store) if store.task_set_path.exists() else open_tasks(config)


def check_frozen_tasks(store: RunStore, rows: bytes | None = None) -> None:
    """``StorageError`` if a run's copy of its tasks is not what ``config.json`` says. Older runs, and unfinished starts, do not say it.

    Args:
        rows: What is to become the copy, where it is gone.
    """
    wanted = (read_frozen(store.config_path) or {}).get(TASKS_SHA256)
    there = rows is not None or store.tasks_path.exists()
    if wanted is not None and (not there or sha256_of(store.tasks_path if rows is None else rows) != wanted):
        raise StorageError(
            f"{store.tasks_path} is not what it was when this run began (sha256); {BACKUP}, or start another run_id"
        )


def freeze_tasks(config: TasksConfig, store: RunStore) -> TaskIndex:
    """The tasks of a run and the files that they upload, which are from now on what they are now.

    Raises:
        TaskError: as `tasks_of`; or a folder of files that a task names is missing, or leads elsewhere.
        ConfigError: as `tasks_of`; or the run's copy of such a folder was changed.
    """
    if store.tasks_path.exists() or store.task_set_path.exists():
        _check_copies(store)
        return tasks_of(config, store)
    paths = task_paths(config.file)
    contents = _contents(paths)
    index = read_index(paths, config.kinds)
    root = task_root(config.file)
    _copy_uploads(check_uploads(index, root), root, store)
    if len(index) <= COPIED:
        rows = "".join(f"{json_row(with_hashes(task))}\n" for task in index).encode()
        check_frozen_tasks(store, rows)
        atomic_write_bytes(store.tasks_path, rows)
        return TaskIndex.open([store.tasks_path])
    write_json(
        store.task_set_path, FrozenSet(tasks=len(index), fingerprint=index.fingerprint, folders=contents), sealed=True
    )
    return index


def task_root(file: str) -> Path:
    """The folder that tasks' ``files`` are relative to: that of the file, the folder named, or what precedes a glob's first pattern."""
    path = resolve_path(file)
    if path.is_dir():
        return path
    while glob.has_magic(str(path)) and not path.is_file():
        path = path.parent
    return path if path.is_dir() else path.parent


def check_uploads(tasks: Iterable[WebTask], root: Path) -> list[str]:
    """The folders that tasks upload files from, each once.

    Raises:
        TaskError: a folder has no files, or something in it lies outside of ``root``.
    """
    found: set[str] = set()
    root = root.resolve()
    for task in tasks:
        if not task.files or task.files in found:
            continue
        found.add(task.files)
        folder = root / task.files
        inside = list(folder.rglob("*"))
        if not any(path.is_file() for path in inside):
            raise TaskError(f"task {task.task_id}: there are no files in {folder}; put those that it may upload there")
        for path in (folder, *inside):
            if not path.resolve().is_relative_to(root):
                raise TaskError(
                    f"task {task.task_id}: {path} leads out of {root}; put a copy there instead of the link"
                )
    return sorted(found)


def _copy_uploads(names: Sequence[str], root: Path, store: RunStore) -> None:
    """Copy folders of files into the run, and write down what they hold.

    Done again, it copies what is missing.
    """
    for name in names:
        shutil.copytree(root / name, store.task_files_path / name, dirs_exist_ok=True)
    if names:
        hashes = {name: _folder_hash(store.task_files_path / name) for name in names}
        write_json(store.task_file_hashes_path, hashes, sealed=True)


def _check_copies(store: RunStore) -> None:
    """``ConfigError`` if a folder of uploadable files in the run does not hold what it held when the run began."""
    if not store.task_file_hashes_path.exists():
        return  # no task uploads anything
    hashes = read_json(store.task_file_hashes_path)
    if not isinstance(hashes, dict):
        raise StorageError(f"{store.task_file_hashes_path} is damaged: it names no folders; {BACKUP}")
    for name, digest in hashes.items():
        folder = store.task_files_path / name
        if _folder_hash(folder) != digest:
            raise ConfigError(
                f"the files in {folder} are not what they were when this run began; copy them again from beside the task file, or start "
                f"another run_id"
            )


def _folder_hash(folder: Path) -> str:
    """sha256 of the lines ``<sha256 of a file> <name>`` of all files below a folder, sorted."""
    lines = sorted(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.relative_to(folder).as_posix()}\n"
        for path in folder.rglob("*")
        if path.is_file()
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def with_hashes(task: WebTask) -> WebTask:
    """The task with the hashes of its rubric and its evaluators.

    Raises:
        TaskError: the row has a hash, and it is another's.
    """
    found: dict[str, str] = {}
    if task.rubric is not None:
        found["rubric_hash"] = rubric_hash(task.rubric)
    if task.evaluators is not None:
        found["evaluators_hash"] = evaluators_hash(task.evaluators)
    for field, value in found.items():
        given: str = getattr(task, field)
        if given not in ("", value):
            what = field.removesuffix("_hash")
            raise TaskError(
                f"the {what} of {task.task_id} has the hash {value[:12]}…, and its row says {given[:12]}…: it was changed after it was frozen; "
                f"restore it, or freeze it anew (leave {field} out) under another task id"
            )
    return task.model_copy(update=found) if found else task


def _reopen(config: TasksConfig, store: RunStore) -> TaskIndex:
    try:
        frozen = FrozenSet.model_validate(read_json(store.task_set_path))
    except ValidationError as error:
        raise StorageError(
            f"{store.task_set_path} is no frozen task set ({describe_first_error(error)}); {BACKUP}, or start another run_id"
        ) from error
    paths = task_paths(config.file)
    now = _contents(paths)
    changed = sorted(name for name in frozen.folders.keys() | now if frozen.folders.get(name) != now.get(name))
    if changed:
        more = f" and {len(changed) - 3} more folders" if len(changed) > 3 else ""
        raise ConfigError(
            f"the task files in {', '.join(changed[:3])}{more} are not what they were when this run began ({store.task_set_path}); restore "
            f"them, or start another run_id"
        )
    index = read_index(paths, config.kinds)
    if index.fingerprint != frozen.fingerprint:
        raise ConfigError(f"{store.task_set_path} is of other tasks than {config.file}; start another run_id")
    return index


def _of_kinds(tasks: Iterable[WebTask], kinds: frozenset[str]) -> Iterator[WebTask]:
    return (task for task in tasks if task.kind in kinds)


def _contents(paths: Sequence[Path]) -> dict[str, FolderContent]:
    folders: dict[str, Any] = {}
    for path in paths:
        folder = folders.setdefault(_short_path(path.parent), {"files": 0, "bytes": 0, "lines": hashlib.sha256()})
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
        except OSError as error:
            raise TaskError(f"{path}: cannot be read: {error}") from error
        folder["files"] += 1
        folder["bytes"] += size
        folder["lines"].update(f"{digest} {path.name}\n".encode())
    return {
        name: FolderContent(files=found["files"], bytes=found["bytes"], sha256=found["lines"].hexdigest())
        for name, found in folders.items()
    }


def _short_path(folder: Path) -> str:
    resolved = folder.resolve()
    return str(resolved.relative_to(PROJECT) if resolved.is_relative_to(PROJECT) else resolved)


def select_kinds(file: Path, kinds: list[str]) -> list[WebTask]:
    """Tasks of a file (or folder, or glob), of all kinds or of those named."""
    return list(read_index(task_paths(str(file)), kinds))
