"""Policy checkpoints of a run: the base is published as version 0, later versions by the trainer."""

from __future__ import annotations

from pathlib import Path

from envs.types import PolicyError
from training.store import RunStore


def check_checkpoint(checkpoint: Path, key: str = "policy.checkpoint") -> None:
    """``PolicyError`` names the ``key`` of the configuration if the folder is no checkpoint."""
    if not (checkpoint / "config.json").exists():
        raise PolicyError(
            f"{key}: {checkpoint} is no Hugging Face checkpoint folder (it has no config.json); "
            f"give a folder, or make one with: python -m flows.warm_start"
        )


def publish_base(store: RunStore, checkpoint: Path) -> None:
    """Publish ``checkpoint`` as version 0, unless it is there."""
    check_checkpoint(checkpoint)
    store.publish_policy(0, checkpoint, {"parent": None, "source": checkpoint.name})
