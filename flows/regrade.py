"""Grade the stored episodes of a run again.

After a judge was out of reach, or by another judge, rubric parts or weights.

    python -m flows.regrade --set run=runs/mine --set 'judge={"base_url": "http://127.0.0.1:8000/v1", "models": {"default": "Qwen3-VL-8B"}}'
    python -m flows.regrade --set run=runs/mine --set which=all --set name=longer --set rewards.length=0.1

Starting the same again goes on with the episodes that are left. The report of the run is written
again, with what was graded. See docs/rewards.md.
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import flow
from rich.markup import escape

from tasks_lib.commands.command_line import run_command
from tasks_lib.config.parameters import named_after, takes_groups
from tasks_lib.folder.lock import run_lock
from tasks_lib.folder.progress import RunProgress
from tasks_lib.preflight.flows import check_once, check_regrading
from tasks_lib.preflight.tasks import ask_judge
from tasks_lib.processes.prefect_run import completed
from tasks_lib.regrading.batches import Regrading, describe_regrading, figure
from tasks_lib.regrading.config import RegradeConfig
from tasks_lib.report import build_report
from tasks_lib.report.artifacts import artifact_key, publish_table
from tasks_lib.rollouts.cluster import RolloutTaskRunner, use_cluster


@flow(name="regrade", flow_run_name=named_after(RegradeConfig), task_runner=RolloutTaskRunner(), persist_result=False)
@takes_groups(RegradeConfig)
def regrade(config: RegradeConfig) -> dict[str, Any]:
    """Grade stored episodes again, in batches, without playing them.

    Args:
        config: The run, which of its episodes, and what grades them.

    Returns:
        What is in ``summary.json`` of ``regraded/NAME`` of the run.
    """
    check_once(check_regrading, config)
    regrading = Regrading(config)
    with run_lock(regrading.folder), RunProgress(1) as progress:
        if requests := regrading.requests() if regrading.remaining() else []:
            graded = [task for request in requests for task in request.tasks.values()]
            for what in ask_judge(requests[0], graded, here=not config.cluster.address, key="judge"):
                progress.log(escape(what))
        sites = {site for request in requests for site in request.sites}
        live = requests[0].live if requests else None
        try:
            if regrading.episodes:
                with (
                    use_cluster(config.cluster, None, sites=sites, live=live),
                    progress.phase(f"grading {len(regrading.episodes)} episodes of {config.run_dir}"),
                ):
                    regrading.run()
        finally:  # also when it was stopped: what is graded by then shows
            report = build_report(regrading.store.root)
        summary = regrading.summary()
        rows = [{"what": name, "value": value} for name, value in summary.items() if name not in ("abstained", "judge")]
        rows += [
            {"what": f"judge: {name} {what}", "value": "no limit" if value is None else value}
            for name, account in summary.get("judge", {}).items()
            for what, value in account.items()
        ]
        rows += [{"what": f"abstained: {cause}", "value": count} for cause, count in summary["abstained"].items()]
        publish_table(artifact_key(config.run_id, "regraded"), rows)
        for row in rows:
            progress.log(f"{row['what'].replace('_', ' '):24s} {figure(row['value'])}")
        progress.log(f"rewards: {regrading.folder}")
        progress.log(f"report:  {report}")
    return completed(describe_regrading(summary), summary)


if __name__ == "__main__":
    sys.exit(run_command(regrade, RegradeConfig, check_regrading, sys.argv[1:]))
