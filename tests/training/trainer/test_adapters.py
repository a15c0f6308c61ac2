"""A LoRA run publishes adapters: with the run's first version they make the model that was
trained."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from envs.types import ConfigError, PolicyError, TrainingError
from tasks_lib.folder.checkpoints import check_checkpoint, check_unchanged, evaluated_version, publish_base
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.disk import folder_bytes
from training.ledger.store import RunStore
from training.policy.adapters import base_of, is_adapter, load_policy
from training.policy.renderer import Renderer, find_images
from training.serving.engine import Generation, GenerationRequest, Picture
from training.serving.local import LocalModel
from training.serving.vllm.probe import ProbeTurn, TransformersScorer
from training.trainer import setup
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.publish import publish_policy
from training.trainer.published_weights import compare_published
from training.trainer.rows import TrainingRow, read_rows
from training.trainer.setup import build_trainer
from training.trainer.update import Stopwatch, run_update

from .conftest import HandMadeRun, make_run, make_spec
from .test_parity import scores


class Published:
    """One update of a LoRA run, published both ways."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.runs = {export: make_run(folder / export, checkpoint) for export in ("adapter", "merged")}
        self.rows: list[TrainingRow] = []
        self.trainers: dict[str, PolicyTrainer] = {}
        for export, run in self.runs.items():
            self.trainers[export] = self._train(run, export)

    def _train(self, run: HandMadeRun, export: str) -> PolicyTrainer:
        batch = run.fill(1, 4)
        self.rows = read_rows(run.store, batch)
        settings = {"finetuning_type": "lora", "lora_rank": 4, "lora_export": export, "learning_rate": 1e-2}
        trainer = build_trainer(run.store, make_spec(trainer=settings), 0)
        run_update(trainer, batch, self.rows, Stopwatch())
        publish_policy(trainer, run.store, 1, dict)
        return trainer

    def folder(self, export: str) -> Path:
        return self.runs[export].store.policy_path(1)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Published:
    return Published(tmp_path_factory.mktemp("lora"), checkpoint)


@pytest.mark.parametrize("target", ["q_proj,lm_head", "q_proj,embed_tokens"])
def test_adapters_on_tied_weights_are_refused(target: str, tmp_path: Path, checkpoint: Path) -> None:
    run = make_run(tmp_path, checkpoint)
    settings = {"finetuning_type": "lora", "lora_rank": 4, "llamafactory": {"lora_target": target}}
    with pytest.raises(ConfigError, match=rf"adapter on \S*{target.partition(',')[2]}, .*(lm_head|embed_tokens)"):
        build_trainer(run.store, make_spec(trainer=settings), 0)


