"""An asynchronous run whose versions are measured as adapters of their own, on the vLLM server that
training groups use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from envs.types import StopReason
from tasks_lib.processes.serving import PYTHON

from .conftest import Run
from .test_resume import check_measured, check_paced

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.dask]

ITERATIONS, SIZE, STALENESS = 4, 4, 2
SETTINGS = {
    "mode": "async",
    "pacing.staleness": STALENESS,
    "iterations": ITERATIONS,
    "rollout.groups_per_iteration": SIZE,
    "serving.engine": "vllm",
    "trainer.finetuning_type": "lora",
    "trainer.train_vision_tower": False,
    "evaluation.where": "adapter",
    "evaluation.every": 1,
    "evaluation.episodes": 32,
    "cluster.workers": 1,
}


@pytest.mark.timeout(1500)
def test_versions_are_measured_beside_training_groups_on_one_server(make_run: Callable[..., Run]) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no serving environment (.venv-vllm): run `make vllm`")
    run = make_run("measured", **SETTINGS)
    run.start()
    run.finish(1400)
    store = run.store
    assert not [each for each in store.episode_ids() if store.trajectory(each).stop_reason is StopReason.ENGINE_ERROR]
    check_paced(store, ITERATIONS, SIZE, STALENESS)
    check_measured(store, set(range(ITERATIONS + 1)))
    assert len(list(store.root.glob("serving*/*.log"))) == 1, "measuring has no server of its own"
    newer = [store.policy_path(version + 1) / "manifest.json" for version in range(ITERATIONS)]
    measured = [store.evaluation_path(version) for version in range(ITERATIONS)]
    late = [a.stat().st_mtime > b.stat().st_mtime for a, b in zip(measured, newer, strict=True)]
    assert any(late), "some were measured when the next version was there"
