"""Finds, reads and freezes the tasks of a run, also for its later starts.

A small set is copied to the run's ``tasks.jsonl``. Of a large one only hashes of its files are
stored (``tasks.json``): a copy of 300,000 rows in every run would be waste. Either way a changed
rubric is noticed. Rows are copied with their rubric's hash, files are checked against the stored
hash when the run is opened again, and `with_hashes` checks every task that a worker gets.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from envs.tasks import TaskIndex, iter_tasks, json_row, task_files
from envs.types import ConfigError, Record, StorageError, TaskError, WebTask, evaluators_hash, rubric_hash
from tasks_lib.config import PROJECT, TasksConfig, resolve_path
from tasks_lib.folder.frozen_config import TASKS_SHA256, read_frozen
from training.ledger.seal import sha256_of
from training.ledger.store import BACKUP, RunStore, atomic_write_bytes, read_json, read_record, write_json

COPIED = 10_000
"""Maximum tasks of a set that is copied to the run. They are some megabytes, read in a second."""

ENDINGS = (".jsonl", ".json", ".parquet")
"""Endings of the task files below a folder. Any other file there (a README, a manifest of another
kind) is skipped."""

MAX_NAMED = 12
"""Maximum number of existing kinds that an error names."""


class FolderContent(Record):
    """Content of the task files of one folder."""

    files: int
    bytes: int
    sha256: str
    """Hash of the lines ``<sha256 of the file> <name>``, in the order of the names."""


class FrozenSet(Record):
    """A large set at the run's start: ``tasks.json``."""

    tasks: int
    fingerprint: str
    """Hash of the task ids in their order (`TaskIndex`), after the choice of kinds."""
    folders: dict[str, FolderContent]
    """Content of each folder, by path, which is relative to the project inside it."""


def task_paths(file: str) -> list[Path]:
    """Return the sorted task files that ``tasks.file`` names: one file, a folder's, or a glob's.

    Raises:
        TaskError: there are none.
    """
    path = resolve_path(file)
    if path.is_file() or not (path.is_dir() or glob.has_magic(file)):
        return [path]  # its reader reports a missing one
    if path.is_dir():
        paths = sorted(child for child in path.rglob("*") if child.suffix in ENDINGS and child.is_file())
        if not paths:
            raise TaskError(f"tasks.file: {path} has no task files ({', '.join(ENDINGS)})")
        return paths
    return task_files(str(path))


def open_tasks(config: TasksConfig) -> TaskIndex:
    """Return the tasks of a configuration, of all kinds or of the named ones.

    Raises:
        TaskError: a file cannot be read, a row is bad, or a kind does not exist.
    """
    return read_index(task_paths(config.file), config.kinds)


def read_index(paths: Sequence[Path], kinds: Sequence[str] = ()) -> TaskIndex:
    """Return the tasks of files, of all kinds or of the named ones.

    Raises:
        TaskError: as `open_tasks`.
    """
    tasks: Iterable[WebTask] = iter_tasks(paths)
    if not kinds:
        return TaskIndex.build(tasks)
    wanted = frozenset(kinds)
    index = TaskIndex.build(task for task in tasks if task.kind in wanted)
    missing = sorted(wanted - set(index.kinds))
    if missing:
        existing = sorted({task.kind for task in iter_tasks(paths)})
        near = sorted({like for kind in missing for like in difflib.get_close_matches(kind, existing, n=2)})
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(existing[:MAX_NAMED])}"
        raise TaskError(
            f"tasks.kinds: no task of kind {', '.join(missing)} in {', '.join(map(str, paths[:3]))}; {hint}; tasks.kinds=[] takes all"
        )
    return index


def tasks_of(config: TasksConfig, store: RunStore) -> TaskIndex:
    """Return a run's tasks as they were at its start, or the present ones before it.

    Nothing is written.

    Raises:
        TaskError: as `open_tasks`.
        ConfigError: the files of a large set have changed.
    """
    if store.tasks_path.exists():
        check_frozen_tasks(store)
        try:
            return TaskIndex.open([store.tasks_path])
        except TaskError as error:
            raise TaskError(f"{error}; it has the tasks that the run began with: {BACKUP}") from error
    return _reopen(config, store) if store.task_set_path.exists() else open_tasks(config)


