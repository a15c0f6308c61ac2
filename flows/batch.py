"""Play tasks with any agent: a model behind an endpoint, or a Python callable.

An OpenAI-compatible endpoint (chat completions or Responses, text or function calling), or
``agent(observation) -> action`` of yours. A checkpoint is evaluated by flows.evaluate.

    python -m flows.batch --set endpoint.address=http://127.0.0.1:8000/v1 --set endpoint.model=Qwen3-VL-8B --agent tool --vlm
    python -m flows.batch --set function=my_agents:act --task-ids miniwob/click-test miniwob/click-link --max-concurrent 8

Starting it again under the same run_id plays the episodes that are left; a finished one is only
read. --only-failed also plays those again that ended with an error. See docs/batch.md.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from prefect import flow
from prefect.context import FlowRunContext
from rich.markup import escape

from envs.types import EngineError
from tasks_lib.batch.batch import BatchRun
from tasks_lib.batch.config import BatchConfig
from tasks_lib.batch.summary import describe
from tasks_lib.commands.command_line import run_command
from tasks_lib.config.parameters import named_after, takes_groups
from tasks_lib.folder.failed_start import undo_failed_start
from tasks_lib.folder.lock import run_lock
from tasks_lib.folder.progress import RunProgress
from tasks_lib.preflight.batch import check_batch
from tasks_lib.preflight.flows import check_once
from tasks_lib.processes.prefect_run import announce_run, completed
from tasks_lib.report.artifacts import artifact_key, publish_table
from training.ledger.store import RunStore


@flow(name="batch", flow_run_name=named_after(BatchConfig), persist_result=False)
@takes_groups(BatchConfig)
def batch(config: BatchConfig) -> dict[str, Any]:
    """Play tasks with an agent, each in an episode of its own, and count what came of it.

    Args:
        config: Tasks, agent, endpoint and limits.

    Returns:
        What is in ``summary.json`` of the batch's folder.
    """
    announce_run("batch", config.run_id, config.run_dir)
    findings = check_once(check_batch, config)
    played = BatchRun(config)
    left = len(played.remaining())
    done = len(played.episodes) - left
    with (
        run_lock(config.run_dir),
        undo_failed_start(RunStore(config.run_dir)),
        RunProgress(len(played.episodes), done, "episodes") as progress,
    ):
        for what in findings:
            progress.log(escape(what))
        played.freeze()
        try:
            if left:
                progress.log(f"{config.agent_name} plays {left} episodes, {config.max_concurrent} at once …")
                asyncio.run(played.play(progress))
        finally:  # also when it was stopped: what is finished by then shows
            summary = played.summary() if any(played.results()) else {}
        if FlowRunContext.get() is not None:
            publish_table(artifact_key(config.run_id, "batch"), [{"result": line} for line in describe(summary)])
        for line in describe(summary):
            progress.log(escape(line))
        progress.log(f"page:    {config.run_dir / 'index.html'}")
        progress.log(f"result:  {config.run_dir / 'summary.json'}")
        if not summary["valid_only"]["n"]:
            raise EngineError("no episode has a reward; mend what is named above, then add --only-failed")
    return completed(describe(summary)[0], summary)


if __name__ == "__main__":
    sys.exit(run_command(batch, BatchConfig, check_batch, sys.argv[1:]))