@pytest.mark.parametrize(("target", "export"), [("lm_head", "adapter"), ("embed_tokens", "merged")])
def test_another_model_than_the_trained_one_is_not_published(
    target: str, export: str, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were adapters on tied weights taken, the first publication would show it, at a real rate."""
    monkeypatch.setattr(setup, "refuse_tied_adapters", lambda model: None)
    run = make_run(tmp_path, checkpoint)
    settings = {"finetuning_type": "lora", "lora_rank": 4, "lora_export": export, "learning_rate": 1e-5}
    settings |= {"llamafactory": {"lora_target": f"q_proj,{target}"}}
    batch, trainer = run.fill(1, 4), build_trainer(run.store, make_spec(trainer=settings), 0)
    run_update(trainer, batch, read_rows(run.store, batch), Stopwatch())
    with pytest.raises(
        TrainingError,
        match=r"another model than the one that was trained: its \S*(lm_head|embed_tokens)\.weight differs",
    ):
        publish_policy(trainer, run.store, 1, dict)
    assert run.store.versions() == [0] and not list((run.store.root / "policies").glob(".tmp-*"))


@pytest.mark.parametrize("export", ["adapter", "merged"])
def test_one_number_of_what_is_published_is_compared(published: Published, tmp_path: Path, export: str) -> None:
    trainer, folder = published.trainers[export], tmp_path / "policies/v000001"
    shutil.copytree(published.folder(export).parent, folder.parent)
    compare_published(trainer, folder)
    (path,) = folder.glob("*model.safetensors")
    weights = load_file(path)
    name = next(name for name in weights if "q_proj" in name and name.endswith("weight"))
    weights[name].view(-1)[7] += 0.01
    save_file(weights, path, {"format": "pt"})
    (folder / MANIFEST).unlink()
    with pytest.raises(TrainingError, match=r"its \S*q_proj\.weight differs"):
        compare_published(trainer, folder)


def engine_scores(folder: Path, rows: list[TrainingRow]) -> torch.Tensor:
    """Log-probs of the rows' responses under the policy in ``folder``, by the probe's forward
    pass."""
    renderer = Renderer(folder, "qwen2_vl")
    renderer.banned_ids = []
    turns = [turn_of(renderer, row) for row in rows]
    return torch.tensor([value for values in TransformersScorer(renderer)(folder, turns) for value in values])


def turn_of(renderer: Renderer, row: TrainingRow) -> ProbeTurn:
    image = renderer.image_token_id
    request = GenerationRequest(
        prompt=find_images(row.prompt_ids, image, [list(row.prompt_ids).count(image)]),
        pictures=(Picture(row.screenshots[0], (0, 0)),),
        key="",
        episode="",
        seed=0,
        max_new_tokens=len(row.response_ids),
        temperature=1.0,
    )
    return ProbeTurn(request, Generation(tuple(row.response_ids), (), (), "stop"))


def test_a_version_holds_the_adapter_alone(published: Published) -> None:
    folder, whole = published.folder("adapter"), published.folder("merged")
    assert is_adapter(folder) and not is_adapter(whole)
    assert base_of(folder) == published.runs["adapter"].store.policy_path(0)
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as opened:
        assert all(".lora_" in name for name in opened.keys())  # noqa: SIM118
    assert not list(folder.glob("model*"))
    assert folder_bytes(folder) < folder_bytes(whole)
    published.runs["adapter"].store.check_policy(1)


def test_adapter_and_merged_weights_are_one_model(published: Published, checkpoint: Path) -> None:
    added = load_policy(published.folder("adapter"), torch.float32).state_dict()
    merged = load_policy(published.folder("merged"), torch.float32).state_dict()
    base = load_policy(checkpoint, torch.float32).state_dict()
    assert added.keys() == merged.keys() == base.keys()
    assert all((added[name] - merged[name]).abs().max() <= 1e-6 for name in merged)
    assert max((added[name] - base[name]).abs().max() for name in base) > 1e-3


def test_the_engine_serves_what_was_trained(published: Published) -> None:
    rows, trainer = published.rows, published.trainers["adapter"]
    trained = torch.cat(scores(trainer, rows))
    assert (engine_scores(published.folder("adapter"), rows) - trained).abs().max() < 1e-4
    assert (engine_scores(published.runs["adapter"].store.policy_path(0), rows) - trained).abs().max() > 1e-2


def test_an_rs_lora_with_its_own_alpha_is_published_as_trained(tmp_path: Path, checkpoint: Path) -> None:
    run = make_run(tmp_path, checkpoint)
    options = {"use_rslora": True, "lora_alpha": 24, "lora_dropout": 0.0, "loraplus_lr_ratio": 2.0}
    settings = {"finetuning_type": "lora", "lora_rank": 4, "learning_rate": 1e-2, "llamafactory": options}
    batch = run.fill(1, 4)
    rows, trainer = read_rows(run.store, batch), build_trainer(run.store, make_spec(trainer=settings), 0)
    run_update(trainer, batch, rows, Stopwatch())
    publish_policy(trainer, run.store, 1, dict)
    found = engine_scores(run.store.policy_path(1), rows) - torch.cat(scores(trainer, rows))
    assert found.abs().max() < 1e-4


def test_a_local_engine_generates_with_the_adapter(published: Published) -> None:
    folder = published.folder("adapter")
    renderer = Renderer(folder, "qwen2_vl")
    engine = LocalModel(renderer, "cpu")
    row = published.rows[0]
    request = replace(turn_of(renderer, row).request, max_new_tokens=6)
    found = []
    for version, served in enumerate((folder, published.folder("merged"), base_of(folder))):
        engine.load(version, served)
        (generation,) = engine.generate([request])
        found.append(generation)
    assert found[0].token_ids == found[1].token_ids
    assert found[0].logprobs == pytest.approx(found[1].logprobs, abs=1e-5)
    assert found[0].logprobs != pytest.approx(found[2].logprobs, abs=1e-3)


def test_another_run_starts_from_the_whole_model(published: Published, tmp_path: Path) -> None:
    folder, other = published.folder("adapter"), RunStore(tmp_path / "evaluation")
    check_checkpoint(folder)
    version = evaluated_version(other, folder)
    publish_base(other, folder, version)
    assert version == 1 and not is_adapter(other.policy_path(1))
    check_checkpoint(other.policy_path(1))
    found, merged = (
        load_file(path / "model.safetensors") for path in (other.policy_path(1), published.folder("merged"))
    )
    assert found.keys() == merged.keys()
    assert all((found[name] - merged[name]).abs().max() <= 1e-6 for name in merged)
    Renderer(other.policy_path(1), "qwen2_vl")
    check_unchanged(other, version, folder)
    assert not list((other.root / "policies").glob(".tmp-*"))
    with pytest.raises(PolicyError, match=r"is not what evaluation evaluated: adapter_model\.safetensors"):
        check_unchanged(other, version, changed(folder, tmp_path / "v000001"))


def changed(adapter: Path, copy: Path) -> Path:
    """A copy of an adapter with another byte in its weights."""
    shutil.copytree(adapter, copy)
    weights = bytearray((copy / "adapter_model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "adapter_model.safetensors").write_bytes(weights)
    return copy


def test_an_adapter_without_its_base_is_refused(published: Published, tmp_path: Path) -> None:
    alone = shutil.copytree(published.folder("adapter"), tmp_path / "v000001")
    with pytest.raises(
        PolicyError, match=r"holds only an adapter \(LoRA\) of \.\./v000000, and no checkpoint is there"
    ):
        check_checkpoint(alone)
    with pytest.raises(PolicyError, match="holds only an adapter"):
        load_policy(alone, torch.float32)
