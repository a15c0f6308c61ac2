"""Merges shards into a task set without duplicates; the manifest is written last.

The same shards give the same bytes in every file. No file holds durations or the place of the set.
"""

from __future__ import annotations

import heapq
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from envs.ends import bucket_of
from envs.tasks.assembly.line_files import LineFile, file_digest, open_lines
from envs.tasks.assembly.records import Rejected, RejectionStage, ShardLine, ShardReport, ShardRequest
from envs.tasks.assembly.shard import REJECTED, TASKS, read_report
from envs.tasks.assembly.sources import GenerateSource
from envs.tasks.parquet import save_parquet
from envs.tasks.stream import json_row
from envs.tasks.tree import TreeLayout, write_tree
from envs.types import StorageError, TaskError, WebTask

MANIFEST_VERSION = 1
MAX_REASONS = 50
"""Number of reasons in the manifest; the others are counted together."""


class Layout(StrEnum):
    """Arrangement of a set's files in its folder."""

    TREE = "tree"
    """``difficulty/{1,2-3,4-6,7+}/…``"""
    FILE = "file"
    """``tasks.jsonl`` or ``tasks.parquet``."""


@dataclass(frozen=True, slots=True)
class SetPlan:
    """Destination and form of a set."""

    folder: Path
    layout: Layout
    form: TreeLayout
    config: dict[str, Any]
    """Description of the build in the manifest."""

    @property
    def manifest(self) -> Path:
        """The manifest. It is written last: without it there is no set."""
        return self.folder / "manifest.json"

    @property
    def rejected(self) -> Path:
        """The file with every row that is not in the set, and the reason."""
        return self.folder / "rejected.jsonl"


