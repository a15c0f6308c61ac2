"""What goes into a shard and what comes out: plain, frozen values."""

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
"""Goes up when the same request gives other tasks: shards of an older one are then built anew."""

OF_THE_WRITING = ("models", "temperature", "max_tokens", "json_mode", "seed")
"""What of an endpoint decides its answers; how it is reached, paced and paid does not."""


class RejectionStage(StrEnum):
    """Where a row was given up."""

    READ = "read"
    """It is no task, or not in the form of its source."""
    RUBRIC = "rubric"
    """No rubric could be written for it."""
    CHECK = "check"
    """Its parts contradict each other."""
    PART = "part"
    """A sub-task, not the task that it is of."""
    DUPLICATE = "duplicate"
    """There is one like it already."""


class Rejected(Record):
    """A row that is not in the set, and why."""

    source: str
    stage: RejectionStage
    task_id: str = ""
    where: str = ""
    """File and row, where it was not a task yet."""
    reason: str
    """Field and reason."""
    task: dict[str, Any] | None = None
    """The row as far as it came; of a part, the task that it was to be a part of."""


class ShardRequest(Record):
    """What decides a shard."""

    source: Source
    shard: int = Field(ge=0)
    seed: int = Field(ge=0)
    fingerprint: str
    """Of the source's files."""
    writer: WriterConfig | None = None
    give_up: bool = False
    """Reject tasks that the endpoint gave no answer for, instead of leaving the shard to another time."""
    folder: str
    """Of all shards."""
    base: str
    """That relative paths of the source begin in."""
    cache: str = ""
    """Folder of the writer's replies, if its configuration names none."""
    spent: str = ""
    """File in which the writer's budget is counted, for all shards of a build; empty: the shard's own budget."""

    @property
    def digest(self) -> str:
        """sha256 over what decides the content; folders, and how the endpoint is reached, do not."""
        shown = self.model_dump(mode="json", exclude={"folder", "base", "cache", "spent"})
        if self.writer is not None:
            endpoint = shown["writer"]["endpoint"]
            # Shards from before there was "structured" are those of its default.
            names = [*OF_THE_WRITING, "structured"] if endpoint["structured"] != Structured.NONE else OF_THE_WRITING
            shown["writer"]["endpoint"] = {name: endpoint[name] for name in names}
        return hashlib.sha256(orjson.dumps([BUILD_VERSION, shown], option=orjson.OPT_SORT_KEYS)).hexdigest()

    def path(self, suffix: str) -> Path:
        """One of the shard's files."""
        return Path(self.folder) / self.source.name / f"{self.shard:05d}{suffix}"


class ShardLine(Record):
    """A line of a shard."""

    row: int
    """Place of its candidate in the source."""
    keys: tuple[str, ...]
    """Two tasks that share one are the same."""
    part_of: str | None = None
    """Id of the task that it is a part of."""
    task: WebTask


class ShardReport(Record):
    """What is in a shard."""

    digest: str
    """Of its request."""
    read: int = 0
    """Good tasks of the source."""
    written: int = 0
    """Of them, those that a model wrote the rubric of."""
    parts: int = 0
    """Sub-tasks."""
    tasks: int = 0
    """Lines of the shard, sub-tasks included."""
    rejected: dict[RejectionStage, int]
    whole: dict[str, int]
    """Tasks that were not taken apart, by reason."""
    tasks_sha256: str
    rejected_sha256: str
    requests: int = 0
    """Sent to the writer's endpoint."""
    tokens: int = 0
