"""Policy checkpoints of a run: the base is published as version 0, later versions by the trainer."""

from __future__ import annotations

from pathlib import Path

from envs.types import PolicyError
from training.store import RunStore

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")
"""Files of which a checkpoint has one at least."""


def check_checkpoint(checkpoint: Path, key: str = "policy.checkpoint") -> None:
    """``PolicyError`` names the ``key`` of the configuration if the folder is no checkpoint, or one without a tokenizer."""
    if (newest := RunStore(checkpoint).latest_policy()) is not None:
        raise PolicyError(
            f"{key}: {checkpoint} is a run; give one of its policies, as {RunStore(checkpoint).policy_path(newest)}"
        )
    missing = "config.json" if not (checkpoint / "config.json").exists() else ""
    if not missing and not any((checkpoint / name).exists() for name in TOKENIZERS):
        missing = f"tokenizer ({' or '.join(TOKENIZERS)})"
    if missing:
        raise PolicyError(
            f"{key}: {checkpoint} is no Hugging Face checkpoint folder (it has no {missing}); "
            f"give a folder, or make one with: python -m flows.warm_start"
        )


def publish_base(store: RunStore, checkpoint: Path) -> None:
    """Publish ``checkpoint`` as version 0, unless it is there."""
    check_checkpoint(checkpoint)
    store.publish_policy(0, checkpoint, {"parent": None, "source": checkpoint.name})
