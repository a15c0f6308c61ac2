"""What a run of a real size will need is said before it begins, also where its checkpoint is not
there yet."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from flows.train import train
from tasks_lib.commands.command_line import run_command
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.preflight.estimate import PolicySize, estimate, hours, model_of, server_bytes, state_bytes, trainer_bytes
from tasks_lib.preflight.flows import check_training

READER = Path(__file__).parents[2] / "datasets/policies/reader"
BILLION = PolicySize(parameters=1e9, layers=0, hidden=0, vocabulary=0, kv_width=0)
"""Nothing but parameters: no activations, no logits."""
RECIPES = ["qwen3-vl-2b-1gpu", "qwen3-vl-4b-openwebrl", "qwen3-vl-8b-8gpu"]


def config(**trainer: object) -> TrainConfig:
    found: TrainConfig = resolve(TrainConfig, {"preset": "quickstart", "trainer": {"bf16": True, **trainer}})
    return found


@pytest.mark.parametrize(
    ("stage", "bytes_a_parameter"),
    [(0, 18.0), (1, 2 + 4 + 12 / 4), (2, 2 + (4 + 12) / 4), (3, 18 / 4)],
)
def test_a_process_holds_what_the_paper_of_zero_says(stage: int, bytes_a_parameter: float) -> None:
    found = trainer_bytes(BILLION, config(zero_stage=stage, processes=4))
    assert found == pytest.approx(bytes_a_parameter * 1e9)


@pytest.mark.parametrize(
    ("stage", "whole", "share"), [(0, 12.0, 12.0), (1, 14.0, 12 / 4 + 2), (2, 14.0, 12 / 4 + 2), (3, 12.0, 12 / 4)]
)
def test_a_state_is_divided_between_processes(stage: int, whole: float, share: float) -> None:
    found = state_bytes(BILLION, config(zero_stage=stage, processes=4))
    assert found == pytest.approx((whole * 1e9, share * 1e9))


def test_sizes_are_those_of_the_checkpoint() -> None:
    model = AutoModelForImageTextToText.from_pretrained(READER, dtype=torch.float32)
    found = model_of(READER)
    assert found is not None and found.parameters == sum(each.numel() for each in model.parameters())
    text = model.config.get_text_config()
    assert (found.layers, found.hidden, found.vocabulary) == (text.num_hidden_layers, text.hidden_size, text.vocab_size)
    assert model_of(Path("models/Qwen3-VL-8B-Instruct")) == PolicySize(8.8e9, 36, 4096, 151_936, 1024)
    assert model_of(Path("models/policy-12b")) is None
    assert estimate(config()) == [], "a small policy needs nothing worth saying"


@pytest.mark.parametrize("preset", RECIPES)
def test_a_recipe_fits_its_gpus_and_says_so_without_its_checkpoint(
    preset: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks_lib.processes.serving.PYTHON", Path(sys.executable))
    recipe: TrainConfig = resolve(TrainConfig, {"preset": preset})
    model = model_of(Path(recipe.policy.checkpoint))
    assert model is not None
    weights, cache = server_bytes(model, recipe)
    used = trainer_bytes(model, recipe) if preset.endswith("1gpu") else 0.0
    assert trainer_bytes(model, recipe) < 75e9 and weights + cache + used < 80e9
    assert all(value > 0 for value in hours(model, recipe))
    kept = recipe.trainer.keep_policies + 2 + recipe.trainer.keep_states
    assert recipe.trainer.keep_policies >= 2 and kept < recipe.iterations / 3, "a run would keep terabytes of policies"
    assert recipe.trainer.finetuning_type == "lora" or recipe.trainer.state_every >= 5, "12 bytes a parameter each time"
    updates = 3600 * hours(model, recipe)[1] / recipe.iterations
    assert state_bytes(model, recipe)[0] / 1e9 < 0.5 * recipe.trainer.state_every * updates, "written before the next"
    assert run_command(train, TrainConfig, check_training, ["--preset", preset, "--dry-run"]) == 2
    said = capsys.readouterr()
    assert f" a version, {kept} of them" in said.out and f"every {recipe.trainer.state_every} updates" in said.out
    assert re.search(
        r"state: .* training stands still for [\d.]+ s .*; written beside it in \d+ s .* [\d.]+% of", said.out
    )
    assert "by formulas and not measured" in said.out and "trainer process" in said.out
    assert f"policy.checkpoint: {Path(recipe.policy.checkpoint)}" in said.err.replace(f"{Path.cwd()}/", "")
