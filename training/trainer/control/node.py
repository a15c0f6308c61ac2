"""Runs one machine's ranks of a trainer that is spread over several machines.

Command: ``python -m training.trainer.control.node --run-dir DIR --node K --address ADDRESS``. It
starts torchrun, which starts the ranks of this machine, and ends them all when the run's owner
sends ``end`` or is gone. Whatever starts it on the machine (a Dask worker, ssh, srun, a Kubernetes
Job) needs the same installation and the run's folder under the same path.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from envs.types import ConfigError
from training.ledger.store import RunStore
from training.trainer.control.link import LinkToOwner
from training.trainer.control.processes import (
    ORPHAN_EXIT_CODE,
    end_process_trees,
    rank_environment,
    start_process,
    torchrun,
)
from training.trainer.spec import TrainerSpec, read_spec

JOIN_SECONDS = 300
"""Limit of torchrun's wait for the other machines."""
END_SECONDS = 10.0
"""Time between SIGTERM and SIGKILL."""
POLL_SECONDS = 0.1
"""Time between two looks at torchrun and at what the owner has sent."""


def run_node(run_dir: Path, node: int, address: str) -> int:
    """Run one machine's ranks to their end and return torchrun's exit code.

    Args:
        node: Number of the machine, from 0.
        address: Address of this machine for the other machines.

    Raises:
        ConfigError: The run's trainer has fewer machines, or this machine lacks the address.
    """
    store = RunStore(run_dir)
    spec = read_spec(store)
    if not 0 <= node < spec.trainer.nodes:
        raise ConfigError(
            f"there is no node {node}: the trainer of {store.root} has {spec.trainer.nodes} (trainer.nodes)"
        )
    variables = rank_environment(spec, address)
    command = torchrun(store.root, rendezvous_options(spec, node, address))
    reasons: list[str] = []
    link = LinkToOwner(spec.owner, spec.token, f"node {node}", reasons.append)
    process = start_process(command, variables, store.trainer_path / f"node-{node}.log")
    try:
        while process.poll() is None and not reasons:
            time.sleep(POLL_SECONDS)
    finally:
        end_process_trees([process], END_SECONDS)
        link.leave()
    if reasons:
        print(f"trainer node {node}: {reasons[0]}", file=sys.stderr, flush=True)
        return ORPHAN_EXIT_CODE
    return process.returncode


def rendezvous_options(spec: TrainerSpec, node: int, address: str) -> dict[str, object]:
    """Return torchrun's options on one machine; the first machine hosts the rendezvous."""
    return {
        "nnodes": spec.trainer.nodes,
        "nproc-per-node": spec.trainer.processes // spec.trainer.nodes,
        "max-restarts": 0,
        "rdzv-backend": "c10d",
        "rdzv-endpoint": spec.rendezvous,
        "rdzv-id": spec.token[:8],
        "rdzv-conf": f"is_host={int(node == 0)},join_timeout={JOIN_SECONDS}",
        "local-addr": address,
    }


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.trainer.control.node")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--address", required=True)
    options = parser.parse_args()
    return run_node(options.run_dir.resolve(), options.node, options.address)


if __name__ == "__main__":
    sys.exit(main())
