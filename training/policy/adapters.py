"""LoRA adapters as policies: recognises an adapter's folder and merges it with its base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from envs.types import PolicyError
from training.ledger.checkpoint_files import MANIFEST, RECIPE, WEIGHT_FILES

if TYPE_CHECKING:  # importing torch takes seconds, and most functions here do not need it
    import torch

ADAPTER_CONFIG = "adapter_config.json"
"""Name of PEFT's configuration file."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""Patterns of the files from which transformers reads a model's weights, one file or shards."""


def has_whole_model(folder: Path) -> bool:
    """Return True if a folder has weights that transformers reads as a whole model."""
    return any(any(folder.glob(pattern)) for pattern in MODEL_WEIGHTS)


def is_adapter(folder: Path) -> bool:
    """Return True if a policy's folder holds an adapter and no whole model."""
    return (folder / ADAPTER_CONFIG).exists() and not has_whole_model(folder)


def base_of(folder: Path) -> Path:
    """Return the checkpoint that an adapter's configuration names as its base.

    A relative path starts at the adapter's folder.

    Raises:
        PolicyError: The configuration names none, or the folder that it names is no checkpoint.
    """
    try:
        named = str(json.loads((folder / ADAPTER_CONFIG).read_bytes())["base_model_name_or_path"])
    except (ValueError, KeyError, TypeError):
        named = "a model that it does not name"
    base = (folder / named).resolve()
    if not (base / "config.json").exists():
        raise PolicyError(
            f"{folder} holds only an adapter (LoRA) of {named}, and no checkpoint is there; "
            f"put its base there, or merge it into its base with llamafactory-cli export and give that folder"
        )
    return base


def whole_model_of(folder: Path) -> Path:
    """Return the folder of a policy's whole model: an adapter's base, else ``folder``."""
    return base_of(folder) if is_adapter(folder) else folder


def load_policy(folder: Path, dtype: torch.dtype | Literal["auto"]) -> Any:
    """Load the model of a checkpoint folder, or of an adapter merged into its base.

    Args:
        dtype: Data type of the weights; ``auto``: the checkpoint's.

    Raises:
        StorageError, ReadError, PolicyError: As in `loading`.
    """
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    from training.policy.renderer import loading

    base = whole_model_of(folder)
    with loading(base):
        model = AutoModelForImageTextToText.from_pretrained(base, dtype=dtype)
    if base == folder:
        return model
    with loading(folder):
        return PeftModel.from_pretrained(model, folder).merge_and_unload()


def merge_adapter(folder: Path, target: Path) -> None:
    """Write an adapter's whole model to the new folder ``target``.

    It is a checkpoint in its base's data type.

    Raises:
        StorageError, ReadError, PolicyError: As in `load_policy`.
    """
    model = load_policy(folder, "auto")
    target.mkdir(parents=True)
    for path in base_of(folder).iterdir():
        if path.is_file() and path.name not in (MANIFEST, RECIPE) and not WEIGHT_FILES.fullmatch(path.name):
            shutil.copyfile(path, target / path.name)
    model.save_pretrained(target)
