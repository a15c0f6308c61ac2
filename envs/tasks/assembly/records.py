"""Requests, lines and reports of shards: plain, frozen values."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field

from envs.rewards.judge import Structured
from envs.tasks.assembly.sources import Source
from envs.tasks.authoring import WriterConfig
from envs.types import Record, WebTask

BUILD_VERSION = 1
"""Build version: increased when the same request gives other tasks. Older shards are built anew."""

ANSWER_FIELDS = ("models", "temperature", "max_tokens", "json_mode", "seed")
"""Fields of an endpoint that decide its answers. Connection, pacing and prices do not."""


class RejectionStage(StrEnum):
    """Stage at which a row was given up."""

    READ = "read"
    """The row is no task, or not in the form of its source."""
    RUBRIC = "rubric"
    """No rubric could be written for it."""
    CHECK = "check"
    """The parts of the task contradict each other."""
    PART = "part"
    """A sub-task was given up, not its task."""
    DUPLICATE = "duplicate"
    """The set already has an equal task."""


class Rejected(Record):
    """A row that is not in the set, and why."""

    source: str
    stage: RejectionStage
    task_id: str = ""
    where: str = ""
    """File and row, if it had not become a task yet."""
    reason: str
    """Field and reason."""
    task: dict[str, Any] | None = None
    """The row as far as it came; for a sub-task, the whole task."""


class ShardRequest(Record):
    """Everything that decides the content of a shard, and the places of its files."""

    source: Source
    shard: int = Field(ge=0)
    seed: int = Field(ge=0)
    fingerprint: str
    """Digest of the source's files."""
    writer: WriterConfig | None = None
    give_up: bool = False
    """Reject tasks that the endpoint gave no answer for, instead of failing the shard."""
    folder: str
    """Folder of all shards."""
    base: str
    """Folder that relative paths of the source start from."""
    cache: str = ""
    """Folder of the writer's replies, if its configuration names none."""
    spent: str = ""
    """File that counts the writer's budget for all shards; empty: the shard's own budget."""

    @property
    def digest(self) -> str:
        """sha256 over all that decides the content, without folders and connection settings."""
        shown = self.model_dump(mode="json", exclude={"folder", "base", "cache", "spent"})
        if self.writer is not None:
            endpoint = shown["writer"]["endpoint"]
            # Shards made before "structured" existed are those of its default.
            names = [*ANSWER_FIELDS, "structured"] if endpoint["structured"] != Structured.NONE else ANSWER_FIELDS
            shown["writer"]["endpoint"] = {name: endpoint[name] for name in names}
        return hashlib.sha256(orjson.dumps([BUILD_VERSION, shown], option=orjson.OPT_SORT_KEYS)).hexdigest()

    def path(self, suffix: str) -> Path:
        """Return the path of one of the shard's files."""
        return Path(self.folder) / self.source.name / f"{self.shard:05d}{suffix}"


class ShardLine(Record):
    """A line of a shard: a task or a sub-task."""

    row: int
    """Place of its candidate in the source."""
    keys: tuple[str, ...]
    """Content keys. Two tasks that share one are the same."""
    part_of: str | None = None
    """Id of the whole task, for a sub-task."""
    task: WebTask


class ShardReport(Record):
    """Counts and digests of a finished shard."""

    digest: str
    """Digest of the shard's request."""
    read: int = 0
    """Number of good tasks read from the source."""
    written: int = 0
    """Number of these whose rubric a model wrote."""
    parts: int = 0
    """Number of sub-tasks."""
    tasks: int = 0
    """Number of lines of the shard, sub-tasks included."""
    rejected: dict[RejectionStage, int]
    whole: dict[str, int]
    """Number of tasks without sub-tasks, by reason."""
    tasks_sha256: str
    rejected_sha256: str
    requests: int = 0
    """Number of requests sent to the writer's endpoint."""
    tokens: int = 0
