"""The real trainer process: real LLaMA-Factory, real DeepSpeed, killed and restarted."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from envs.types import DiskError, StorageError, TrainingError
from tasks_lib.config import TrainConfig
from tasks_lib.preflight.estimate import PolicySize, state_bytes
from tasks_lib.processes.trainer import Trainer
from training.config import TrainerConfig
from training.ledger import checkpoint_files
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.store import RunStore, atomic_write_bytes
from training.policy.renderer import Renderer
from training.records.batches import TrainingBatch
from training.serving.local import LocalModel
from training.trainer.__main__ import take_lock
from training.trainer.control.heartbeat import HEARTBEAT, Heartbeat, Silence, read_heartbeat
from training.trainer.control.launch import LocalGroup, TrainerProcess
from training.trainer.resume import ResumePoint, check_state, find_resume_point, state_path
from training.trainer.rows import read_batch_file, read_rows
from training.trainer.setup import build_trainer
from training.trainer.spec import TrainerSpec
from training.trainer.state_writer import commit_state
from training.trainer.update import Stopwatch, run_update

from .conftest import HandMadeRun, make_run, make_spec

PATIENCE = 300


OWNER = """
import sys, time
from pathlib import Path
from training.trainer.control.launch import TrainerProcess as Started
from training.trainer.spec import TrainerSpec
kept = Started.start(Path(sys.argv[1]), TrainerSpec.model_validate_json(sys.argv[2]))
time.sleep(600)
"""


def group_of(trainer: TrainerProcess) -> LocalGroup:
    assert isinstance(trainer.group, LocalGroup)
    return trainer.group


def weights_sha256(store: RunStore, version: int) -> str:
    (weights,) = store.policy_path(version).glob("*.safetensors")
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def wait_for_lock(store: RunStore) -> None:
    """Until the process is up; its watchdog starts before it takes the lock."""
    while not (store.trainer_path / "lock").exists():
        time.sleep(0.02)


def two_updates(run: HandMadeRun, spec: TrainerSpec) -> dict[str, Any]:
    """Train versions 1 and 2 without interruption, and a third one that overflows; the manifest of
    2."""
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
        assert trainer.wait_until_ready(PATIENCE)["pid"] == group_of(trainer).process.pid
        trainer.wait_for_policy(2, PATIENCE)
        run.add_batch(3, [run.row("ghost")])
        with pytest.raises(
            TrainingError, match=r"exit code 1.*TrainingError: batch v3: row ghost/0: trajectory ghost does not exist"
        ):
            trainer.wait_for_policy(3, PATIENCE)
        assert not trainer.alive
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


def test_a_state_has_the_bytes_that_a_dry_run_says(finished: HandMadeRun) -> None:
    parameters = sum(value.numel() for value in load_file(finished.store.policy_path(2) / "model.safetensors").values())
    sizes = [path.stat().st_size for path in state_path(finished.store, 2).rglob("*.pt")]
    expected, _ = state_bytes(PolicySize(parameters, 0, 0, 0, 0), TrainConfig(trainer=TrainerConfig(bf16=False)))
    assert sum(sizes) == pytest.approx(expected, rel=0.03)


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
        psutil.Process(group_of(trainer).process.pid).send_signal(signal.SIGKILL)
        with pytest.raises(TrainingError, match="exit code -9"):
            trainer.wait_for_policy(3, PATIENCE)
    with TrainerProcess.start(run.store.root, make_spec(total_updates=3)) as trainer:
        second = trainer.wait_for_policy(2, PATIENCE)
        check_overflow_is_refused(run, trainer)
    assert weights_sha256(run.store, 2) == weights_sha256(finished.store, 2)
    assert second["metrics"] == finished.store.manifest(2)["metrics"]


def test_a_trainer_dies_with_its_owner(run: HandMadeRun) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(run.store.root), make_spec().model_dump_json()])
    wait_for_lock(run.store)
    (trainer,) = psutil.Process(owner.pid).children()
    owner.kill()
    owner.wait()
    psutil.wait_procs([trainer], 30)
    assert not trainer.is_running()
    log = (run.store.trainer_path / "trainer.log").read_text()
    assert re.search(r"trainer: (parent process \d+|its owner at 127\.0\.0\.1:\d+) is gone", log)


def test_sigterm_ends_it_cleanly(run: HandMadeRun) -> None:
    trainer = TrainerProcess.start(run.store.root, make_spec())
    wait_for_lock(run.store)
    trainer.stop()
    assert group_of(trainer).process.returncode == 0
    assert not (run.store.trainer_path / "error.json").exists()
    trainer.stop()


def test_the_second_trainer_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    import os

    held = take_lock(tmp_path / "lock", 0)
    with pytest.raises(TrainingError, match=rf"another trainer \(pid {os.getpid()}\) holds"):
        take_lock(tmp_path / "lock", 0.3)
    held.close()
    take_lock(tmp_path / "lock", 0).close()


def test_unknown_settings_are_named(run: HandMadeRun) -> None:
    store = run.store
    trainer = TrainerProcess.start(store.root, make_spec())
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
    "trainer",
    [{"zero_stage": 3, "processes": 2}],  # the others, for one update and more exactly: test_gradients.py
)
def test_every_engine_takes_the_same_steps(
    finished: HandMadeRun, tmp_path: Path, checkpoint: Path, trainer: dict[str, Any]
) -> None:
    run = make_run(tmp_path / "other", checkpoint)
    manifest = two_updates(run, make_spec(trainer=trainer, total_updates=3))
    expected = finished.store.manifest(2)["metrics"]
    assert manifest["metrics"]["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
    assert manifest["metrics"]["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    # Adam's steps have unit size even where the gradient is rounding noise (key biases), so a
    # handful of weights may be further off.
    found = differences(run.store, finished.store)
    assert (found < 1e-5).float().mean() > 0.9999
    assert found.max() < 1e-4


@pytest.mark.slow
def test_plain_torch_takes_the_same_steps_as_deepspeed(finished: HandMadeRun) -> None:
    """As a trainer has it that is built in this process, in other tests and in benchmarks."""
    trainer = build_trainer(finished.store, make_spec(total_updates=3), 0)
    assert not trainer.is_deepspeed_enabled
    for version in (1, 2):
        batch, _ = read_batch_file(finished.store, version)
        metrics = run_update(trainer, batch, read_rows(finished.store, batch), Stopwatch())
    expected = finished.store.manifest(2)["metrics"]
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.long
def test_resume_is_exact_with_lora(tmp_path: Path, checkpoint: Path) -> None:
    """Full training with DeepSpeed is that of `finished` and of the trainer that is killed."""
    spec = make_spec(trainer={"finetuning_type": "lora"}, total_updates=3)
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


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_bytes(path: Path) -> None:
    """As long as before: only a checksum sees it."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


