"""Train a web agent with reinforcement learning: one run, one Prefect flow run.

    python -m flows.train --preset quickstart
    python -m flows.train --preset quickstart --set algorithm.group_size=4 --dry-run

Starting the same run again goes on from what is committed; a finished one only prints its result.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any

from prefect import flow
from rich.markup import escape

from envs.types import DiskError, RollwrightError, Split
from tasks_lib.commands.command_line import run_command
from tasks_lib.config import TrainConfig, resolve_checkpoint
from tasks_lib.config.parameters import named_after, takes_groups
from tasks_lib.folder.checkpoints import publish_base
from tasks_lib.folder.metrics import MemoryMonitor
from tasks_lib.folder.progress import RunProgress
from tasks_lib.folder.values import finished_result
from tasks_lib.loops.alerts import watched_run
from tasks_lib.loops.asynchronous import AsynchronousLoop
from tasks_lib.loops.results import result_sentence, write_result
from tasks_lib.loops.run import open_run
from tasks_lib.loops.synchronous import SynchronousLoop
from tasks_lib.monitor.followed_run import serve_monitor
from tasks_lib.monitor.serving import PageServer
from tasks_lib.preflight.flows import check_once, check_training
from tasks_lib.preflight.tasks import ask_judge, some_of
from tasks_lib.preflight.workers import check_places
from tasks_lib.processes.prefect_run import announce_run, completed, run_as_task
from tasks_lib.processes.trainer import Trainer
from tasks_lib.report import build_report
from tasks_lib.report.artifacts import (
    publish_curve,
    publish_iteration_table,
    publish_links,
    publish_progress,
    run_address,
)
from tasks_lib.rollouts.cluster import RolloutTaskRunner, record_workers_browsers, scheduler_address, use_cluster
from tasks_lib.rollouts.shards import warm_up

# Who runs, and who waits for whom:
#
#     flow process (this file)          Dask workers                      trainer process
#     ────────────────────────          ────────────                      ───────────────
#     check, open the run folder
#     use_cluster ────────────────────> start: sites, browsers, engine
#     loop: groups of episodes ───────> play, grade, commit to the folder
#           batch of groups    ─────────────────────────────────────────> train, write the version
#           publish, evaluate  ───────> load the version, play held-out seeds
#     result.json, report.html
#
# The flow waits for workers and trainer; they exchange trajectories, batches and checkpoints
# through the run's folder alone (docs/architecture.md).

LOOPS = {"sync": SynchronousLoop, "async": AsynchronousLoop}


@flow(name="train", flow_run_name=named_after(TrainConfig), task_runner=RolloutTaskRunner(), persist_result=False)
@takes_groups(TrainConfig)
def train(config: TrainConfig) -> dict[str, Any]:
    """Train a policy on web tasks, evaluate it on held-out seeds, and leave a report.

    Args:
        config: The whole configuration; every field has a default.

    Returns:
        What is in ``result.json`` of the run's folder.
    """
    started = time.perf_counter()
    announce_run("train", config.run_id, config.run_dir, mode=config.mode, preset=config.preset)
    findings = check_once(check_training, config)
    with open_run(config) as run, RunProgress(config.iterations) as progress, MemoryMonitor() as memory:
        if finished := finished_result(config, run.store):
            progress.log(f"run {config.run_id} is finished already: {run.store.root}")
            progress.log(f"[bold]{result_sentence(finished)}[/bold]")
            return completed(result_sentence(finished), finished)
        progress.log(f"run {config.run_id} in {run.store.root}")
        for what in (*findings, *filter(None, [run.choices]), *run.repairs):
            progress.log(what)
        config = run.config  # with what is derived
        evaluator = config.evaluation.where != "boundary"
        sites, live = run.tasks.sites, config.tasks.live
        trainers = config.trainer.nodes
        check_places(config.cluster, run.places, evaluator=evaluator, trainers=trainers, sites=sites, live=live)
        graded = some_of(run.tasks, (Split.TRAIN, Split(config.evaluation.split)))
        for what in ask_judge(run.rollouts.request([], 0), graded, here=not config.cluster.address):
            progress.log(escape(what))
        progress.log("starting the trainer, and workers with their browsers and the policy …")
        checkpoint = resolve_checkpoint(config.policy.checkpoint)
        run_as_task("publish", "publish-v000000", lambda: publish_base(run.store, checkpoint))
        with (
            Trainer(run.store, config) as trainer,
            run.serve(config.serving_of_rollouts, "serving") as servers,
            run.serve(config.serving_of_evaluations, "serving-evaluation") as own_servers,
            use_cluster(
                config.cluster, run.served_by(servers), run.places, evaluator=evaluator, sites=sites, live=live
            ) as workers,
            ExitStack() as monitored,
        ):
            run.measured_by(own_servers)
            monitored.enter_context(watched_run(run.store, config.alerts, progress.log))
            if config.monitor:
                address = monitored.enter_context(serve_monitor(run.store, scheduler_address(), PageServer()))
                progress.log(f"monitor: {address}")
            warm_up(run.warm_request(), workers)
            record_workers_browsers(run.store, config.rollout)
            set_up = time.perf_counter() - started
            loop = LOOPS[config.mode](run, trainer, workers, progress)
            try:
                if loop.evaluation_due:
                    loop.evaluate()
                loop.announce_remaining_work()
                while loop.unfinished:
                    line = loop.iterate()
                    publish_iteration_table(config.run_id, line)
                    publish_progress(config.run_id, line.iteration + 1, config.iterations)
                    if loop.evaluation_due:
                        loop.evaluate()
                        publish_curve(run.store, run.metrics)
            except DiskError:
                raise  # the report could not be written either
            except RollwrightError:
                progress.log(f"report:  {build_report(run.store.root)}")  # the error may be of what is in it
                raise
        result = write_result(run, set_up=set_up, loop=loop.wall, peak_rss_mb=memory.peak_mb)
        report = build_report(run.store.root)
        publish_curve(run.store, run.metrics)
        publish_links(run.store, report, config.view)
        progress.log(f"report:  {report}")
        progress.log(f"episodes: {run_address(run.store, config.view)} (python -m flows.view)")
        progress.log(f"result:  {run.store.result_path}")
        progress.log(f"[bold]{result_sentence(result)}[/bold]")
    return completed(result_sentence(result), result)


if __name__ == "__main__":
    sys.exit(run_command(train, TrainConfig, check_training, sys.argv[1:]))
