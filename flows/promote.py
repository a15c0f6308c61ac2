"""Give a policy version of a run an alias, such as best or staging.

    python -m flows.promote runs/quickstart-seed0 --alias best
    python -m flows.promote runs/quickstart-seed0 --version 20 --alias staging --approval
    python -m flows.promote runs/quickstart-seed0 --alias staging --remove

The alias is a checkpoint: policy.checkpoint=runs/quickstart-seed0@best. The weights of its version
are never removed. With --approval a person confirms it in the Prefect server's UI.
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import flow
from rich.markup import escape

from tasks_lib.commands.command_line import run_command
from tasks_lib.config.parameters import named_after, takes_groups
from tasks_lib.config.promotion import PromoteConfig
from tasks_lib.folder.progress import RunProgress
from tasks_lib.folder.promotion import choose_promotion, person
from tasks_lib.preflight.flows import check_promotion
from tasks_lib.processes.approval import ask_approval
from tasks_lib.processes.prefect_run import completed, emit, label_folder
from training.ledger.aliases import remove_alias, set_alias


@flow(name="promote", flow_run_name=named_after(PromoteConfig), persist_result=False)
@takes_groups(PromoteConfig)
def promote(config: PromoteConfig) -> dict[str, Any]:
    """Give an alias to a version of a run, or take it away.

    Args:
        config: The run, its version, and the alias.

    Returns:
        The content of ``aliases/NAME.json`` in the run's folder.
    """
    check_promotion(config)
    label_folder(config.run_dir)
    chosen, by = choose_promotion(config), person()
    progress = RunProgress(1)
    if config.remove:
        alias = remove_alias(chosen.store, config.alias)
        sentence = f"{config.run_id} is taken away; it was version {alias.version}"
        progress.log(escape(sentence))
        return completed(sentence, alias.model_dump())
    if config.approval:
        progress.log(f"{escape(chosen.describe())}: paused until a person approves it on the flow run's page")
        by = ask_approval(chosen.describe(), config.approval_hours).by
    alias = set_alias(chosen.store, config.alias, chosen.version, by)
    folder = chosen.store.policy_path(alias.version)
    progress.log(f"{escape(config.run_id)} is version {alias.version}: {folder}")
    payload = {"alias": alias.name, "version": alias.version, "folder": str(folder), "by": by}
    emit("rollwright.version.promoted", chosen.store.root.name, payload)
    return completed(f"{config.run_id} is version {alias.version}", alias.model_dump())


if __name__ == "__main__":
    sys.exit(run_command(promote, PromoteConfig, check_promotion, sys.argv[1:]))