STATE_FAULTS = {
    "optimizer cut short": lambda state: cut(largest(state)),
    "optimizer with another bit": lambda state: other_bytes(largest(state)),
    "optimizer empty": lambda state: largest(state).write_bytes(b""),
    "manifest cut short": lambda state: cut(state / MANIFEST),
    "folder gone": shutil.rmtree,
}


def test_a_damaged_state_is_recognised_without_starting_anything(finished: HandMadeRun, tmp_path: Path) -> None:
    store = RunStore(shutil.copytree(finished.store.root, tmp_path / "run"))
    spec = make_spec(total_updates=3)
    assert find_resume_point(store, spec) == ResumePoint(2)
    for what, damage in STATE_FAULTS.items():
        shutil.rmtree(store.trainer_path)
        shutil.copytree(finished.store.trainer_path, store.trainer_path)
        damage(state_path(store, 2))
        point = find_resume_point(store, spec)
        # A newest state that is missing is no damage: a kill may have cut off its write.
        named = "" if what == "folder gone" else str(state_path(store, 2))
        assert point.version == 1 and named in point.damage and bool(named) == bool(point.damage), what
    damage(state_path(store, 1))
    assert find_resume_point(store, spec).version == 0
    store.batch_path(1).unlink()
    with pytest.raises(TrainingError, match="no earlier version whose weights, state and later batches are all whole"):
        find_resume_point(store, spec)


