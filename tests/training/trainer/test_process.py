"""The real trainer process: real LLaMA-Factory, real DeepSpeed, killed and restarted."""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from envs.types import TrainingError
from training.batches import BatchRow, TrainingBatch
from training.store import RunStore, atomic_write_bytes
from training.trainer.__main__ import take_lock
from training.trainer.launch import TrainerProcess
from training.trainer.setup import state_path
from training.trainer.spec import TrainerSpec
from training.trainer.watchdog import ORPHAN_EXIT_CODE

from .conftest import HandMadeRun, make_run, make_spec

PATIENCE = 300


def weights_sha256(store: RunStore, version: int) -> str:
    return hashlib.sha256((store.policy_path(version) / "model.safetensors").read_bytes()).hexdigest()


def wait_for_lock(store: RunStore) -> None:
    """Until the process is up; its watchdog starts before it takes the lock."""
    while not (store.trainer_path / "lock").exists():
        time.sleep(0.02)


def two_updates(run: HandMadeRun, spec: TrainerSpec) -> dict[str, Any]:
    """Train versions 1 and 2 without interruption, and a third one that overflows; the manifest of 2."""
    run.fill(1, 40)
    run.fill(2, 40)
    with TrainerProcess.start(run.store.root, spec) as trainer:
        manifest = trainer.wait_for_policy(2, PATIENCE)
        check_overflow_is_refused(run, trainer)
        return manifest


def check_overflow_is_refused(run: HandMadeRun, trainer: TrainerProcess) -> None:
    """Version 3 out of infinite gradients: it says so, and neither policy nor state appears."""
    batch = TrainingBatch.model_validate_json(run.store.batch_path(2).read_bytes())
    rows = tuple(row.model_copy(update={"advantage": 12345.0}) for row in batch.rows)
    batch = batch.model_copy(update={"version": 3, "policy_version_before": 2, "rows": rows})
    text = batch.model_dump_json().replace("12345.0", "Infinity")
    # At once: the trainer waits for this file.
    atomic_write_bytes(run.store.batch_path(3), text.encode())
    with pytest.raises(
        TrainingError, match=r"update v3: the gradient norm is (inf|nan) in minibatch 1 of 2, epoch 1 of 1"
    ):
        trainer.wait_for_policy(3, PATIENCE)
    assert run.store.versions() == [0, 1, 2]
    assert not state_path(run.store, 3).exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> HandMadeRun:
    """A run at version 2 whose trainer then refused a batch that names an unknown episode."""
    run = make_run(tmp_path_factory.mktemp("finished"), checkpoint)
    run.fill(1, 40)
    run.fill(2, 40)
    spec = make_spec(total_updates=3)
    with TrainerProcess.start(run.store.root, spec) as trainer:
        assert trainer.wait_until_ready(PATIENCE)["pid"] == trainer.pid
        trainer.wait_for_policy(2, PATIENCE)
        run.add_batch(3, [BatchRow(episode_id="ghost", step=0, advantage=1.0)])
        with pytest.raises(
            TrainingError, match=r"exit code 1.*TrainingError: batch v3: row ghost/0: trajectory ghost does not exist"
        ):
            trainer.wait_for_policy(3, PATIENCE)
        assert not trainer.alive and trainer.pids() == []
    return run


def test_policies_are_complete_checkpoints(finished: HandMadeRun) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    store = finished.store
    assert store.versions() == [0, 1, 2]
    assert len({weights_sha256(store, version) for version in (0, 1, 2)}) == 3
    manifest = store.manifest(2)
    assert (manifest["version"], manifest["parent"]) == (2, 1)
    assert manifest["batch"] == hashlib.sha256(store.batch_path(2).read_bytes()).hexdigest()
    assert manifest["files"]["model.safetensors"]["sha256"] == weights_sha256(store, 2)
    assert manifest["metrics"]["rows"] == 40 and manifest["metrics"]["grad_norm"] > 0
    assert set(manifest["seconds"]) == {"load", "collate", "proximal", "train", "save_state", "save_policy", "other"}
    model = AutoModelForImageTextToText.from_pretrained(store.policy_path(2))
    AutoProcessor.from_pretrained(store.policy_path(2))
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight
    before, after = (load_file(store.policy_path(version) / "model.safetensors") for version in (0, 2))
    assert {name: value.shape for name, value in before.items()} == {name: value.shape for name, value in after.items()}


def test_nothing_is_left_over(finished: HandMadeRun) -> None:
    root = finished.store.root
    assert not [path for path in root.rglob("*") if path.name.startswith(".tmp") or path.suffix == ".tmp"]
    assert sorted(path.name for path in (root / "trainer" / "state").iterdir()) == ["v000001", "v000002"]


