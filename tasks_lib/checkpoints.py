"""Policy checkpoints of a run: the base is published as version 0, later versions by the trainer."""

from __future__ import annotations

from pathlib import Path

from envs.types import PolicyError
from training.store import RunStore


def publish_base(store: RunStore, checkpoint: Path) -> None:
    """Publish ``checkpoint`` as version 0, unless it is there."""
    if not (checkpoint / "config.json").exists():
        raise PolicyError(
            f"policy.checkpoint: {checkpoint} is no Hugging Face checkpoint folder (it has no config.json); "
            f"give a folder, or make one with: python -m flows.warm_start"
        )
    store.publish_policy(0, checkpoint, {"parent": None, "source": checkpoint.name})