@dataclass
class _Merge:
    """Counts kept while shards are merged."""

    seen: dict[str, str] = field(default_factory=dict)
    """Id of the task that has a content key."""
    ids: dict[str, str] = field(default_factory=dict)
    """Name of the source that has a task id."""
    by_site: Counter[str] = field(default_factory=Counter)
    by_difficulty: Counter[str] = field(default_factory=Counter)
    by_split: Counter[str] = field(default_factory=Counter)
    by_source: dict[str, dict[str, Any]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    tasks: int = 0


def merge_shards(plan: SetPlan, requests: Iterable[Sequence[ShardRequest]]) -> dict[str, Any]:
    """Merge shards into a set and return its manifest.

    Args:
        requests: The shards' requests, one sequence for each source.

    Raises:
        StorageError: a shard is missing or incomplete.
        TaskError: no task is left.
    """
    merge = _Merge()
    requests = [[*source] for source in requests]
    _tidy(requests)
    draft = plan.folder / ".draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    with open_lines(plan.rejected) as rejected:
        tasks = (task for source in requests for task in _new_tasks(source, merge, rejected))
        files = _write_set(draft, tasks, plan)
    if not merge.tasks:
        shutil.rmtree(draft)
        raise TaskError(f"no task is left: all rows were rejected, see {plan.rejected}")
    manifest = _make_manifest(plan, merge, rejected, files)
    _move(draft, plan.folder)
    with open_lines(plan.manifest) as file:
        file.write(orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode())
    return manifest


def is_whole(plan: SetPlan) -> bool:
    """Return True if the set exists and each file has the digest in its manifest."""
    try:
        manifest = orjson.loads(plan.manifest.read_bytes())
        files = {
            **{name: entry["sha256"] for name, entry in manifest["files"].items()},
            plan.rejected.name: manifest["rejected_sha256"],
        }
        return all(file_digest(plan.folder / name) == expected for name, expected in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _new_tasks(requests: Sequence[ShardRequest], merge: _Merge, rejected: LineFile) -> Iterator[WebTask]:
    """Yield the new tasks of a source; write rejected and repeated ones to ``rejected``."""
    source = requests[0].source
    name = source.name
    reports = [_require_report(request) for request in requests]
    stages: Counter[str] = Counter()

    def refuse(given_up: Rejected) -> None:
        rejected.write(given_up.model_dump_json(exclude_none=True))
        stages[given_up.stage] += 1
        # The field alone: the rest of a reason differs from row to row.
        merge.reasons[f"{given_up.stage}: {given_up.reason.split(':', 1)[0]}"] += 1

    for request in requests:
        for row in _read_lines(request.path(REJECTED)):
            refuse(Rejected.model_validate_json(row))
    tasks = repeats = whole_tasks = 0
    left_out: set[str] = set()
    most = source.spec.count if isinstance(source, GenerateSource) else None
    for line in in_order(requests):
        if whole_tasks == most and line.part_of is None:
            break
        if (reason := _explain_duplicate(line, merge, left_out)) is None:
            tasks += 1
            whole_tasks += line.part_of is None
            _count(line, name, merge)
            yield line.task
            continue
        if most is not None:
            # A generator draws some requests twice and then goes on drawing: counted, but not worth
            # a row each.
            repeats += 1
            if line.part_of is None:
                left_out.add(line.task.task_id)
            continue
        if line.part_of is None:
            left_out.add(line.task.task_id)
        row_of = line.task.model_dump(mode="json", exclude_none=True)
        task_id = line.task.task_id
        refuse(Rejected(source=name, stage=RejectionStage.DUPLICATE, task_id=task_id, reason=reason, task=row_of))
    whole = sum((Counter(report.whole) for report in reports), Counter[str]())
    merge.by_source[name] = {
        **{key: sum(getattr(report, key) for report in reports) for key in ("read", "written", "parts")},
        "tasks": tasks,
        **({"repeats": repeats} if most is not None else {}),
        "rejected": dict(sorted(stages.items())),
        "whole": dict(sorted(whole.items())),
    }


def _explain_duplicate(line: ShardLine, merge: _Merge, left_out: set[str]) -> str | None:
    """Return the reason why a task is not new, or ``None`` if it is."""
    if line.part_of in left_out:
        return f"part: of {line.part_of}, which was left out"
    if (first := merge.ids.get(line.task.task_id)) is not None:
        return f"task_id: is used already, in source {first}"
    for key in line.keys:
        if (same := merge.seen.get(key)) is not None:
            return f"content: the same as {same}"
    return None


def _count(line: ShardLine, source: str, merge: _Merge) -> None:
    task = line.task
    merge.tasks += 1
    merge.ids[task.task_id] = source
    merge.seen.update(dict.fromkeys(line.keys, task.task_id))
    merge.by_site[task.site] += 1
    merge.by_difficulty[bucket_of(task.difficulty)] += 1
    merge.by_split.update(map(str, task.seeds))


def _write_set(folder: Path, tasks: Iterator[WebTask], plan: SetPlan) -> dict[Path, int]:
    """Write the tasks below a folder. Return the files, with the number of tasks in each."""
    if plan.layout is Layout.TREE:
        return write_tree(folder, tasks, plan.form)
    path = folder / f"tasks.{plan.form}"
    if plan.form is TreeLayout.PARQUET:
        return {path: save_parquet(path, tasks)}
    with open_lines(path) as file:
        for task in tasks:
            file.write(json_row(task))
    return {path: file.count}


def in_order(requests: Sequence[ShardRequest]) -> Iterator[ShardLine]:
    """Yield the lines of a source's shards in the order of the source."""
    if isinstance(requests[0].source, GenerateSource):  # each shard follows the one before
        return chain.from_iterable(map(_read_shard_lines, requests))
    return heapq.merge(*map(_read_shard_lines, requests), key=lambda line: line.row)


def count_writer_requests(requests: Sequence[ShardRequest]) -> int:
    """Return the number of different requests in the shards of a generator."""
    keys: set[str] = set()
    for request in requests:
        for row in _read_lines(request.path(TASKS)):
            line = orjson.loads(row)
            if "part_of" not in line:
                keys.add(line["keys"][0])
    return len(keys)


def _tidy(requests: Sequence[Sequence[ShardRequest]]) -> None:
    """Remove temporary files that killed processes left beside complete shards."""
    for folder in {request.path("").parent for source in requests for request in source}:
        for left in folder.glob(".*.tmp"):
            left.unlink()


def _move(draft: Path, folder: Path) -> None:
    """Move the draft's content into the folder, replacing what an interrupted build left there."""
    for path in sorted(draft.iterdir()):
        target = folder / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
    draft.rmdir()


def _make_manifest(plan: SetPlan, merge: _Merge, rejected: LineFile, files: dict[Path, int]) -> dict[str, Any]:
    draft = plan.folder / ".draft"
    common = merge.reasons.most_common()
    common.sort(key=lambda item: (-item[1], item[0]))
    reasons = dict(common[:MAX_REASONS])
    if rest := sum(count for _, count in common[MAX_REASONS:]):
        reasons["others"] = rest
    return {
        "manifest_version": MANIFEST_VERSION,
        "config": plan.config,
        "tasks": merge.tasks,
        "by_difficulty": dict(sorted(merge.by_difficulty.items())),
        "by_split": dict(sorted(merge.by_split.items())),
        "by_site": dict(sorted(merge.by_site.items())),
        "by_source": merge.by_source,
        "rejected": rejected.count,
        "reasons": reasons,
        "rejected_sha256": rejected.sha256,
        "files": {
            path.relative_to(draft).as_posix(): {"tasks": count, "sha256": file_digest(path)}
            for path, count in sorted(files.items())
        },
    }


def _require_report(request: ShardRequest) -> ShardReport:
    report = read_report(request)
    if report is None:
        raise StorageError(f"{request.path(TASKS)} is not there or not whole; start the build again")
    return report


def _read_shard_lines(request: ShardRequest) -> Iterator[ShardLine]:
    for line in _read_lines(request.path(TASKS)):
        yield ShardLine.model_validate_json(line)


def _read_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\n")
