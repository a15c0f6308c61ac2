"""Publishes LoRA adapters to running vLLM servers, each version under its own name.

Nothing is paused: turns in flight end with the adapter that they began with, and each cache entry
belongs to one name. The base model keeps its weights and its version label, so the requested name
names a turn's version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from safetensors import safe_open

from envs.types import PolicyError, RollwrightError
from training.policy.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from training.serving.vllm.client import ServerClient, adapter_name
from training.serving.vllm.publishing import (
    CONTROL_SECONDS,
    Publication,
    failed_servers,
    load_seconds,
)

KEPT_ADAPTERS = 2
"""Number of adapters kept loaded: the published one and the previous one, for a rollback. Turns in
flight keep their adapter in any case."""
TOWERS = (".visual.", ".vision_tower.", ".vision_model.")
"""Parts of the names of vision modules, whose adapters vLLM silently ignores."""
LOADED = "already been loaded"
"""Text of vLLM's refusal to load an adapter name a second time."""


def check_adapter(folder: Path) -> None:
    """Refuse an adapter that a server would load only in part.

    Raises:
        PolicyError: the adapter has no weights, or has weights in the vision tower.
    """
    weights = folder / ADAPTER_WEIGHTS
    if not weights.exists():
        raise PolicyError(f"{folder} has {ADAPTER_CONFIG} but no {ADAPTER_WEIGHTS}")
    with safe_open(weights, framework="np") as opened:
        names = list(opened.keys())
    if towers := sorted(name for name in names if any(tower in name for tower in TOWERS)):
        raise PolicyError(
            f"{folder} has adapters in the vision tower ({len(towers)}, such as {towers[0]}), which vLLM ignores: "
            "train adapters of the language model alone, or publish merged weights"
        )


async def publish_adapter(
    clients: Sequence[ServerClient],
    version: int,
    folder: Path,
    *,
    keep: Collection[int] = (),
    limit: float = 0.0,
) -> Publication:
    """Load an adapter as ``version`` on all servers, and unload all but the last two.

    Args:
        keep: Versions that are not unloaded.
        limit: See `publish`.

    Raises:
        PolicyError: a server refuses the adapter; loaded adapters stay.
        EngineError: every server failed.
    """
    check_adapter(folder)
    begun = time.monotonic()
    faults = await asyncio.gather(
        *(_load(client, version, folder, keep, load_seconds(folder, limit)) for client in clients)
    )
    return Publication(version, time.monotonic() - begun, 0.0, failed_servers(clients, version, faults))


async def _load(
    client: ServerClient, version: int, folder: Path, keep: Collection[int], seconds: float
) -> RollwrightError | None:
    body = {"lora_name": adapter_name(version), "lora_path": str(folder)}
    try:
        try:
            await client.post("/v1/load_lora_adapter", seconds, json=body)
        except PolicyError as error:
            if LOADED not in str(error):
                raise
        for old in await client.adapters():
            if old <= version - KEPT_ADAPTERS and old not in keep:
                await client.unload_adapter(old, CONTROL_SECONDS)
    except RollwrightError as error:
        return error
    return None
