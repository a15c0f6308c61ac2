"""Writes SLURM's batch script for a cluster spec, which starts cluster and run.

Options are those of ``man sbatch``; each group of machines is a component of a heterogeneous job.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tasks_lib.config.cluster_spec import ClusterSpec, run_settings
from tasks_lib.config.reading import PROJECT
from tasks_lib.processes.cluster_start import launches

PREFECT_SERVER = [
    'if [ -z "${PREFECT_API_URL:-}" ]; then',
    '    .venv/bin/prefect server start --host "$SCHEDULER" &',
    '    export PREFECT_API_URL="http://$SCHEDULER:4200/api"',
    '    until curl --silent --fail --output /dev/null "$PREFECT_API_URL/health"; do sleep 2; done',
    "fi",
]
"""Lines that start a Prefect server that all machines reach, unless there is one already.

Workers get its address with each task.
"""


def batch_script(spec: ClusterSpec, arguments: Sequence[str], places: int = 1) -> str:
    """Return the script. The scheduler and the flow run on the first machine of the first group.

    Args:
        arguments: ``--preset`` and ``--set`` of the run.
        places: Episodes that a worker plays at once (``rollout.concurrency`` of the run).
    """
    common = [
        f"--job-name={spec.name}",
        f"--time={spec.hours}:00:00",
        f"--output={spec.storage}/clusters/{spec.name}-%j.log",
    ]
    common += [f"--partition={spec.partition}"] * bool(spec.partition) + [f"--account={spec.account}"] * bool(
        spec.account
    )
    head: list[str] = []
    for number, group in enumerate(spec.groups):
        needs = [
            f"--nodes={group.size}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={group.cpus}",
            f"--mem={group.memory_gb}G",
        ]
        needs += [f"--gpus-per-node={group.gpus}"] * bool(group.gpus)
        head += ([] if number == 0 else ["#SBATCH hetjob"]) + [f"#SBATCH {option}" for option in (*common, *needs)]
    lines = ["#!/usr/bin/env bash", *head, "set -euo pipefail", f"cd {shlex.quote(spec.project or str(PROJECT))}"]
    lines += ["SCHEDULER=$(hostname)", "export SCHEDULER"]
    for number, group in enumerate(spec.groups):
        lines.append(f'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_{number}")')
        lines += [f"{group.role.upper()}_{index}=${{hosts[{index}]}}" for index in range(group.size)]
    lines.append("trap 'kill $(jobs -p) 2> /dev/null || true' EXIT")
    component: dict[str, int] = {group.role: number for number, group in enumerate(spec.groups)}
    for launch in launches(spec, arguments, places):
        role = launch.name.partition("-")[0]
        where = [f"--het-group={component.get(role, 0)}", "--nodes=1", "--ntasks=1", f"--nodelist={launch.host}"]
        lines.append(f"{_quoted(['srun', '--overlap', *where, *launch.whole_command])} &")
    lines += _wait(spec) + PREFECT_SERVER
    lines.append(_quoted([".venv/bin/python", "-m", "flows.train", *arguments, *run_settings(spec)]))
    return "\n".join(lines) + "\n"


def _wait(spec: ClusterSpec) -> list[str]:
    """Return the lines that wait for the vLLM servers.

    They take minutes to start, and a run checks them when it starts.
    """
    return [
        f'until curl --silent --fail --output /dev/null "{address}/health"; do sleep 5; done'
        for address in (*spec.servers(), *filter(None, [spec.judge]))
    ]


def _quoted(command: Sequence[str]) -> str:
    """Quote a command for bash: parts with a variable in double quotes, others as `shlex.quote`
    does."""
    return " ".join(
        '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"' if "$" in part else shlex.quote(part)
        for part in command
    )
