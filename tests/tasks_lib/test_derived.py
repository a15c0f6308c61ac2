"""Precision and trained parts are chosen once for a run, and kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envs.types import ConfigError
from tasks_lib.config import PROJECT, TrainConfig, resolve
from tasks_lib.folder import derived
from tasks_lib.folder.checkpoints import publish_base
from tasks_lib.folder.derived import choose, describe_choices, has_cuda_device, with_derived
from tasks_lib.folder.frozen_config import read_frozen
from tasks_lib.folder.values import check_values
from tasks_lib.loops.run import open_run
from training.config import TrainerConfig
from training.ledger.checkpoint_files import count_parameters
from training.trainer.setup import llamafactory_arguments
from training.trainer.spec import TrainerSpec

READER = PROJECT / "datasets" / "policies" / "reader"


def config_of(root: Path, **trainer: Any) -> TrainConfig:
    config: TrainConfig = resolve(TrainConfig, {"preset": "quickstart", "root": str(root), "trainer": trainer})
    return config


@pytest.mark.parametrize(
    ("parameters", "gpu", "vllm", "given", "bf16", "tower"),
    [
        (700_000, False, False, {}, False, True),
        (700_000, True, False, {}, True, True),
        (100_000_001, True, False, {}, True, False),
        (2_000_000_000, False, False, {"train_vision_tower": True}, False, True),
        (2_000_000_000, True, False, {"bf16": False}, False, False),
        (700_000, False, True, {"finetuning_type": "lora"}, False, False),
        (700_000, False, True, {"finetuning_type": "lora", "lora_export": "merged"}, False, True),
    ],
)
def test_what_is_left_open_depends_on_size_and_machine(
    parameters: int, gpu: bool, vllm: bool, given: dict[str, Any], bf16: bool, tower: bool
) -> None:
    chosen = choose(TrainerConfig(**given), parameters, gpu=gpu, vllm=vllm)
    assert (chosen.bf16, chosen.train_vision_tower) == (bf16, tower)
    assert ("precision" in describe_choices(TrainerConfig(**given), chosen)) == ("bf16" not in given)


def test_parameters_are_counted_by_the_headers(tmp_path: Path) -> None:
    known = json.loads((READER / "recipe.json").read_text())
    assert 500_000 < count_parameters(READER) < 2_000_000, known.keys()
    size = sum(path.stat().st_size for path in READER.glob("*.safetensors"))
    assert count_parameters(READER) == pytest.approx(size / 4, rel=0.02)


def test_the_choice_is_frozen_and_kept_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path)
    assert config.trainer.bf16 is None and not has_cuda_device()
    with open_run(config) as run:
        publish_base(run.store, READER)
        frozen = read_frozen(run.store.config_path)
        assert frozen is not None
        trainer = frozen["config"]["trainer"]
        assert (trainer["bf16"], trainer["train_vision_tower"]) == (False, True)
        assert run.choices == "precision: float32 (no CUDA device is there), vision tower: trained"
        spec = TrainerSpec(trainer=run.config.trainer, total_updates=1)
        arguments = llamafactory_arguments(run.store, spec, 0)
        assert (arguments["bf16"], arguments["freeze_vision_tower"]) == (False, False)
        store = run.store
    monkeypatch.setattr(derived, "has_cuda_device", lambda: True)
    assert with_derived(config).trainer.bf16 is False
    check_values(config, store)
    with pytest.raises(ConfigError, match=r"trainer\.bf16: false then, true now"):
        check_values(config_of(tmp_path, bf16=True), store)
    shutil.rmtree(store.root)
    assert with_derived(config).trainer.bf16 is True
