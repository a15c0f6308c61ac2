"""Records what of a run's published versions was checked, so that a restart checks only the rest.

``checked.jsonl`` has a line for each version: names, sizes and times of the files that its update
rests on. A version whose files are as they were then is not read again when the run goes on; the
doctor reads all. A lost or torn file costs time alone: its versions are checked again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson
from pydantic import ValidationError

from envs.types import Record
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.disk import raise_disk_errors
from training.ledger.paths import phase_of
from training.ledger.store import RunStore
from training.records.groups import GroupRecord

Stamp = tuple[int, int]
"""Size of a file in bytes, and its time of change in nanoseconds."""


class CheckedGroup(Record):
    """A group of a checked version."""

    token: str
    episodes: int
    """Number of its episodes, each with a trajectory of this token."""
    record: Stamp


class CheckedVersion(Record):
    """A published version with the files that it rests on, as they were when it was checked."""

    version: int
    batch: Stamp
    manifest: Stamp
    rows: int
    """Rows of its batch."""
    events: int
    """Events of its groups in the ledger."""
    groups: dict[str, CheckedGroup]
    """Its groups by id, in their order."""


def checked_path(store: RunStore) -> Path:
    """Return the path of the file of checked versions."""
    return store.root / "checked.jsonl"


def mark_checked(store: RunStore, version: int, rows: int, records: Sequence[GroupRecord]) -> None:
    """Record that a published version, its batch and its groups' records were read and agree."""
    groups = {
        record.group_id: CheckedGroup(
            token=record.token, episodes=len(record.episodes), record=_stamp(store.group_path(record.group_id))
        )
        for record in records
    }
    line = CheckedVersion(
        version=version,
        batch=_stamp(store.batch_path(version)),
        manifest=_stamp(store.policy_path(version) / MANIFEST),
        rows=rows,
        # Each episode enters the ledger, and each with a reward is decided about once more.
        events=sum(len(record.episodes) + len(record.usable) for record in records),
        groups=groups,
    )
    path = checked_path(store)
    with raise_disk_errors(path), open(path, "ab") as file:
        file.write(orjson.dumps(line.model_dump(mode="json")) + b"\n")


def unchanged_versions(store: RunStore, stored: Mapping[str, Sequence[tuple[str, str]]]) -> dict[int, CheckedVersion]:
    """Return the checked versions, from 1 on, up to the first of which a file is another now.

    Args:
        stored: (episode id, token) of each group's stored trajectories, by group id.
    """
    lines = {line.version: line for line in _read(checked_path(store))}
    unchanged: dict[int, CheckedVersion] = {}
    stamps: dict[str, dict[str, Stamp]] = {}
    while (line := lines.get(len(unchanged) + 1)) is not None and _is_unchanged(store, line, stored, stamps):
        unchanged[line.version] = line
    return unchanged


def _is_unchanged(
    store: RunStore,
    line: CheckedVersion,
    stored: Mapping[str, Sequence[tuple[str, str]]],
    stamps: dict[str, dict[str, Stamp]],
) -> bool:
    try:
        if line.batch != _stamp(store.batch_path(line.version)):
            return False
        if line.manifest != _stamp(store.policy_path(line.version) / MANIFEST):
            return False
    except FileNotFoundError:
        return False
    for group_id, group in line.groups.items():
        phase = phase_of(group_id)
        if phase not in stamps:
            stamps[phase] = _stamps_of(store.group_path(group_id).parent)
        kept = sum(token == group.token for _, token in stored.get(group_id, ()))
        if stamps[phase].get(f"{group_id}.json") != group.record or kept != group.episodes:
            return False
    return True


def _stamps_of(folder: Path) -> dict[str, Stamp]:
    """Return the stamp of each file of a folder, by its name. The folder is listed once."""
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: _of(entry.stat()) for entry in entries}


def _stamp(path: Path) -> Stamp:
    return _of(path.stat())


def _of(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns


def _read(path: Path) -> Iterator[CheckedVersion]:
    """Yield the lines up to the first that is torn or of another version of this code."""
    for data in _lines(path):
        try:
            yield CheckedVersion.model_validate_json(data)
        except ValidationError:
            return


def _lines(path: Path) -> Iterable[bytes]:
    return path.read_bytes().splitlines() if path.exists() else ()
