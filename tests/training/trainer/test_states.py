"""A trainer whose state is written every few updates goes on exactly, from the last state and the
batches since."""

from __future__ import annotations

import re
import time
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from envs.types import TrainingError
from training.ledger.store import RunStore, write_json
from training.policy.adapters import load_policy
from training.records.batches import TrainingBatch
from training.trainer import loop, state_writer
from training.trainer.control.heartbeat import HEARTBEAT
from training.trainer.control.launch import LocalGroup, TrainerProcess
from training.trainer.loop import run_trainer
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.publish import publish_policy, publish_state
from training.trainer.resume import ResumePoint, find_resume_point, state_path
from training.trainer.rows import read_batch_file, read_rows
from training.trainer.schedule import learning_rate_factor
from training.trainer.setup import build_trainer
from training.trainer.spec import TrainerSpec
from training.trainer.update import Stopwatch, run_update

from .conftest import HandMadeRun, make_run, make_spec

UPDATES = 5
KILLED_AT = 4
"""Its state is written, its policy is not."""


PATIENCE = 300.0


class Killed(BaseException):
    """Stands for the end of the process."""


def spec_of(state_every: int) -> TrainerSpec:
    return make_spec(total_updates=UPDATES, trainer={"state_every": state_every, "keep_states": UPDATES})


def filled_run(folder: Path, checkpoint: Path) -> HandMadeRun:
    run = make_run(folder, checkpoint)
    for version in range(1, UPDATES + 1):
        run.fill(version, 6)
    return run


