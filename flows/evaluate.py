"""Evaluate a policy on a task set.

Any checkpoint folder, or a version that a run published, also by its alias (runs/x@best).

    python -m flows.evaluate --set policy.checkpoint=runs/quickstart-seed0/policies/v000020 --set episodes=320

A model behind an OpenAI-compatible endpoint is evaluated in the same way:

    python -m flows.evaluate --set policy_endpoint.address=https://api.openai.com/v1 --set policy_endpoint.model=… --set policy.prompt=tools

Starting it again under the same run_id goes on with the episodes that are left; a finished one is
only read.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from prefect import flow
from rich.markup import escape

from envs.types import JudgeError, Split
from tasks_lib.commands.command_line import run_command
from tasks_lib.config import EvaluateConfig, describe_split, resolve_checkpoint
from tasks_lib.config.parameters import named_after, takes_groups
from tasks_lib.folder.checkpoints import evaluated_version, publish_base, with_template
from tasks_lib.folder.failed_start import undo_failed_start
from tasks_lib.folder.lock import run_lock
from tasks_lib.folder.metrics import describe_success
from tasks_lib.folder.progress import RunProgress
from tasks_lib.folder.task_sets import open_tasks
from tasks_lib.folder.values import freeze_config
from tasks_lib.loops.alerts import AbstentionAlert, watched_run
from tasks_lib.monitor.followed_run import serve_monitor
from tasks_lib.monitor.serving import PageServer
from tasks_lib.preflight.flows import check_evaluation, check_once
from tasks_lib.preflight.tasks import ask_judge, some_of
from tasks_lib.processes.prefect_run import announce_run, completed
from tasks_lib.processes.serving import serve_policy
from tasks_lib.report import build_report
from tasks_lib.report.artifacts import artifact_key, publish_links, publish_table, run_address
from tasks_lib.rollouts.cluster import RolloutTaskRunner, record_workers_browsers, scheduler_address, use_cluster
from tasks_lib.rollouts.evaluation import evaluate_version, fit_default, is_outdated
from tasks_lib.rollouts.shards import Rollouts, describe_late_batches
from training.ledger.store import RunStore


@flow(name="evaluate", flow_run_name=named_after(EvaluateConfig), task_runner=RolloutTaskRunner(), persist_result=False)
@takes_groups(EvaluateConfig)
def evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """Success of one policy, with a 95 % interval, by task kind; leaves a report with the episodes.

    Args:
        config: Policy, tasks, number of episodes, split and decoding.

    Returns:
        ``{mean, low, high, n, by_kind, …}``, which is also in ``evaluations/v000020.json`` of the
        evaluation's folder, for version 20 of a run; ``v000000.json`` for a checkpoint that is no
        run's.
    """
    announce_run("evaluate", config.run_id, config.run_dir)
    findings = check_once(check_evaluation, config)
    config = with_template(config)
    tasks = open_tasks(config.tasks)
    store = RunStore(config.run_dir)
    with run_lock(config.run_dir), undo_failed_start(store), RunProgress(1) as progress:
        for what in findings:
            progress.log(what)
        freeze_config(config, store)
        checkpoint = resolve_checkpoint(config.policy.checkpoint).resolve()
        version = evaluated_version(store, checkpoint)
        if version not in store.versions():
            publish_base(store, checkpoint, version)
        rollouts = Rollouts(
            store,
            config.policy,
            config.rollout,
            seed=0,
            rewards=config.rewards,
            live=config.tasks.live,
            serving=config.serving,
            teacher=config.policy_endpoint,
        )
        if not store.evaluation_path(version).exists() or is_outdated(store, version):
            graded = some_of(tasks, [Split(config.split)])
            for what in ask_judge(rollouts.request([], version), graded, here=not config.cluster.address):
                progress.log(escape(what))
        local = config.policy_endpoint is None
        progress.log("starting workers with their browsers and the policy …")
        with (
            serve_policy(config.serving, config.policy, store, version) if local else nullcontext() as servers,
            use_cluster(config.cluster, None, sites=tasks.sites, live=config.tasks.live) as workers,
            watched_run(store, config.alerts, progress.log),
            serve_monitor(store, scheduler_address(), PageServer()) if config.monitor else nullcontext() as monitor,
        ):
            if monitor:
                progress.log(f"monitor: {monitor}")
            episodes = fit_default(config.episodes, tasks, Split(config.split))
            subject = checkpoint if local else config.subject
            progress.log(f"evaluating {subject} on {episodes} {describe_split(config.split)} episodes …")
            record_workers_browsers(store, config.rollout)
            result = evaluate_version(
                replace(rollouts, servers=servers),
                version,
                tasks,
                episodes=episodes,
                workers=workers,
                split=Split(config.split),
                greedy=config.greedy,
                actor="policy" if local else "teacher",
            )
        alert = AbstentionAlert(config.run_id, config.alerts.abstentions)
        alert.report({"version": version}, result["abstained"], len(result["episodes"]), result.get("causes", {}))
        rows = [
            {"kind": kind, "success": round(entry["mean"], 3) if entry["n"] else None, "n": entry["n"]}
            for kind, entry in result["by_kind"].items()
        ]
        publish_table(artifact_key(config.run_id, "evaluation"), rows)
        for kind, entry in result["by_kind"].items():
            progress.log(f"{kind:28s} {describe_success(entry)}  (n = {entry['n']})")
        report = build_report(store.root)
        publish_links(store, report, config.view)
        progress.log(f"report:  {report}")
        progress.log(f"episodes: {run_address(store, config.view)} (python -m flows.view)")
        progress.log(f"result:  {store.evaluation_path(version)}")
        if late := describe_late_batches(result.get("batches", {}), config.rollout.batch_deadline):
            progress.log(late)
        for cause, count in result.get("causes", {}).items():
            progress.log(f"{count} attempts without a reward: {escape(cause)}")
        sentence = f"success {describe_success(result)}, n = {result['n']}"
        progress.log(f"[bold]{sentence}[/bold]")
        if not result["n"]:
            raise JudgeError(
                f"no episode has a reward; mend what is named above, then start with another run_id; or, if it was a judge or a check and no "
                f"browser, grade again what was played: python -m flows.regrade --set run={store.root}"
            )
    return completed(sentence, result)


if __name__ == "__main__":
    sys.exit(run_command(evaluate, EvaluateConfig, check_evaluation, sys.argv[1:]))
