"""Runs one machine's ranks of a trainer that is spread over several machines.

Command: ``python -m training.trainer.control.node --run-dir DIR --node K --address ADDRESS``. It
starts torchrun, which starts the ranks of this machine, and ends them all when the run's owner
sends ``end`` or is gone. Whatever starts it on the machine (a Dask worker, ssh, srun, a Kubernetes
Job) needs the same installation and the run's folder under the same path.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from envs.types import ConfigError
from training.environment import TORCH_ENVIRONMENT
from training.ledger.store import RunStore
from training.trainer.control.link import ORPHAN_EXIT_CODE, LinkToOwner
from training.trainer.control.watchdog import end_processes
from training.trainer.spec import TrainerSpec, read_spec

JOIN_SECONDS = 300
"""Limit of torchrun's wait for the other machines."""
END_SECONDS = 10.0
"""Time between SIGTERM and SIGKILL."""


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
    variables = node_environment(spec, address)
    over = threading.Event()
    reasons: list[str] = []

    def end(reason: str) -> None:
        reasons.append(reason)
        over.set()

    link = LinkToOwner(spec.owner, spec.token, f"node {node}", end)
    with open(store.trainer_path / f"node-{node}.log", "ab") as log:
        process = subprocess.Popen(
            torchrun(spec, store.root, node, address),
            env={**os.environ, **variables},
            cwd=project_root(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def watch() -> None:
        process.wait()
        over.set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        over.wait()
    finally:
        end_process_tree(process, END_SECONDS)
        link.leave()
    if reasons:
        print(f"trainer node {node}: {reasons[0]}", file=sys.stderr, flush=True)
        return ORPHAN_EXIT_CODE
    return process.returncode


def torchrun(spec: TrainerSpec, run_dir: Path, node: int, address: str) -> list[str]:
    """Return the command line of torchrun's agent; the first machine hosts the rendezvous."""
    options = {
        "nnodes": spec.trainer.nodes,
        "nproc-per-node": spec.trainer.processes // spec.trainer.nodes,
        "max-restarts": 0,
        "rdzv-backend": "c10d",
        "rdzv-endpoint": spec.rendezvous,
        "rdzv-id": spec.token[:8],
        "rdzv-conf": f"is_host={int(node == 0)},join_timeout={JOIN_SECONDS}",
        "local-addr": address,
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "training.trainer", "--run-dir", str(run_dir)]


def node_environment(spec: TrainerSpec, address: str) -> dict[str, str]:
    """Return the variables of a machine's ranks; gloo and NCCL use the address's interface."""
    interface = interface_of(address)
    per_node = spec.trainer.processes // spec.trainer.nodes
    threads = spec.trainer.torch_threads or max(1, (os.cpu_count() or 1) // per_node)
    return {
        **TORCH_ENVIRONMENT,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
    }


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address.

    Raises:
        ConfigError: no interface has it.
    """
    interfaces = {
        entry.address: name
        for name, addresses in psutil.net_if_addrs().items()
        for entry in addresses
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }
    if address not in interfaces:
        raise ConfigError(
            f"no network interface of {socket.gethostname()} has the address {address}; "
            f"it has {', '.join(sorted(interfaces))}"
        )
    return interfaces[address]


def end_process_tree(process: subprocess.Popen[bytes], timeout: float) -> None:
    """End a process and its descendants.

    The process gets SIGTERM; after ``timeout`` seconds SIGKILL ends what is left.
    """
    if process.poll() is not None:
        return  # another process may have its id by now
    try:
        leader = psutil.Process(process.pid)
        members = [leader, *leader.children(recursive=True)]
    except psutil.NoSuchProcess:
        members = []
    # torchrun forwards SIGTERM to its ranks. They have their own sessions, so each needs its own
    # SIGKILL.
    end_processes(members, timeout, first_alone=True)
    process.wait(timeout)


def project_root() -> Path:
    """Return the folder of the ``training`` package, where ``-m training.trainer`` is found."""
    return Path(__file__).resolve().parents[3]


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
