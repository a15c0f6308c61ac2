"""A trainer spread over workers of a Dask cluster, which stand for machines: the same updates, and
it goes on when one is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger
from safetensors.torch import load_file

from envs.types import ConfigError
from tasks_lib.config import TrainConfig
from tasks_lib.processes.dask_clients import connect_client
from tasks_lib.processes.trainer import Trainer
from tasks_lib.processes.trainer_nodes import trainer_workers
from tests.flows.services import DaskCluster, Services
from tests.training.trainer.conftest import HandMadeRun, checkpoint, make_run
from training.ledger.store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.dask]
__all__ = ["checkpoint"]

OFFER = ("--resources", "trainer=1")


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    started = Services(tmp_path_factory.mktemp("services"))
    yield started
    started.stop_all()


def config(**trainer: object) -> dict[str, object]:
    values = {"torch_threads": 1, "processes": 2, "minibatch_rows": 20, **trainer}
    return {"iterations": 2, "policy": {"template": "qwen2_vl"}, "trainer": values}


def weights(store: RunStore, version: int) -> dict[str, object]:
    return dict(load_file(store.policy_path(version) / "model.safetensors"))


def test_too_few_machines_are_named_with_the_command_that_adds_one(services: Services) -> None:
    cluster = DaskCluster(services)
    with connect_client(cluster.address) as client, pytest.raises(ConfigError) as said:
        trainer_workers(client, 2, 0.0)
    assert (
        f"trainer.nodes: 2, but 0 workers of the Dask cluster offer the resource 'trainer'; start more with: dask worker {cluster.address}"
        in str(said.value)
    )
    services.stop("scheduler")


def test_machines_need_a_cluster_and_equal_shares() -> None:
    with pytest.raises(ValueError, match=r"cluster\.address is empty"):
        TrainConfig.model_validate(config(nodes=2))
    with pytest.raises(ValueError, match=r"trainer\.processes: 3 cannot be shared evenly by 2 machines"):
        TrainConfig.model_validate({**config(nodes=2, processes=3), "cluster": "tcp://127.0.0.1:1"})


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kill", [False, pytest.param(True, marks=pytest.mark.netns)], ids=["unbroken", "one is killed"]
)
def test_two_machines_take_the_steps_of_one(services: Services, checkpoint: Path, tmp_path: Path, kill: bool) -> None:
    one, two = (make_run(tmp_path / name, checkpoint) for name in ("one", "two"))
    fill(one), fill(two)
    with Trainer(one.store, TrainConfig.model_validate(config())) as trainer:
        for version in range(1, 2 + kill):
            trainer.update(version)
    cluster = DaskCluster(services)
    with ExitStack() as stack, disable_run_logger():
        stack.callback(services.stop, "scheduler")
        for name in "ab":
            stack.enter_context(cluster.worker(name, *OFFER))
        spread = TrainConfig.model_validate({**config(nodes=2), "cluster": cluster.address})
        trainer = stack.enter_context(Trainer(two.store, spread))
        trainer.update(1)
        if kill:
            killed = time.monotonic()
            services.kill("b")
            services.start("b", "dask", "worker", cluster.address, "--nthreads", "2", "--no-dashboard", *OFFER)
            trainer.update(2)
            print(f"{time.monotonic() - killed:.1f} s from the kill to the next version")
    for version in range(1, 2 + kill):
        expected, found = weights(one.store, version), weights(two.store, version)
        assert expected.keys() == found.keys()
        assert all((expected[name] == found[name]).all() for name in expected), version
    assert (two.store.trainer_path / "node-1.log").exists()


def fill(run: HandMadeRun) -> None:
    for version in (1, 2):
        run.fill(version, 40)