def test_a_state_is_read_once_and_any_damage_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts, directory and end; files that are no archive; and another state of the same
    sizes."""
    hashed, hash_file = list[str](), checkpoint_files.file_sha256

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return hash_file(path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "file_sha256", counted)
        for version in (1, 2):
            written = tmp_path / ".tmp" / "optimizer.pt"
            written.parent.mkdir()
            torch.save({"moment": torch.full((5000,), float(version)), "step": version}, written)
            (written.parent / "latest").write_text("global_step1")
            commit_state(written.parent, tmp_path / f"v{version:06d}", 2, {})
        assert set(hashed) == {"latest"}, "hashes only what is no archive"
    state = tmp_path / "v000002" / "optimizer.pt"
    whole = state.read_bytes()
    check_state(state.parent)
    with zipfile.ZipFile(state) as archive:
        parts = [part.header_offset + 100 + part.file_size // 2 for part in archive.infolist() if part.file_size > 250]
        places = [0, *parts, archive.start_dir + 16, len(whole) - 1]
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in places]
    damaged += [whole[:-1], b"", (tmp_path / "v000001" / "optimizer.pt").read_bytes(), bytes(len(whole))]
    for data in damaged:
        state.write_bytes(data)
        with pytest.raises(StorageError, match=r"optimizer\.pt"):
            check_state(state.parent)
    state.write_bytes(whole)
    check_state(state.parent)
    (state.parent / "latest").write_text("global_step2")
    with pytest.raises(StorageError, match="latest"):
        check_state(state.parent)


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(2, id="the state before is gone on from"),
        pytest.param(1, id="all is done again from version 0", marks=pytest.mark.slow),
    ],
)
def test_updates_are_done_again_to_the_last_bit_where_the_state_is_damaged(
    finished: HandMadeRun, tmp_path: Path, last: int
) -> None:
    """With the same rate; a schedule that gives another one has a test in test_states."""
    store = RunStore(shutil.copytree(finished.store.root, tmp_path / "run"))
    for version in range(last, 3):
        cut(largest(state_path(store, version)))
    store.batch_path(3).unlink()
    with TrainerProcess.start(store.root, make_spec(total_updates=9)) as trainer:
        trainer.wait_until_ready(PATIENCE)  # which it is once the weights were compared with the published ones
    check_state(state_path(store, 2))
    for name in (path.relative_to(store.root) for path in state_path(store, 2).rglob("*optim_states.pt")):
        assert (store.root / name).read_bytes() == (finished.store.root / name).read_bytes()
    assert not list(store.root.rglob(".tmp*"))


POLICY_FAULTS = {
    "another version's weights": lambda store: shutil.copy(
        store.policy_path(1) / "model.safetensors", store.policy_path(2) / "model.safetensors"
    ),
    "weights cut short": lambda store: cut(store.policy_path(2) / "model.safetensors"),
    "another bit": lambda store: other_bytes(store.policy_path(2) / "model.safetensors"),
    "tokenizer of another": lambda store: other_bytes(store.policy_path(2) / "tokenizer.json"),
    "weights gone": lambda store: (store.policy_path(2) / "model.safetensors").unlink(),
    "weights added": lambda store: (store.policy_path(2) / "model-00001-of-00002.safetensors").write_bytes(b"x"),
    "manifest cut short": lambda store: cut(store.policy_path(2) / MANIFEST),
    "manifest empty": lambda store: (store.policy_path(2) / MANIFEST).write_bytes(b""),
    "manifest is garbage": lambda store: (store.policy_path(2) / MANIFEST).write_bytes(b"\xff\x00" * 40),
    "manifest of another kind": lambda store: (store.policy_path(2) / MANIFEST).write_text('{"files": [1]}'),
    "manifest of another version": lambda store: shutil.copy(
        store.policy_path(1) / MANIFEST, store.policy_path(2) / MANIFEST
    ),
}


@pytest.mark.parametrize("what", POLICY_FAULTS)
def test_a_damaged_policy_is_refused_by_name_before_anything_starts(
    finished: HandMadeRun, tmp_path: Path, what: str
) -> None:
    store = RunStore(shutil.copytree(finished.store.root, tmp_path / "run"))
    POLICY_FAULTS[what](store)
    with pytest.raises(StorageError, match=r"^policy v2 is damaged: .*v000002/.*; to go on, move ") as refused:
        TrainerProcess.start(store.root, make_spec(total_updates=3))
    assert "\n" not in str(refused.value)
    model = LocalModel(Renderer(store.policy_path(1), "qwen2_vl"))
    if what != "manifest of another version":  # whose files are another's as well
        with pytest.raises(StorageError, match="v000002/"):
            model.load(2, store.policy_path(2))


def test_moving_a_damaged_policy_away_makes_the_same_one_again(finished: HandMadeRun, tmp_path: Path) -> None:
    """What the error advises, followed to the letter."""
    store = RunStore(shutil.copytree(finished.store.root, tmp_path / "run"))
    POLICY_FAULTS["another version's weights"](store)
    with pytest.raises(StorageError) as refused:
        TrainerProcess.start(store.root, make_spec(total_updates=3))
    found = re.search(r"move (\S+) to (\S+) and start the same command again", str(refused.value))
    assert found
    Path(found[2]).parent.mkdir()
    shutil.move(found[1], found[2])
    store.batch_path(3).unlink()
    with TrainerProcess.start(store.root, make_spec(total_updates=3)) as trainer:
        trainer.wait_for_policy(2, PATIENCE)
    assert weights_sha256(store, 2) == weights_sha256(finished.store, 2)


def test_a_full_disk_ends_the_trainer_with_one_line_and_no_restart(
    small_disk: Callable[[int], Path], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state takes three times the room of its policy. What was written of it is gone, so that the
    line itself finds room."""
    needed = sum(path.stat().st_size for path in checkpoint.iterdir())
    run = make_run(small_disk(3 * needed + 2**20) / "run", checkpoint)
    run.fill(1, 20)
    starts: list[TrainerProcess] = []
    start = TrainerProcess.start
    monkeypatch.setattr(TrainerProcess, "start", lambda *given: starts.append(start(*given)) or starts[-1])
    config = TrainConfig.model_validate(
        {"iterations": 1, "policy": {"template": "qwen2_vl"}, "trainer": {"torch_threads": 1}}
    )
    with (
        Trainer(run.store, config) as trainer,
        pytest.raises(
            DiskError,
            match=r"^cannot write \S*/trainer/state/\.tmp-v000001: no space left on the disk \(.* MB needed, ",
        ) as said,
    ):
        trainer.update(1)
    assert len(starts) == 1 and "\n" not in str(said.value)
    assert not list(run.store.root.rglob(".tmp-*")) and run.store.versions() == [0]


