"""One update moves the weights alike, however its rows are divided: micro-batches, processes, ZeRO
stages."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training.trainer.control.launch import command, group_environment
from training.trainer.control.processes import project_root

from .conftest import HandMadeRun, make_run, make_spec
from .gradients import CONTROL, METRICS, NUMBERS, REDUCTION, WAYS

ROWS = 12
LIMIT = 1.5e-6
"""Of the difference's norm, as a share of the step's: float32 sums in another order."""
GROUPS = {1: [*WAYS], 2: ["one", "short", "zero0", "zero3"]}
"""Divisions by the number of processes. Of two, `one` is ZeRO 2."""


def start_ranks(root: Path, processes: int, folder: Path, *arguments: str) -> None:
    """Run `gradients` in a group of processes."""
    words = command(root, processes)
    words[words.index("training.trainer") :] = ["tests.training.trainer.gradients", root, folder, *arguments]
    ended = subprocess.run(
        list(map(str, words)),
        env={**os.environ, **group_environment(make_spec(trainer={"processes": processes}))},
        cwd=project_root(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> tuple[HandMadeRun, Path]:
    """A run, and what one process writes of it: it imports the trainer's libraries once."""
    run = make_run(tmp_path_factory.mktemp("gradients") / "run", checkpoint)
    run.fill(1, ROWS)
    folder = tmp_path_factory.mktemp("alone")
    start_ranks(run.store.root, 1, folder, NUMBERS, *GROUPS[1])
    return run, folder


@pytest.mark.slow
def test_bfloat16_gradients_add_up_in_float32_and_none_moves_if_not_finite(alone: tuple[HandMadeRun, Path]) -> None:
    found = json.loads((alone[1] / METRICS).read_text())
    expected = found.pop("expected")
    # Of copies of one micro-batch any sum in bfloat16 stands still in most elements. Under ZeRO 3
    # the model itself rounds elsewhere, so that only its copies are compared.
    norms = {stage: [found.pop(f"{name} {stage}") for name in ("norm", "one", "copies")] for stage in (1, 2, 3)}
    for _, one, copies in norms.values():
        assert copies == pytest.approx(one, rel=1e-5), norms
    assert norms[1][0] == pytest.approx(expected, rel=1e-4) and norms[2][0] == pytest.approx(expected, rel=1e-4), norms
    assert [found.pop(f"masters {stage}") for stage in (1, 2, 3)] == ["kept"] * 3
    assert len(found) == 14 and {*found.values()} == {"refused, and moved nothing"}, found


@pytest.mark.slow
def test_an_update_is_the_same_for_every_packing_process_count_and_stage(
    tmp_path: Path, alone: tuple[HandMadeRun, Path]
) -> None:
    run, of_one = alone
    start_ranks(run.store.root, 2, tmp_path, REDUCTION, *GROUPS[2])
    for factor, reduced, in_bfloat16 in json.loads((tmp_path / METRICS).read_text()).values():
        assert factor == pytest.approx(0.5, rel=1e-4), (
            "each process's loss is multiplied by two, and DeepSpeed takes the mean"
        )
        assert reduced < 1e-5 < 1e-4 < in_bfloat16, "bfloat16 gradients of processes add up in float32"
    before = load_file(run.store.policy_path(0) / "model.safetensors")
    steps, metrics = {}, {}
    for processes, folder in {1: of_one, 2: tmp_path}.items():
        for way in GROUPS[processes]:
            after = load_file(folder / way / "model.safetensors")
            assert after.keys() == before.keys()
            metrics[processes, way] = json.loads((folder / way / METRICS).read_text())
            steps[processes, way] = torch.cat([(after[key] - before[key]).double().flatten() for key in before])
    one = metrics[1, "one"]
    for found in metrics.values():
        assert 0 < one["ess"] < 1 and found["ess"] == pytest.approx(one["ess"], rel=1e-4)
        assert found["kl_by_images"] == pytest.approx(one["kl_by_images"], rel=1e-4)
    first = steps[1, "one"]
    found = {key: float((step - first).norm() / first.norm()) for key, step in steps.items()}
    control = found.pop((1, CONTROL))
    assert all(gap <= LIMIT for gap in found.values()), found
    assert control > 20 * LIMIT, "a difference of a thousandth in one of the rows would be seen"