def test_killed_and_restarted_gives_the_same_weights(finished: HandMadeRun, tmp_path: Path, checkpoint: Path) -> None:
    run = make_run(tmp_path / "killed", checkpoint)
    run.fill(1, 40)
    moment = random.Random(7).random()
    with TrainerProcess.start(run.store.root, make_spec(total_updates=3)) as trainer:
        first = trainer.wait_for_policy(1, PATIENCE)
        run.fill(2, 40)
        time.sleep(moment * sum(first["seconds"].values()))
        psutil.Process(trainer.pid).send_signal(signal.SIGKILL)
        with pytest.raises(TrainingError, match="exit code -9"):
            trainer.wait_for_policy(3, PATIENCE)
    with TrainerProcess.start(run.store.root, make_spec(total_updates=3)) as trainer:
        second = trainer.wait_for_policy(2, PATIENCE)
        check_overflow_is_refused(run, trainer)
    assert weights_sha256(run.store, 2) == weights_sha256(finished.store, 2)
    assert second["metrics"] == finished.store.manifest(2)["metrics"]


def test_a_trainer_dies_with_its_owner(run: HandMadeRun) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = psutil.Process(owner.pid).create_time()
    trainer = TrainerProcess.start(run.store.root, make_spec(owner_pid=owner.pid, owner_started=started))
    wait_for_lock(run.store)
    assert trainer.alive
    owner.kill()
    owner.wait()
    assert trainer._process.wait(60) == ORPHAN_EXIT_CODE


def test_sigterm_ends_it_cleanly(run: HandMadeRun) -> None:
    trainer = TrainerProcess.start(run.store.root, make_spec())
    wait_for_lock(run.store)
    trainer.stop()
    assert trainer._process.returncode == 0
    assert not (run.store.trainer_path / "error.json").exists()
    trainer.stop()


def test_the_second_trainer_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    import os

    held = take_lock(tmp_path / "lock", 0)
    with pytest.raises(TrainingError, match=rf"another trainer \(pid {os.getpid()}\) holds"):
        take_lock(tmp_path / "lock", 0.3)
    held.close()
    take_lock(tmp_path / "lock", 0).close()


def test_unknown_settings_are_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    trainer = TrainerProcess.start(tmp_path, make_spec())
    (store.trainer_path / "config.json").write_text('{"total_updates": 1, "learning_speed": 3}')
    with pytest.raises(TrainingError, match=r"(?s)ConfigError.*learning_speed"):
        trainer.wait_until_ready(60)
    trainer.stop()


def differences(a: RunStore, b: RunStore) -> torch.Tensor:
    """Absolute difference of every weight of version 2."""
    left, right = (load_file(store.policy_path(2) / "model.safetensors") for store in (a, b))
    assert left.keys() == right.keys()
    return torch.cat([(left[name] - right[name]).abs().flatten() for name in left])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "changes"),
    [
        ({"processes": 2}, {}),
        ({"zero_stage": 0}, {}),
        ({"zero_stage": 3}, {}),
        ({"zero_stage": 3, "processes": 2}, {}),
        ({"processes": 2}, {"deepspeed": False}),
        ({}, {"deepspeed": False}),
    ],
)
def test_every_engine_takes_the_same_steps(
    finished: HandMadeRun, tmp_path: Path, checkpoint: Path, trainer: dict[str, Any], changes: dict[str, Any]
) -> None:
    run = make_run(tmp_path / "other", checkpoint)
    manifest = two_updates(run, make_spec(trainer=trainer, total_updates=3, **changes))
    expected = finished.store.manifest(2)["metrics"]
    assert manifest["metrics"]["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
    assert manifest["metrics"]["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    # Adam's steps have unit size even where the gradient is rounding noise (key biases), so a handful of weights may be further off.
    found = differences(run.store, finished.store)
    assert (found < 1e-5).float().mean() > 0.9999
    assert found.max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("finetuning", "deepspeed"), [("lora", True), ("full", False)])
def test_resume_is_exact_with_every_way_of_saving(
    tmp_path: Path, checkpoint: Path, finetuning: str, deepspeed: bool
) -> None:
    """Full training with DeepSpeed is that of `finished` and of the trainer that is killed."""
    spec = make_spec(trainer={"finetuning_type": finetuning}, deepspeed=deepspeed, total_updates=3)
    whole = make_run(tmp_path / "whole", checkpoint)
    two_updates(whole, spec)
    broken = make_run(tmp_path / "broken", checkpoint)
    broken.fill(1, 40)
    with TrainerProcess.start(broken.store.root, spec) as trainer:
        trainer.wait_for_policy(1, PATIENCE)
    broken.fill(2, 40)
    with TrainerProcess.start(broken.store.root, spec) as trainer:
        trainer.wait_for_policy(2, PATIENCE)
    assert weights_sha256(broken.store, 2) == weights_sha256(whole.store, 2) != weights_sha256(whole.store, 0)