@pytest.mark.slow
def test_an_update_that_hangs_is_noticed(run: HandMadeRun) -> None:
    run.fill(1, 40)
    with TrainerProcess.start(run.store.root, make_spec(trainer={"silence": 3.0, "epochs": 16})) as trainer:
        heartbeat = run.store.trainer_path / HEARTBEAT
        until = time.monotonic() + PATIENCE
        while not heartbeat.exists() or not heartbeat.read_text().startswith("train"):
            assert time.monotonic() < until and trainer.alive
            time.sleep(0.01)
        psutil.Process(group_of(trainer).process.pid).suspend()
        began = time.monotonic()
        with pytest.raises(TrainingError, match=r"has made no progress for 3 s \(trainer\.silence\)"):
            trainer.wait_for_policy(1, PATIENCE)
        assert 3.0 <= time.monotonic() - began < 10
        pid = group_of(trainer).process.pid
    assert not psutil.pid_exists(pid), "it is stopped like one that runs"


def test_silence_counts_only_while_it_computes(tmp_path: Path) -> None:
    silence = Silence(tmp_path)
    assert silence.seconds() == 0
    beats = Heartbeat(tmp_path)
    for phase in ("wait", "save"):
        beats.beat(phase)  # type: ignore[arg-type]
        silence.seconds()
        time.sleep(0.05)
        assert silence.seconds() < 0.04
    for share in (None, 0.25):
        beats.beat("wait")
        beats.beat("train", share)
        assert read_heartbeat(tmp_path) == ("train", share)
        silence.seconds()
        time.sleep(0.05)
        assert silence.seconds() >= 0.05
