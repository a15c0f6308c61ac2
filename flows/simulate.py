"""Simulate a run before paying for it.

Episodes an hour, idle shares, staleness, and which resource binds.

Compare settings, with given times or those of a finished run:

    python -m flows.simulate --set 'compare.staleness=[0,1,2,4]' --set 'compare.browsers=[32,64,128]'
    python -m flows.simulate --set run=runs/mine --set 'compare.staleness=[0,2]'

No browser, model or trainer is started, and no Prefect server: a setting takes about a second.
`binds` names what is in full use (engine, trainer, browsers), or `pacing`: waits
that come from batches and staleness.
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import flow
from prefect.context import FlowRunContext

from tasks_lib.commands.command_line import run_command
from tasks_lib.config import resolve_path
from tasks_lib.config.parameters import named_after, takes_groups
from tasks_lib.folder.progress import RunProgress
from tasks_lib.preflight.flows import check_once, check_simulation
from tasks_lib.processes.prefect_run import completed
from tasks_lib.report.artifacts import artifact_key, publish_table
from tasks_lib.simulation.compare import compare, describe_row, document_of, rows_of
from tasks_lib.simulation.config import SimulateConfig
from training.ledger.store import write_json


@flow(name="simulate", flow_run_name=named_after(SimulateConfig), persist_result=False)
@takes_groups(SimulateConfig)
def simulate(config: SimulateConfig) -> list[dict[str, Any]]:
    """Simulate settings of a run and put the fastest first.

    Args:
        config: Times, machine, schedule, and the values to compare.

    Returns:
        A row for each setting: its values, consumed episodes an hour, seconds of an iteration and
        of an update, idle shares, mean staleness, and what binds.
    """
    check_once(check_simulation, config)
    with RunProgress(1) as progress:
        lines = list(compare(config))
        rows = rows_of(lines)
        if FlowRunContext.get() is not None:
            publish_table(artifact_key(config.run_id, "settings"), rows)
        for row in rows:
            progress.log(describe_row(row))
        if config.output:
            write_json(resolve_path(config.output), document_of(lines))
            progress.log(f"results: {config.output}")
    return completed(f"{len(rows)} settings; the first: {describe_row(rows[0])}", rows)


if __name__ == "__main__":
    sys.exit(run_command(simulate, SimulateConfig, check_simulation, sys.argv[1:]))
