"""Weights that a trainer publishes: adapters alone or merged, compared once with its model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from envs.types import TrainingError
from training.ledger.paths import policy_name
from training.policy.adapters import ADAPTER_WEIGHTS, is_adapter, load_policy

if TYPE_CHECKING:  # which imports this module
    from training.trainer.policy_trainer import PolicyTrainer

DEVICE_ROUNDING = 1e-3
"""Relative difference of an adapter's product on a GPU and on the CPU that is rounding."""


@torch.no_grad()
def compare_published(trainer: PolicyTrainer, folder: Path) -> None:
    """Load a policy's folder as servers do, and compare it with the model in the trainer.

    Adapters are added to their weights in both, in float32. The first process needs memory for one
    more model on the CPU meanwhile. Called on every process.

    Raises:
        TrainingError: The folder holds another model than the trained one; names the weight.
    """
    messages, first = [""], trainer.args.should_save
    dtype = torch.float32 if trainer.lora else next(trainer.model.parameters()).dtype
    with _loading_whole(trainer):
        published = dict(load_policy(folder, dtype).named_parameters(remove_duplicate=False)) if first else {}
    is_merged = trainer.lora and not is_adapter(folder)
    for name, weight, delta in adapted_weights(trainer):  # to the end: processes exchange parts of weights
        if first and not messages[0]:
            rounding = torch.finfo(weight.dtype if is_merged else torch.float32).eps
            expected, added = weight.float().cpu(), delta.float().cpu()
            loaded = published.get(name)
            if loaded is None or loaded.shape != expected.shape:
                messages = [f"it has no {name} of this shape"]
                continue
            gap = (loaded.float() - expected - added).abs()
            limit = rounding * (expected + added).abs() + (rounding + DEVICE_ROUNDING) * added.abs().max()
            if bool((gap > limit).any()):
                messages = [f"its {name} differs by up to {float(gap.max()):.1e}"]
    if trainer.args.world_size > 1:
        torch.distributed.broadcast_object_list(messages)
    if messages[0]:
        raise TrainingError(
            f"what would be published is another model than the one that was trained: {messages[0]}. Nothing was "
            "published; change trainer.llamafactory or trainer.lora_export"
        )


def adapted_weights(trainer: PolicyTrainer) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield each weight's name in a checkpoint, the weight, and what adapters add to it.

    A weight is whole until the next one is yielded, and comes once for each module that has it.
    Iterate to the end, on every process.
    """
    base = trainer.model.get_base_model() if trainer.lora else trainer.model
    for name, module in base.named_modules(remove_duplicate=False):
        if isinstance(module, LoraLayer):
            with trainer.gathered(*module.parameters()):
                delta = sum(module.get_delta_weight(adapter) for adapter in module.active_adapters)
                yield f"{name}.weight", module.get_base_layer().weight, delta
        elif ".lora_" not in name:
            own = dict(module.named_parameters(recurse=False))
            if name.endswith(".base_layer"):
                own.pop("weight")  # which came with its adapter
            with trainer.gathered(*own.values()):
                for key, weight in own.items():
                    yield f"{name.removesuffix('.base_layer')}.{key}", weight, weight.new_zeros(())


def save_adapter(model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Write a PEFT model's adapter. Its base is the run's first version, beside ``folder``."""
    adapter = get_peft_model_state_dict(model, state_dict=weights)
    save_file({name: value.contiguous() for name, value in adapter.items()}, folder / ADAPTER_WEIGHTS, {"format": "pt"})
    config = copy.copy(model.active_peft_config)
    config.base_model_name_or_path, config.inference_mode = f"../{policy_name(0)}", True
    config.save_pretrained(folder)


@torch.no_grad()
def merged_weights(trainer: PolicyTrainer, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of the base model with the adapters added. Called on every process.

    ``merge_adapter`` and unmerging would not do: (W + d) - d is not W in floating point, so the run
    would drift with every publication.

    Args:
        weights: Whole weights; empty where nothing is written.
    """
    deltas = {name: delta for name, _, delta in adapted_weights(trainer) if delta.dim()}
    merged = {}
    for name, value in weights.items():
        if ".lora_" not in name:
            name = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
            merged[name] = value + deltas[name].to(value) if name in deltas else value
    return merged


@contextmanager
def _loading_whole(trainer: PolicyTrainer) -> Iterator[None]:
    """Have transformers load whole models, also where ZeRO 3 would divide them."""
    if not trainer.is_divided:
        yield
        return
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(trainer.args.hf_deepspeed_config)
