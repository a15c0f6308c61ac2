"""Builds one shard of a source: accepted tasks, rejected rows and a report.

A shard that has its report is done and is not built again. The report has the digests of the
request and of both files, so a shard whose request, source or file has changed is built anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from envs.chat import Ledger
from envs.tasks.assembly.finish import Outcome, finish
from envs.tasks.assembly.line_files import file_digest, open_lines
from envs.tasks.assembly.records import Rejected, RejectionStage, ShardReport, ShardRequest
from envs.tasks.assembly.sources import candidates
from envs.tasks.authoring import RubricWriter, WriterConfig
from envs.tasks.rows import TaskProblem
from envs.types import ConfigError, JudgeError

TASKS, REJECTED, REPORT = ".jsonl", ".rejected.jsonl", ".json"
"""Suffixes of a shard's files."""

MAX_CONCURRENT = 64
"""Most candidates in progress: enough to keep an endpoint busy. They are held in memory."""


def build_shard(request: ShardRequest) -> ShardReport:
    """Build a shard unless it exists. Idempotent; two concurrent builds write the same.

    Raises:
        ConfigError: something is to be written, and there is no writer, or its key is not set.
        DamagedLedger: the writers' spending is not known. Only replies are kept; repair the ledger
            and build the shard again.
        JudgeError: the writer's endpoint gave no answer for some tasks. Only its replies are kept;
            build the shard again.
        TaskError: the source does not exist any more.
    """
    return read_report(request) or asyncio.run(_build(request))


def read_report(request: ShardRequest) -> ShardReport | None:
    """Return the report of a shard that is complete and of this request, else ``None``."""
    try:
        report = ShardReport.model_validate_json(request.path(REPORT).read_bytes())
        expected = (report.digest, report.tasks_sha256, report.rejected_sha256)
        actual = (request.digest, file_digest(request.path(TASKS)), file_digest(request.path(REJECTED)))
    except (OSError, ValidationError):
        return None
    return report if expected == actual else None


async def _build(request: ShardRequest) -> ShardReport:
    if not request.source.needs_writer:
        return await _write(request, None)
    async with RubricWriter(_writer_config(request), Ledger(Path(request.spent)) if request.spent else None) as writer:
        return await _write(request, writer)


def _writer_config(request: ShardRequest) -> WriterConfig:
    config = request.writer
    if config is None:
        raise ConfigError(f"source {request.source.name}: something is to be written, and no writer is configured")
    if config.endpoint.cache is not None or not request.cache:
        return config
    return config.model_copy(update={"endpoint": config.endpoint.model_copy(update={"cache": Path(request.cache)})})


async def _write(request: ShardRequest, writer: RubricWriter | None) -> ShardReport:
    rejected: Counter[RejectionStage] = Counter()
    whole: Counter[str] = Counter()
    unanswered: list[str] = []
    counts: Counter[str] = Counter()
    with open_lines(request.path(TASKS)) as tasks, open_lines(request.path(REJECTED)) as rejected_file:
        async for outcome in _finish_all(request, writer):
            for line in outcome.lines:
                tasks.write(line.model_dump_json(exclude_none=True))
            for rejection in outcome.rejected:
                rejected_file.write(rejection.model_dump_json(exclude_none=True))
                rejected[rejection.stage] += 1
            if outcome.whole is not None:
                whole[outcome.whole] += 1
            unanswered += outcome.unanswered
            counts["parts"] += max(0, len(outcome.lines) - 1)
            for name in ("written", "requests", "tokens", "read"):
                counts[name] += getattr(outcome, name)
            if writer is not None and writer.damage is not None:
                raise writer.damage
        if unanswered:
            raise JudgeError(
                f"source {request.source.name}, shard {request.shard}: {len(unanswered)} questions got no answer (the first: {unanswered[0]}); "
                "replies are kept: start the build again (with a greater budget, if that is used up), or set give_up to reject these tasks"
            )
    report = ShardReport(
        digest=request.digest,
        tasks=tasks.count,
        rejected=dict(sorted(rejected.items())),
        whole=dict(sorted(whole.items())),
        tasks_sha256=tasks.sha256,
        rejected_sha256=rejected_file.sha256,
        **counts,
    )
    with open_lines(request.path(REPORT)) as file:
        file.write(report.model_dump_json(indent=2))
    return report


async def _finish_all(request: ShardRequest, writer: RubricWriter | None) -> AsyncIterator[Outcome]:
    """Yield the outcome of each row of the shard, in the order of its source."""
    problems: list[TaskProblem] = []
    rest = candidates(request.source, request.shard, Path(request.base), problems.append, request.seed)
    more = True
    while more:
        batch = list(islice(rest, MAX_CONCURRENT))
        more = len(batch) == MAX_CONCURRENT
        if problems:
            yield Outcome(rejected=_reject_unread(request, problems))
            problems.clear()
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(finish(request, candidate, writer)) for candidate in batch]
        for finished in running:
            yield finished.result()


def _reject_unread(request: ShardRequest, problems: list[TaskProblem]) -> list[Rejected]:
    """Return the rows that are no tasks, each with all its problems."""
    rows: dict[str, list[str]] = {}
    for problem in problems:
        path = Path(problem.path)
        shown = path.relative_to(request.base) if path.is_relative_to(request.base) else path
        where = f"{shown}:{problem.row}" if problem.row else str(shown)
        rows.setdefault(where, []).append(f"{problem.field}: {problem.reason}")
    name = request.source.name
    return [
        Rejected(source=name, stage=RejectionStage.READ, where=where, reason="; ".join(reasons))
        for where, reasons in rows.items()
    ]
