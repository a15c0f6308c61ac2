"""LoRA adapters as policies: what a folder with one is, and the whole model that it makes with its base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from envs.types import PolicyError
from training.ledger.checkpoint_files import MANIFEST, RECIPE, WEIGHT_FILES

if TYPE_CHECKING:  # seconds, and most of this needs none
    import torch

ADAPTER_CONFIG = "adapter_config.json"
"""Of PEFT."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""Files that transformers reads a model's weights from, one or in shards."""


def has_whole_model(folder: Path) -> bool:
    """Whether a folder has weights that transformers reads as a whole model."""
    return any(any(folder.glob(pattern)) for pattern in MODEL_WEIGHTS)


def is_adapter(folder: Path) -> bool:
    """Whether a policy's folder holds an adapter and no whole model."""
    return (folder / ADAPTER_CONFIG).exists() and not has_whole_model(folder)


def base_of(folder: Path) -> Path:
    """The checkpoint that an adapter belongs to, as its configuration names it; a relative path starts at the adapter's folder.

    Raises:
        PolicyError: the configuration names none, or the folder that it names is no checkpoint.
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
    """The folder of a policy's whole model: of an adapter its base, otherwise ``folder`` itself."""
    return base_of(folder) if is_adapter(folder) else folder


def load_policy(folder: Path, dtype: torch.dtype | Literal["auto"]) -> Any:
    """The model of a checkpoint folder, or of an adapter's base with the adapter added in.

    Args:
        dtype: Of its weights; ``auto``: as the checkpoint has them.

    Raises:
        StorageError, ReadError, PolicyError: as `loading`.
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
    """Write the whole model of an adapter to the new folder ``target``, as a checkpoint in its base's data type.

    Raises:
        StorageError, ReadError, PolicyError: as `load_policy`.
    """
    model = load_policy(folder, "auto")
    target.mkdir(parents=True)
    for path in base_of(folder).iterdir():
        if path.is_file() and path.name not in (MANIFEST, RECIPE) and not WEIGHT_FILES.fullmatch(path.name):
            shutil.copyfile(path, target / path.name)
    model.save_pretrained(target)
