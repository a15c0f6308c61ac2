"""Build a task set: import, generate, write rubrics, decompose.

From our own files, the sets of others and generators; with rubrics that a model writes, and sub-
tasks.

    python -m flows.build_tasks --preset bundled-tasks
    python -m flows.build_tasks --set 'sources=[{kind: files, name: own, paths: [datasets/tasks/miniwob.jsonl]}]' --dry-run
    python -m flows.build_tasks --check datasets/tasks/bundled.jsonl    # can its tasks be solved? (a file, folder or glob)

Starting the same build again goes on from the shards that are there; a finished one only prints its
result. See docs/task-sets.md.
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import flow

from tasks_lib.building.config import BuildTasksConfig
from tasks_lib.building.shards import describe_set, open_build, split_warnings, summary_rows
from tasks_lib.commands.command_line import run_command
from tasks_lib.commands.task_check import check_command, file_to_check
from tasks_lib.config.parameters import named_after, takes_groups
from tasks_lib.folder.progress import RunProgress
from tasks_lib.preflight.flows import check_build, check_once
from tasks_lib.processes.prefect_run import completed
from tasks_lib.report.artifacts import artifact_key, publish_table
from tasks_lib.rollouts.cluster import RolloutTaskRunner, use_cluster


@flow(
    name="build-tasks",
    flow_run_name=named_after(BuildTasksConfig),
    task_runner=RolloutTaskRunner(),
    persist_result=False,
)
@takes_groups(BuildTasksConfig)
def build_tasks(config: BuildTasksConfig) -> dict[str, Any]:
    """Build a task set from its sources, without doubles, with every row that was left out and why.

    Args:
        config: Sources, writer and form; only the sources have no default.

    Returns:
        What is in ``manifest.json`` of the set's folder.
    """
    check_once(check_build, config)
    shards = sum(source.shards for source in config.sources)
    with open_build(config) as build, RunProgress(shards) as progress:
        if build.finished:
            progress.log(f"set {config.run_id} is finished already: {build.folder}")
            manifest = build.manifest()
            return completed(describe_set(manifest), manifest)
        progress.log(f"set {config.run_id} in {build.folder}")
        if build.missing_shards():
            if line := build.spending():
                progress.log(line)
            with use_cluster(config.cluster, None), progress.phase(f"building {shards} shards"):
                build.run(progress)
            if line:
                progress.log(build.spending())
        with progress.phase("putting the shards together"):
            manifest = build.merge()
        publish_table(artifact_key(config.run_id, "tasks"), summary_rows(manifest))
        for row in summary_rows(manifest):
            progress.log(f"{row['what']:40s} {row['count']:,}")
        for warning in split_warnings(manifest):
            progress.log(f"warning: {warning}")
        progress.log(f"set:      {build.folder}")
        if manifest["rejected"]:
            progress.log(f"rejected: {build.plan.rejected}")
    return completed(describe_set(manifest), manifest)


if __name__ == "__main__":
    if (file := file_to_check(sys.argv[1:])) is not None:
        sys.exit(check_command(file))
    sys.exit(run_command(build_tasks, BuildTasksConfig, check_build, sys.argv[1:]))
