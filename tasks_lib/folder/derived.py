"""Fills in settings that a configuration leaves open: chat template, precision, trained parts.

They are chosen once: a resumed run keeps its first choice, whatever machine it is on by then.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import TypeVar, cast

from envs.types import PolicyError
from tasks_lib.config import EvaluateConfig, TrainConfig, WarmStartConfig, resolve_checkpoint
from tasks_lib.folder.checkpoints import with_template
from tasks_lib.folder.frozen_config import read_frozen
from training.config import TrainerConfig
from training.ledger.checkpoint_files import count_parameters
from training.ledger.store import RunStore
from training.policy.adapters import base_of, is_adapter

SMALL_MODEL = 100_000_000
"""Parameters up to which the vision tower is trained too.

Such a model is trained whole, and its tower is not a good one yet.
"""

Config = TypeVar("Config", bound=TrainConfig | EvaluateConfig | WarmStartConfig)


def with_derived(config: Config) -> Config:
    """Return the configuration with its chat template, ``trainer.bf16`` and
    ``trainer.train_vision_tower``.

    Values are the given ones, else those that the run began with, else those that checkpoint and
    machine need.
    """
    config = with_template(config)
    if isinstance(config, EvaluateConfig):
        return config
    frozen = read_frozen(RunStore(config.run_dir).config_path)
    if frozen is not None and "trainer" in frozen["config"]:
        begun = frozen["config"]["trainer"]
        left = {key: begun.get(key) for key in ("bf16", "train_vision_tower") if getattr(config.trainer, key) is None}
        trainer = config.trainer.model_copy(update=left)
    else:
        served = isinstance(config, TrainConfig) and config.serving.engine == "vllm"
        first = config.base if isinstance(config, WarmStartConfig) else config.policy.checkpoint
        parameters = count_model_parameters(resolve_checkpoint(first)) if first else 0
        trainer = choose(config.trainer, parameters, gpu=has_cuda_device(), vllm=served)
    return cast(Config, config.model_copy(update={"trainer": trainer}))


def choose(trainer: TrainerConfig, parameters: int, *, gpu: bool, vllm: bool = False) -> TrainerConfig:
    """Return the settings with values for those that are left open. Pure.

    Args:
        trainer: Configured settings.
        parameters: Parameters of the model; 0 where the number is unknown.
        gpu: True if the trainer has a CUDA device.
        vllm: True if vLLM serves the policy: it does not support adapters of the vision tower.
    """
    chosen = {"bf16": gpu, "train_vision_tower": parameters <= SMALL_MODEL and not (vllm and trainer.adapter_rank)}
    return trainer.model_copy(update={key: value for key, value in chosen.items() if getattr(trainer, key) is None})


def describe_choices(given: TrainerConfig, chosen: TrainerConfig) -> str:
    """Describe the chosen settings, for the log; empty if nothing was left open."""
    descriptions = {
        "bf16": "bfloat16 (a CUDA device is there)" if chosen.bf16 else "float32 (no CUDA device is there)",
        "train_vision_tower": "trained" if chosen.train_vision_tower else "frozen",
    }
    words = {"bf16": "precision", "train_vision_tower": "vision tower"}
    return ", ".join(f"{words[key]}: {descriptions[key]}" for key in descriptions if getattr(given, key) is None)


def count_model_parameters(checkpoint: Path) -> int:
    """Return the parameters of a checkpoint, or of an adapter's base.

    0 where there is none or it is damaged, which its own check reports.
    """
    if not checkpoint.is_dir():
        return 0
    try:
        return count_parameters(base_of(checkpoint) if is_adapter(checkpoint) else checkpoint)
    except (PolicyError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def has_cuda_device() -> bool:
    """Return True if torch would find a CUDA device here, without the seconds of importing it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1") or "+cpu" in importlib.metadata.version("torch"):
        return False
    return any(Path("/dev").glob("nvidia[0-9]*"))
