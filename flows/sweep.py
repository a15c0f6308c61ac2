"""Run a sweep: train several times with different values, and compare.

An arm is a run of ``flows.train``, a sweep is the flow run of those.

    python -m flows.sweep --set base.preset=quickstart --set 'grid={"seed": [0, 1], "algorithm.group_size": [4, 8]}' --dry-run
    python -m flows.sweep --preset quickstart-seeds

Starting the same sweep again goes on: finished arms are only read, interrupted ones go on, failed
ones are tried again, arms that are not named any more are dropped. See docs/concepts.md.
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import flow
from rich.markup import escape

from flows.train import train
from tasks_lib.commands.command_line import run_command
from tasks_lib.config.parameters import named_after, parameters_of, takes_groups
from tasks_lib.folder.progress import RunProgress
from tasks_lib.preflight.flows import check_sweep
from tasks_lib.processes.prefect_run import announce_run, completed
from tasks_lib.report.artifacts import artifact_key, publish_table
from tasks_lib.sweeps.approval import ask_for_budget
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.sweeps.deployed import run_deployed
from tasks_lib.sweeps.summary import lines, table_rows
from tasks_lib.sweeps.sweeping import describe_dropped, open_sweep, run_as_subflows


@flow(name="sweep", flow_run_name=named_after(SweepConfig), persist_result=False)
@takes_groups(SweepConfig)
def sweep(config: SweepConfig) -> dict[str, Any]:
    """Train the arms of a sweep, as subflows or as flow runs of a deployment, and leave a
    comparison of them.

    Args:
        config: The configuration that all arms share, and the values that differ.

    Returns:
        The content of ``sweep.json`` in the sweep's folder.
    """
    announce_run("sweep", config.run_id, config.run_dir, preset=config.preset)
    progress = RunProgress(1)  # only its lines: the bar is the arms'

    def log(message: str) -> None:
        progress.log(escape(message))

    with progress.shared_clock(), open_sweep(config) as run:
        log(f"sweep {config.run_id} in {run.store.root}: {len(run.unfinished())} of {len(run.arms)} arms to train")
        for record in run.dropped:
            log(describe_dropped(record))
        ask_for_budget(run, log)
        if config.deployment:
            run_deployed(run, log)
        else:
            run_as_subflows(run, lambda arm: train(**parameters_of(arm)), log)
        publish_table(artifact_key(config.run_id, "sweep"), table_rows(run.summary))
        for line in lines(run.summary):
            log(line)
        log(f"report:  {run.report}")
        run.check()
        return completed(lines(run.summary)[-1], run.summary.model_dump(mode="json"))


if __name__ == "__main__":
    sys.exit(run_command(sweep, SweepConfig, check_sweep, sys.argv[1:]))