def train_until_killed(store: RunStore, spec: TrainerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = loop.publish_policy

    def killed(trainer: PolicyTrainer, store: RunStore, version: int, manifest: Any) -> None:
        if version == KILLED_AT:
            trainer.states.wait()
            raise Killed
        publish(trainer, store, version, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "publish_policy", killed)
        with pytest.raises(Killed):
            run_trainer(store, spec)


def files_of(store: RunStore, version: int) -> dict[str, str]:
    return {name: entry["sha256"] for name, entry in store.manifest(version)["files"].items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> RunStore:
    """Never interrupted, a state at each update."""
    run = filled_run(tmp_path_factory.mktemp("whole"), checkpoint)
    run_trainer(run.store, spec_of(1))
    return run.store


def states(store: RunStore) -> list[str]:
    return sorted(path.name for path in (store.trainer_path / "state").iterdir())


def test_what_follows_a_kill_has_the_same_weights(
    whole: RunStore, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, spec = filled_run(tmp_path / "run", checkpoint).store, spec_of(3)
    train_until_killed(store, spec, monkeypatch)
    assert store.versions() == [0, 1, 2, 3] and states(store) == ["v000003"]
    state_path(store, 3).rename(state_path(store, 3).with_name("aside"))
    assert find_resume_point(store, spec_of(1)) == (0, f"trainer state {state_path(store, 2)} is missing")
    assert find_resume_point(store, spec) == ResumePoint(0), "a kill may cut off the newest state that is due"
    before = {path: path.stat() for path in store.policy_path(3).iterdir()}
    run_trainer(store, spec)
    assert {path: path.stat() for path in store.policy_path(3).iterdir()} == before, "published ones are not touched"
    assert [files_of(store, version) for version in range(UPDATES + 1)] == [
        files_of(whole, version) for version in range(UPDATES + 1)
    ]
    assert len({str(files_of(store, version)) for version in range(UPDATES + 1)}) == UPDATES + 1


def test_it_goes_on_from_the_last_state_and_refuses_another_batch(
    whole: RunStore, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 3 is done again from version 2, by its batch; another batch would be another
    update."""
    run, spec = filled_run(tmp_path / "run", checkpoint), spec_of(2)
    store = run.store
    train_until_killed(store, spec, monkeypatch)
    assert states(store) == ["v000002", "v000004"]
    assert find_resume_point(store, spec) == ResumePoint(2)
    published, batch = files_of(store, 3), TrainingBatch.model_validate_json(store.batch_path(3).read_bytes())
    rows = tuple(row.model_copy(update={"advantage": 3 * row.advantage + 1}) for row in batch.rows)
    write_json(store.batch_path(3), batch.model_copy(update={"rows": rows}))
    with pytest.raises(
        TrainingError,
        match=r"v3 is to be done again, .*was not written.*v000003\.json is not the batch that it was made",
    ):
        run_trainer(store, spec)
    assert store.versions() == [0, 1, 2, 3] and files_of(store, 3) == published
    write_json(store.batch_path(3), batch)
    run_trainer(store, spec)
    assert files_of(store, UPDATES) == files_of(whole, UPDATES)


def test_an_update_done_again_has_the_rate_that_it_had(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a run that was made longer, whose linear schedule now gives other rates."""
    settings = {"state_every": 2, "keep_states": UPDATES, "scheduler": "linear"}
    store, spec = filled_run(tmp_path / "run", checkpoint).store, make_spec(total_updates=UPDATES, trainer=settings)
    longer = spec.model_copy(update={"total_updates": 4 * UPDATES})
    train_until_killed(store, spec, monkeypatch)
    assert learning_rate_factor(spec.trainer, 3, UPDATES) < 0.8 * learning_rate_factor(spec.trainer, 3, 4 * UPDATES)

    def killed(*_: object) -> float:
        raise Killed

    monkeypatch.setattr(loop, "wait_for_batch", killed)
    with pytest.raises(Killed):
        run_trainer(store, longer)
    said = capsys.readouterr().out
    assert "v3 is done again" in said and "gave other weights" not in said


@pytest.mark.parametrize("finetuning", ["full", "lora"])
def test_published_weights_count_where_an_update_done_again_differs(
    tmp_path: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    finetuning: str,
) -> None:
    """As attention on GPUs: no update gives the same last bits twice."""
    update, drawn = loop.run_update, torch.Generator().manual_seed(1)

    def disturbed(trainer: PolicyTrainer, *given: Any) -> dict[str, Any]:
        metrics = update(trainer, *given)
        with torch.no_grad():
            for weight in trainer.model.parameters():
                if weight.requires_grad:
                    weight.add_(1e-6 * torch.randn(weight.shape, generator=drawn))
        return metrics

    monkeypatch.setattr(loop, "run_update", disturbed)
    settings = {"state_every": 2, "keep_states": UPDATES, "finetuning_type": finetuning, "lora_rank": 4}
    run, spec = filled_run(tmp_path / "run", checkpoint), make_spec(total_updates=UPDATES, trainer=settings)
    train_until_killed(run.store, spec, monkeypatch)
    published = files_of(run.store, 3)
    capsys.readouterr()
    found = list[torch.Tensor]()
    with monkeypatch.context() as patch:
        patch.setattr(
            loop,
            "publish_state",
            lambda trainer, *given: found.append(trained(trainer)) or publish_state(trainer, *given),
        )
        run_trainer(run.store, spec)
    said = [line for line in capsys.readouterr().out.splitlines() if "done again gave other weights" in line]
    assert len(said) == 1 and re.search(
        r"up to v3 .* by \d\.\de-0\d at most; training goes on from those that are", said[0]
    )
    assert run.store.versions() == list(range(UPDATES + 1)) and files_of(run.store, 3) == published
    assert find_resume_point(run.store, spec).version == UPDATES
    weights = load_policy(run.store.policy_path(3), torch.float32)
    if finetuning == "full":
        assert torch.equal(found[0], torch.cat([value.flatten() for value in weights.parameters()]))
    else:
        adapter = load_file(run.store.policy_path(3) / "adapter_model.safetensors")
        assert sorted(found[0].tolist()) == sorted(torch.cat([value.flatten() for value in adapter.values()]).tolist())


def test_training_goes_on_while_a_state_is_written(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions are published before the first file of the state is written; it holds what it
    held then."""
    run, spec, may_write = filled_run(tmp_path / "run", checkpoint), spec_of(1), Event()
    store, save = run.store, state_writer.save_file

    def held(path: Path, content: object) -> Path:
        assert may_write.wait(PATIENCE)
        return save(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(state_writer, "save_file", held)
        trainer = build_trainer(store, spec, 0)
        for version in (1, 2):
            batch, _ = read_batch_file(store, version)
            run_update(trainer, batch, read_rows(store, batch), Stopwatch())
            if version == 1:
                publish_state(trainer, store, version)
            publish_policy(trainer, store, version, dict)
        assert states(store) == [".tmp-v000001"] and store.versions() == [0, 1, 2]
        assert find_resume_point(store, spec_of(2)) == ResumePoint(0)
        may_write.set()
        trainer.states.wait()
    assert states(store) == ["v000001"]
    again = build_trainer(store, spec, find_resume_point(store, spec).version)
    assert not torch.equal(trained(again), trained(trainer))
    batch, _ = read_batch_file(store, 2)
    run_update(again, batch, read_rows(store, batch), Stopwatch())
    assert torch.equal(trained(again), trained(trainer)), "weights of v1 and Adam's moments of then"


def trained(trainer: PolicyTrainer) -> torch.Tensor:
    """All trained weights."""
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters() if weight.requires_grad])


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_that_hangs_is_named(run: HandMadeRun) -> None:
    """Here one that is stopped; the other one waits for it."""
    run.fill(1, 40)
    settings = {"silence": 20.0, "epochs": 16, "processes": 2, "minibatch_rows": 4}
    with TrainerProcess.start(run.store.root, make_spec(trainer=settings)) as trainer:
        group, heartbeat = trainer.group, run.store.trainer_path / HEARTBEAT
        assert isinstance(group, LocalGroup)
        while not heartbeat.exists() or not heartbeat.read_text().startswith("train"):
            assert trainer.alive
            time.sleep(0.05)
        ranks = psutil.Process(group.process.pid).children(recursive=True)
        (hanging,) = [rank for rank in ranks if rank.environ().get("RANK") == "1"]
        hanging.suspend()
        with pytest.raises(
            TrainingError, match=r"no progress for 20 s \(trainer\.silence\); the others wait for rank 1"
        ):
            trainer.wait_for_policy(1, PATIENCE)
