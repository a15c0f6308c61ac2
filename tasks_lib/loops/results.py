"""Writes ``result.json``: the figures of a finished run."""

from __future__ import annotations

from typing import Any

from tasks_lib.config import describe_split
from tasks_lib.folder.metrics import describe_success, sum_by_name
from tasks_lib.folder.metrics_lines import EvaluationMetrics, IterationMetrics
from tasks_lib.folder.values import versions
from tasks_lib.loops.run import TrainingRun
from tasks_lib.rollouts.evaluation import read_evaluation
from training.ledger.store import write_json


def write_result(run: TrainingRun, *, set_up: float, loop: float, peak_rss_mb: float) -> dict[str, Any]:
    """Compute, write and return the result of a run whose last version is evaluated.

    Args:
        run: Finished run.
        set_up: Seconds from the start of this process's flow run to its loop.
        loop: Seconds of the loop, earlier processes of the run included.
        peak_rss_mb: Peak memory of all processes together, in MB.
    """
    last = run.version
    before, after = (read_evaluation(run.store, version) for version in (0, last))
    lines = run.metrics.lines(IterationMetrics)
    phases = sum_by_name(line.seconds for line in lines)
    total = phases.pop("total", 0.0)
    evaluations = sum(line.seconds or 0.0 for line in run.metrics.lines(EvaluationMetrics))
    result = {
        "run_id": run.config.run_id,
        "preset": run.config.preset,
        "split": run.config.evaluation.split,
        "success_before": _interval(before),
        "success_after": _interval(after),
        "success_by_kind": {
            kind: {"before": before["by_kind"][kind]["mean"], "after": entry["mean"], "n": entry["n"]}
            for kind, entry in after["by_kind"].items()
        },
        "seconds": {"total": set_up + loop, "set_up": set_up, "evaluate": evaluations, **phases},
        "rollout_seconds": sum_by_name(line.rollout_split for line in lines),
        "orchestration_share": phases["orchestrate"] / max(total, 1e-9),
        "peak_rss_mb": peak_rss_mb,
        "episodes": run.journal.episodes(),
        "abstentions": run.journal.abstentions(),
        "updates": last,
        "seed": run.config.seed,
        "versions": versions(),
    }
    write_json(run.store.result_path, result, sealed=True)
    return result


def result_sentence(result: dict[str, Any]) -> str:
    """Return the result as a sentence."""
    before, after = result["success_before"], result["success_after"]
    split = describe_split(result["split"])
    kinds = len(result["success_by_kind"])
    return (
        f"{split} success {describe_success(before, 2)} -> {describe_success(after, 2)} over {kinds} task kind{'s' * (kinds != 1)} "
        f"(n = {after['n']}), {result['updates']} updates, {result['seconds']['total'] / 60:.1f} min"
    )


def _interval(evaluation: dict[str, Any]) -> dict[str, Any]:
    return {name: evaluation[name] for name in ("mean", "low", "high", "n")}
