"""Make an initial policy for reinforcement learning: pre-train, clone demonstrations, check a gate.

A policy below the gate is refused.

    python -m flows.warm_start --preset reader
    python -m flows.warm_start --set base=datasets/policies/reader --set cloning_updates=5 --set trainer.learning_rate=0.0005

Starting the same warm start again goes on from what is there; a finished one only prints its
result. See docs/warm-start.md.
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import flow

from tasks_lib.commands.command_line import run_command
from tasks_lib.config import WarmStartConfig
from tasks_lib.config.parameters import named_after, takes_groups
from tasks_lib.folder.progress import RunProgress
from tasks_lib.preflight.flows import check_once, check_warm_start
from tasks_lib.processes.prefect_run import completed
from tasks_lib.report.artifacts import artifact_key, publish_table
from tasks_lib.rollouts.cluster import RolloutTaskRunner, record_workers_browsers, use_cluster
from tasks_lib.warm_start.stages import check_gate, measured_rows, measured_words, open_warm_start


@flow(
    name="warm_start",
    flow_run_name=named_after(WarmStartConfig),
    task_runner=RolloutTaskRunner(),
    persist_result=False,
)
@takes_groups(WarmStartConfig)
def warm_start(config: WarmStartConfig) -> dict[str, Any]:
    """Pre-train a policy, clone scripted demonstrations, and publish it if its sampled success
    passes the gate.

    Args:
        config: The whole configuration; every field has a default.

    Returns:
        What is in ``recipe.json`` of the published checkpoint.
    """
    check_once(check_warm_start, config)
    with open_warm_start(config) as run, RunProgress(1) as progress:
        if run.finished:
            progress.log(f"warm start {config.run_id} is finished already: {run.output}")
            return completed(f"finished already: {run.output}", run.record())
        progress.log(f"warm start {config.run_id} in {run.store.root}")
        with progress.phase("taking the base" if config.base else f"pre-training for {config.recipe.steps} steps"):
            run.pre_train()
        with use_cluster(
            config.cluster, run.warm_request(), sites={task.site for task in run.tasks}, live=run.rollouts.live
        ) as workers:
            record_workers_browsers(run.store, config.rollout)
            if config.cloning_updates:
                with progress.phase(f"collecting {config.demonstrations} demonstrations"):
                    shown = run.demonstrate(workers)
                progress.log(f"{shown['mean']:.3f} of {shown['n']} demonstrations succeeded")
                with progress.phase(f"cloning in {config.cloning_updates} updates"):
                    run.clone()
            with progress.phase(f"measuring on {config.gate_episodes} validation episodes, sampled"):
                sampled = run.measure(workers, greedy=False)
            check_gate(sampled, config.gate)
            with progress.phase(f"measuring on {config.gate_episodes} validation episodes, greedily"):
                greedy = run.measure(workers, greedy=True)
        record = run.publish(sampled, greedy)
        publish_table(artifact_key(config.run_id, "warm-start"), measured_rows(sampled, greedy))
        progress.log(f"{measured_words(sampled, greedy)}: {run.output}")
    return completed(measured_words(sampled, greedy), record)


if __name__ == "__main__":
    sys.exit(run_command(warm_start, WarmStartConfig, check_warm_start, sys.argv[1:]))
