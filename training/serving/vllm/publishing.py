"""Loads new weights into running vLLM servers between two tokens of the turns in flight.

Steps on each server: pause and keep its turns, load the checkpoint folder, set the version label,
resume. With ``exact`` the pause clears every cache: turns in flight go on after their keys and
values are computed again, and each token comes from exactly one version. With ``fast`` the caches
of turns in flight are kept. Their later tokens then come from new weights over old keys and values,
a policy that exists nowhere else, so only the log-probs returned with these tokens may be used for
training.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from envs.types import EngineError, PolicyError, RollwrightError
from training.ledger.checkpoint_files import MANIFEST, WEIGHT_FILES, read_manifest
from training.ledger.disk import folder_bytes
from training.serving.vllm.client import ServerClient

UpdateMode = Literal["exact", "fast"]
"""Treatment of caches and turns in flight at a new version, see the module."""

Fault = RollwrightError | None
"""Fault of one server: it died (`EngineError`), it refused (other errors), or none."""

CONTROL_SECONDS = 60.0
"""Limit of a step that does not depend on the model's size."""
SLOWEST_BYTES_PER_SECOND = 50e6
"""Lowest read speed of weights that is waited for; a slower server counts as stopped."""
OPEN_UPDATE = "already active"
"""Text of vLLM's refusal to begin an update after the publisher of another one died."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Result of one publication."""

    version: int
    seconds: float
    """Wall seconds from the first pause to the last resume."""
    pause_seconds: float
    """Longest time in seconds for which a server generated nothing."""
    failed: dict[str, EngineError]
    """Servers that died before or during it, by address; a restart gives them the version."""


async def prepare(client: ServerClient, weights_root: Path) -> None:
    """Prepare a started server's weight engine for folders below ``weights_root``.

    Called once per start of the server.

    Raises:
        ConfigError, EngineError: see `ServerClient.check`.
        PolicyError: the server lacks our weight engine.
    """
    await client.check()
    info = {"init_info": {"root": str(weights_root)}}
    await client.post("/init_weight_transfer_engine", CONTROL_SECONDS, json=info)


async def publish(
    clients: Sequence[ServerClient],
    version: int,
    folder: Path,
    *,
    update: UpdateMode = "exact",
    together: bool = True,
) -> Publication:
    """Serve a checkpoint folder as ``version`` on all servers.

    Args:
        update: Treatment of caches, see the module.
        together: True to switch all servers at once; False to switch them one by one, while the
            others go on generating.

    Raises:
        PolicyError: a server refuses the folder and keeps its version; others may have switched.
        StorageError: the folder's manifest is damaged.
        EngineError: every server failed.
    """
    sha256 = manifest_hashes(folder)
    begun = time.monotonic()
    groups = [list(clients)] if together else [[client] for client in clients]
    failed: dict[str, EngineError] = {}
    longest = 0.0
    for group in groups:
        faults, paused = await _switch(group, version, folder, sha256, clear_cache=update == "exact")
        longest = max(longest, paused)
        failed |= engine_errors(group, faults)
    return Publication(version, time.monotonic() - begun, longest, require_one(clients, version, failed))


def load_seconds(folder: Path) -> float:
    """Return the limit in seconds for loading a folder."""
    return CONTROL_SECONDS + folder_bytes(folder) / SLOWEST_BYTES_PER_SECOND


def engine_errors(clients: Sequence[ServerClient], faults: Sequence[RollwrightError | None]) -> dict[str, EngineError]:
    """Return the faults of servers that died, by address. Raise the first other fault."""
    failed: dict[str, EngineError] = {}
    for client, fault in zip(clients, faults, strict=True):
        if isinstance(fault, EngineError):
            failed[client.address] = fault
        elif fault is not None:
            raise fault
    return failed


def require_one(
    clients: Sequence[ServerClient], version: int, failed: dict[str, EngineError]
) -> dict[str, EngineError]:
    """Return ``failed`` if a server is left.

    Raises:
        EngineError: every server failed.
    """
    if len(failed) == len(clients):
        raise EngineError(f"v{version} reached no server: {'; '.join(map(str, failed.values()))}")
    return failed


async def _switch(
    clients: Sequence[ServerClient], version: int, folder: Path, sha256: dict[str, str], *, clear_cache: bool
) -> tuple[list[Fault], float]:
    """Pause, load and resume on all of them.

    Returns the fault of each server, and the seconds from the first pause to the last resume.
    """
    keep = {"mode": "keep", "clear_cache": str(clear_cache).lower()}
    info = {"update_info": {"path": str(folder), "sha256": sha256}}
    label = {"weight_version": str(version)}
    faults = await _each(clients, [None] * len(clients), _begin)
    paused = time.monotonic()
    try:
        faults = await _each(clients, faults, lambda client: client.post("/pause", CONTROL_SECONDS, params=keep))
        faults = await _each(
            clients, faults, lambda client: client.post("/update_weights", load_seconds(folder), json=info)
        )
        faults = await _each(
            clients, faults, lambda client: client.post("/finish_weight_update", CONTROL_SECONDS, json=label)
        )
    finally:
        with anyio.CancelScope(shield=True):  # a paused server would hold its turns for ever
            resumed = await _each(clients, [None] * len(clients), _resume)
    return [last or first for first, last in zip(faults, resumed, strict=True)], time.monotonic() - paused


async def _each(
    clients: Sequence[ServerClient], faults: Sequence[Fault], step: Callable[[ServerClient], Awaitable[object]]
) -> list[Fault]:
    """Take a step on all servers without a fault, concurrently; return all faults."""

    async def take(client: ServerClient, fault: Fault) -> Fault:
        if fault is None:
            try:
                await step(client)
            except RollwrightError as error:
                return error
        return fault

    return list(await asyncio.gather(*map(take, clients, faults)))


async def _begin(client: ServerClient) -> None:
    """Begin an update. The model does not change yet, so it need not be paused."""
    try:
        await client.post("/start_weight_update", CONTROL_SECONDS)
    except PolicyError as error:
        if OPEN_UPDATE not in str(error):
            raise


async def _resume(client: ServerClient) -> None:
    try:
        await client.post("/resume", CONTROL_SECONDS)
    except PolicyError as error:
        raise EngineError(f"{client.address} does not go on after an update: {error}") from error


def manifest_hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of each weight file in a folder's manifest; empty without a manifest.

    Raises:
        StorageError: the manifest is damaged.
    """
    if not (folder / MANIFEST).exists():
        return {}
    files = read_manifest(folder)["files"]
    return {
        name: str(entry["sha256"])
        for name, entry in files.items()
        if WEIGHT_FILES.fullmatch(name) and name.endswith(".safetensors")
    }
