"""Builds task sets from sources in shards and merges them.

A source is read in shards. Its tasks get rubrics, are checked and split into sub-tasks, and are
written; the shards are then merged without duplicates.

::

    source ── candidates ── rubric ── check ── sub-tasks ── a shard's files
    shards ── duplicates out ── tree or file, rejected.jsonl, manifest.json

`sources`, `rubrics`, `shard` and `merge` are the modules in this order.

A shard is a pure function of its request and is written whole or not at all, so an interrupted
build continues where it stopped. No Prefect here: `flows/build_tasks.py` runs the shards. See
docs/task-sets.md.
"""

from envs.tasks.assembly.finish import check_difficulty
from envs.tasks.assembly.merge import Layout, SetPlan, count_writer_requests, is_whole, merge_shards
from envs.tasks.assembly.records import RejectionStage, ShardReport, ShardRequest
from envs.tasks.assembly.shard import build_shard, read_report
from envs.tasks.assembly.sources import AnySource, FileSource, GenerateSource, ImportSource, Source, fingerprint

__all__ = [
    "AnySource",
    "FileSource",
    "GenerateSource",
    "ImportSource",
    "Layout",
    "RejectionStage",
    "SetPlan",
    "ShardReport",
    "ShardRequest",
    "Source",
    "build_shard",
    "check_difficulty",
    "count_writer_requests",
    "fingerprint",
    "is_whole",
    "merge_shards",
    "read_report",
]
