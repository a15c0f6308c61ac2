"""An update by two trainer processes on two "machines" (Dask workers of this one) against the same
two on one."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

from distributed import LocalCluster
from prefect.logging import disable_run_logger

from benchmarks import Figure
from benchmarks.rows import make_store, quickstart, write_batch
from tasks_lib.config import TrainConfig
from tasks_lib.processes.dask_clients import TRAINER_RESOURCE
from tasks_lib.processes.trainer import Trainer
from training.environment import TORCH_ENVIRONMENT
from training.ledger.store import RunStore

ROUNDS, UPDATES = 3, 3
"""Rounds of both arms in turn, and updates of each; the first one of a trainer warms up and is left
out."""
PROCESSES = 2


def run() -> list[Figure]:
    """Median seconds of an update, and of its passes, of both arms."""
    config = quickstart()
    seconds: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="rollwright-nodes-") as name, disable_run_logger():
        made = make_store(Path(name) / "rows", config)
        with LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2,
            threads_per_worker=2,
            resources={TRAINER_RESOURCE: 1},
            env=TORCH_ENVIRONMENT,
            dashboard_address=None,
        ) as cluster:
            for number in range(ROUNDS):
                for nodes in seconds:
                    store = RunStore(shutil.copytree(made.root, Path(name) / f"{number}-{nodes}"))
                    seconds[nodes] += updates(store, spread(config, nodes, cluster.scheduler_address))
    update = {nodes: statistics.median(sum(each.values()) for each in found) for nodes, found in seconds.items()}
    passes = {nodes: statistics.median(each["train"] for each in found) for nodes, found in seconds.items()}
    return [
        Figure("update, one machine", update[1], "s", ""),
        Figure("update, two machines", update[2], "s", ""),
        Figure("update, two machines / one", update[2] / update[1], "ratio", ""),
        Figure("training passes, two machines / one", passes[2] / passes[1], "ratio", ""),
    ]


def spread(config: TrainConfig, nodes: int, address: str) -> TrainConfig:
    """The configuration with two trainer processes on so many machines of the cluster."""
    trainer = config.trainer.model_copy(update={"processes": PROCESSES, "nodes": nodes, "torch_threads": 1})
    cluster = config.cluster.model_copy(update={"address": address})
    return config.model_copy(update={"trainer": trainer, "cluster": cluster})


def updates(store: RunStore, config: TrainConfig) -> list[dict[str, float]]:
    """Seconds of the parts of each update but the first."""
    found = []
    with Trainer(store, config) as trainer:
        for version in range(1, UPDATES + 1):
            write_batch(store, version)
            found.append(trainer.update(version)["seconds"])
    return found[1:]