def check_frozen_tasks(store: RunStore, rows: bytes | None = None) -> None:
    """Raise ``StorageError`` if a run's copy of its tasks differs from the hash in ``config.json``.

    Unfinished starts and large sets have no hash there.

    Args:
        rows: New content of the copy, where the copy is missing.
    """
    wanted = (read_frozen(store.config_path) or {}).get(TASKS_SHA256)
    exists = rows is not None or store.tasks_path.exists()
    if wanted is not None and (not exists or sha256_of(store.tasks_path if rows is None else rows) != wanted):
        raise StorageError(
            f"{store.tasks_path} is not what it was when this run began (sha256); {BACKUP}, or start another run_id"
        )


def freeze_tasks(config: TasksConfig, store: RunStore) -> TaskIndex:
    """Return the tasks of a run, and freeze them and the files that they upload.

    Raises:
        TaskError: as `tasks_of`; or a folder of files that a task names is missing, or leads
            elsewhere.
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
    """Return the folder that tasks' ``files`` are relative to.

    It is the folder of the file, the named folder, or the part of a glob before its first pattern.
    """
    path = resolve_path(file)
    if path.is_dir():
        return path
    while glob.has_magic(str(path)) and not path.is_file():
        path = path.parent
    return path if path.is_dir() else path.parent


def check_uploads(tasks: Iterable[WebTask], root: Path) -> list[str]:
    """Return the folders that tasks upload files from, each once.

    Raises:
        TaskError: a folder has no files, or something in it lies outside ``root``.
    """
    folders: set[str] = set()
    root = root.resolve()
    for task in tasks:
        if not task.files or task.files in folders:
            continue
        folders.add(task.files)
        folder = root / task.files
        inside = list(folder.rglob("*"))
        if not any(path.is_file() for path in inside):
            raise TaskError(f"task {task.task_id}: there are no files in {folder}; put those that it may upload there")
        for path in (folder, *inside):
            if not path.resolve().is_relative_to(root):
                raise TaskError(
                    f"task {task.task_id}: {path} leads out of {root}; put a copy there instead of the link"
                )
    return sorted(folders)


def _copy_uploads(names: Sequence[str], root: Path, store: RunStore) -> None:
    """Copy folders of files to the run, and store their hashes.

    A repeated call copies what is missing.
    """
    for name in names:
        shutil.copytree(root / name, store.task_files_path / name, dirs_exist_ok=True)
    if names:
        hashes = {name: _folder_hash(store.task_files_path / name) for name in names}
        write_json(store.task_file_hashes_path, hashes, sealed=True)


def _check_copies(store: RunStore) -> None:
    """Raise ``ConfigError`` if a folder of uploadable files in the run has changed since it
    began."""
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
    """Return the sha256 of the sorted lines ``<sha256 of a file> <name>`` of a folder."""
    lines = sorted(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.relative_to(folder).as_posix()}\n"
        for path in folder.rglob("*")
        if path.is_file()
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def with_hashes(task: WebTask) -> WebTask:
    """Return the task with the hashes of its rubric and its evaluators.

    Raises:
        TaskError: the row has another hash.
    """
    hashes: dict[str, str] = {}
    if task.rubric is not None:
        hashes["rubric_hash"] = rubric_hash(task.rubric)
    if task.evaluators is not None:
        hashes["evaluators_hash"] = evaluators_hash(task.evaluators)
    for field, value in hashes.items():
        stored: str = getattr(task, field)
        if stored not in ("", value):
            what = field.removesuffix("_hash")
            raise TaskError(
                f"the {what} of {task.task_id} has the hash {value[:12]}…, and its row says {stored[:12]}…: it was changed after it was frozen; "
                f"restore it, or freeze it anew (leave {field} out) under another task id"
            )
    return task.model_copy(update=hashes) if hashes else task


def _reopen(config: TasksConfig, store: RunStore) -> TaskIndex:
    frozen = read_record(store.task_set_path, FrozenSet, "frozen task set", f"{BACKUP}, or start another run_id")
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
        name: FolderContent(files=content["files"], bytes=content["bytes"], sha256=content["lines"].hexdigest())
        for name, content in folders.items()
    }


def _short_path(folder: Path) -> str:
    resolved = folder.resolve()
    return str(resolved.relative_to(PROJECT) if resolved.is_relative_to(PROJECT) else resolved)


def select_kinds(file: Path, kinds: list[str]) -> list[WebTask]:
    """Return a file's tasks (or a folder's, or a glob's), of all or the named kinds."""
    return list(read_index(task_paths(str(file)), kinds))
