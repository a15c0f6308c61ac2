"""Gives running vLLM servers new weights between two tokens of the turns in flight.

On each server: pause and keep its turns, load the checkpoint's folder, name the version, resume. With ``exact`` every cache is cleared
while it is paused: turns in flight go on after their prompts are computed again, and each token is of exactly one version. With ``fast``
the caches of turns in flight are kept: what they generate afterwards comes from new weights over the old ones' keys and values, a policy
that exists nowhere else, so only the log-probs that were returned with it may be trained on.
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
"""What becomes of caches and turns in flight at a new version."""

Fault = RollwrightError | None
"""Of one server: it died (`EngineError`), it refuses, or all is well."""

CONTROL_SECONDS = 60.0
"""For a step that does not depend on the model's size."""
SLOWEST_BYTES_PER_SECOND = 50e6
"""Of the storage that weights are read from: a server that takes longer has stopped."""
OPEN_UPDATE = "already active"
"""In vLLM's refusal to begin an update when another one was begun and its publisher died."""


@dataclass(frozen=True, slots=True)
class Publication:
    """How one publication went."""

    version: int
    seconds: float
    """From the first pause to the last resume."""
    pause_seconds: float
    """The longest time that one server generated nothing."""
    failed: dict[str, EngineError]
    """Servers that died of it or before it, by address: they serve it when they are started again."""


async def prepare(client: ServerClient, weights_root: Path) -> None:
    """Once per start of a server: make its weight engine ready for folders below ``weights_root``.

    Raises:
        ConfigError, EngineError: as `ServerClient.check`.
        PolicyError: the server has not our weight engine.
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
        update: Caches: see the module.
        together: All servers switch at once; otherwise one after the other, so that the others go on generating.

    Raises:
        PolicyError: a server refuses the folder, and goes on serving what it served; others may have switched.
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
    """How long loading a folder may take."""
    return CONTROL_SECONDS + folder_bytes(folder) / SLOWEST_BYTES_PER_SECOND


def engine_errors(clients: Sequence[ServerClient], faults: Sequence[RollwrightError | None]) -> dict[str, EngineError]:
    """The servers that died, by address. Raises the first fault of another kind."""
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
    """``failed``, if a server is left.

    Raises:
        EngineError: every server failed.
    """
    if len(failed) == len(clients):
        raise EngineError(f"v{version} reached no server: {'; '.join(map(str, failed.values()))}")
    return failed


async def _switch(
    clients: Sequence[ServerClient], version: int, folder: Path, sha256: dict[str, str], *, clear_cache: bool
) -> tuple[list[Fault], float]:
    """Pause, load and resume on all of them; the fault of each server, and the seconds from the first pause to the last resume."""
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
        with anyio.CancelScope(shield=True):  # a paused server would keep its turns for ever
            resumed = await _each(clients, [None] * len(clients), _resume)
    return [last or first for first, last in zip(faults, resumed, strict=True)], time.monotonic() - paused


async def _each(
    clients: Sequence[ServerClient], faults: Sequence[Fault], step: Callable[[ServerClient], Awaitable[object]]
) -> list[Fault]:
    """One step on every server that has no fault yet, at the same time."""

    async def take(client: ServerClient, fault: Fault) -> Fault:
        if fault is None:
            try:
                await step(client)
            except RollwrightError as error:
                return error
        return fault

    return list(await asyncio.gather(*map(take, clients, faults)))


async def _begin(client: ServerClient) -> None:
    """Begin an update; nothing of the model is touched yet, so it need not be paused."""
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
    """sha256 of each weight file that a published folder's manifest lists; none for a folder without one.

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
