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
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import anyio

from envs.types import EngineError, PolicyError, RollwrightError
from training.ledger.checkpoint_files import MANIFEST, WEIGHT_FILES, check_files, read_manifest
from training.ledger.disk import folder_bytes
from training.serving.vllm.broadcasting import Joined, count_received, join_broadcast
from training.serving.vllm.client import ServerClient

UpdateMode = Literal["exact", "fast"]
"""Treatment of caches and turns in flight at a new version, see the module."""

Answer = TypeVar("Answer")
Fault = RollwrightError | None
"""Fault of one server: it died (`EngineError`), it refused (other errors), or none."""

SwitchResult = tuple[Fault, float]
"""Fault of a server at a switch, and the seconds for which it generated nothing."""

CONTROL_SECONDS = 60.0
"""Limit of a step that does not depend on the model's size."""
SLOWEST_BYTES_PER_SECOND = 50e6
"""Lowest read speed of weights that is waited for without a limit of one's own."""
READ_SECONDS = 0.2
"""Pause between two questions whether a machine has read the weights."""
LATE_SECONDS = 10.0
"""Seconds that a server may take longer than twice the time of the first one that switched."""
OPEN_UPDATE = "already active"
"""Text of vLLM's refusal to begin an update after the publisher of another one died."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Publication:
    """Result of one publication."""

    version: int
    seconds: float
    """Wall seconds from the first pause to the last resume."""
    pause_seconds: float
    """Longest time in seconds for which a server generated nothing."""
    failed: dict[str, RollwrightError]
    """Servers that died, were too late or refused, by address; their watchers give them the
    version."""
    broadcast: int = 0
    """Servers that got the weights from the trainer, and not from the folder."""

    def __str__(self) -> str:
        way = f", broadcast to {self.broadcast} servers" if self.broadcast else ""
        return f"v{self.version}: published in {self.seconds:.1f} s, no tokens for {self.pause_seconds:.2f} s{way}"


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
    limit: float = 0.0,
) -> Publication:
    """Serve a checkpoint folder as ``version`` on all servers.

    Its files are read and hashed before the first pause, once on each machine. Servers of a machine
    that reads other bytes, or cannot read them in time, do not get it. Where the trainer broadcasts
    its weights, only headers are read.

    Args:
        update: Treatment of caches, see the module.
        together: True to switch all servers at once, each at its own pace; False to switch them
            one by one, while the others go on generating.
        limit: Seconds that all machines have to read the folder, and a server to switch to it; 0:
            see `load_seconds`.

    Raises:
        PolicyError: no server takes the folder, and one refuses it.
        StorageError: the folder's manifest or its weights are damaged; no server was paused.
        EngineError: every server failed.
    """
    seconds = load_seconds(folder, limit)
    joined = await join_broadcast(clients, version, folder) if together else Joined()
    from_folder = [client for client in clients if client.address not in joined.servers]
    faults: dict[str, Fault] = {**await read_on_machines(from_folder, folder, seconds)}
    begun = time.monotonic()
    clear = update == "exact"
    switch = partial(_switch, version=version, folder=folder, joined=joined, clear_cache=clear, seconds=seconds)
    readers = [client for client in clients if client.address not in faults]
    if together:
        results = await _switch_together(readers, switch)
    else:
        results = [await switch(client) for client in readers]
    faults |= {client.address: fault for client, (fault, _) in zip(readers, results, strict=True)}
    failed = failed_servers(clients, version, [faults[client.address] for client in clients])
    longest = max((paused for _, paused in results), default=0.0)
    took = time.monotonic() - begun
    loaded = [client for client in clients if client.address not in failed]
    return Publication(version, took, longest, failed, await count_received(loaded, version, joined))


async def read_on_machines(clients: Sequence[ServerClient], folder: Path, seconds: float) -> dict[str, RollwrightError]:
    """Hash a folder's weights on every machine that serves, once on each, while it generates.

    This also brings them to the machine's page cache, so that a paused server reads memory. Nothing
    happens without a manifest.

    Returns:
        Faults of the servers of other machines that did not read these weights, by address.

    Raises:
        StorageError: the weights are damaged on this machine.
    """
    sha256 = manifest_hashes(folder)
    if not sha256:
        return {}
    machines: dict[str, list[ServerClient]] = defaultdict(list)
    for client in clients:
        host = urlsplit(client.address).hostname or ""
        machines["" if is_here(host) else host].append(client)
    if machines.pop("", None):
        await asyncio.to_thread(check_weights, folder)
    faults = await asyncio.gather(*(_read_on(servers, folder, sha256, seconds) for servers in machines.values()))
    return {
        client.address: fault
        for servers, fault in zip(machines.values(), faults, strict=True)
        for client in servers
        if fault is not None
    }


async def _read_on(servers: Sequence[ServerClient], folder: Path, sha256: dict[str, str], seconds: float) -> Fault:
    """Have the first server of a machine that answers hash a folder. Return the machine's fault.

    A server that is silent for its share of the time leaves the rest to the next ones.
    """
    body = {"method": "rollwright_read_files", "kwargs": {"path": str(folder), "sha256": sha256}}
    until = time.monotonic() + seconds
    for index, client in enumerate(servers):
        try:
            while (rest := until - time.monotonic()) > 0:
                silence = min(CONTROL_SECONDS, rest / (len(servers) - index))
                ranks = (await client.post("/collective_rpc", silence, json=body))["results"]
                if faults := [rank["fault"] for rank in ranks if rank["fault"]]:
                    return PolicyError(f"{client.address}: {faults[0]}")
                if all(rank["done"] for rank in ranks):
                    return None
                await asyncio.sleep(READ_SECONDS)
        except EngineError as error:
            if time.monotonic() < until:  # else the line below names it
                logger.warning("%s cannot read %s beforehand: %s", client.address, folder, error)
        except RollwrightError as error:
            return error
    if time.monotonic() < until:
        return None  # no server of it answers, as the switch will tell
    named = ", ".join(client.address for client in servers)
    late = EngineError(f"{named}: the machine has not read {folder} in {seconds:.0f} s (serving.publish_seconds)")
    logger.warning("%s; it gets the version later", late)
    return late


def is_here(host: str) -> bool:
    """Return True if an address is one of this machine's."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            return False
    return True


def load_seconds(folder: Path, limit: float = 0.0) -> float:
    """Return the limit in seconds for loading a folder; it depends on its size if none is given."""
    return limit or CONTROL_SECONDS + folder_bytes(folder) / SLOWEST_BYTES_PER_SECOND


def split_answers(
    clients: Sequence[ServerClient], answers: Sequence[Answer | RollwrightError]
) -> tuple[dict[str, Answer], dict[str, Fault]]:
    """Return the answers of servers that gave one, and the fault of each server, by address."""
    pairs = list(zip((client.address for client in clients), answers, strict=True))
    return (
        {address: answer for address, answer in pairs if not isinstance(answer, RollwrightError)},
        {address: answer if isinstance(answer, RollwrightError) else None for address, answer in pairs},
    )


def failed_servers(
    clients: Sequence[ServerClient], version: int, faults: Sequence[Fault]
) -> dict[str, RollwrightError]:
    """Return the faults of servers that failed, by address.

    What one server refuses and another one takes is a fault of the first.

    Raises:
        EngineError: every server failed.
        RollwrightError: no server is right; the first refusal.
    """
    failed = {client.address: fault for client, fault in zip(clients, faults, strict=True) if fault is not None}
    if len(failed) == len(clients):
        if refusal := next((fault for fault in failed.values() if not isinstance(fault, EngineError)), None):
            raise refusal
        raise EngineError(f"v{version} reached no server: {'; '.join(map(str, failed.values()))}")
    return failed


async def _switch_together(
    clients: Sequence[ServerClient], switch: Callable[[ServerClient], Awaitable[SwitchResult]]
) -> list[SwitchResult]:
    """Switch all servers at once. One that is much later than the first is given up."""

    async def run(client: ServerClient) -> SwitchResult:
        return await switch(client)

    begun = time.monotonic()
    tasks = [asyncio.create_task(run(client)) for client in clients]
    try:
        pending = set(tasks)
        while pending and not any(task.done() and task.result()[0] is None for task in tasks):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        seconds = time.monotonic() - begun + LATE_SECONDS
        if pending:
            _, pending = await asyncio.wait(pending, timeout=seconds)
        return [
            (EngineError(f"{client.address} was {seconds:.0f} s later than the first server"), 0.0)
            if task in pending
            else task.result()
            for client, task in zip(clients, tasks, strict=True)
        ]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _switch(
    client: ServerClient, *, version: int, folder: Path, joined: Joined, clear_cache: bool, seconds: float
) -> SwitchResult:
    """Pause, load and resume on one server."""
    keep = {"mode": "keep", "clear_cache": str(clear_cache).lower()}
    info = {"update_info": {"path": str(folder), "broadcast": joined.name_for(client)}}
    fault: Fault = None
    try:
        await _begin(client)
    except RollwrightError as error:
        return error, 0.0
    paused = time.monotonic()
    try:
        await client.post("/pause", CONTROL_SECONDS, params=keep)
        await client.post("/update_weights", seconds, json=info)
        await client.post("/finish_weight_update", CONTROL_SECONDS, json={"weight_version": str(version)})
    except RollwrightError as error:
        fault = error
    finally:
        with anyio.CancelScope(shield=True):  # a paused server would hold its turns for ever
            stuck = await _resume(client)
    return stuck or fault, time.monotonic() - paused


async def _begin(client: ServerClient) -> None:
    """Begin an update. The model does not change yet, so it need not be paused."""
    try:
        await client.post("/start_weight_update", CONTROL_SECONDS)
    except PolicyError as error:
        if OPEN_UPDATE not in str(error):
            raise


async def _resume(client: ServerClient) -> Fault:
    """Have a server generate again, and return its fault if it does not."""
    try:
        await client.post("/resume", CONTROL_SECONDS)
    except PolicyError as error:
        return EngineError(f"{client.address} does not go on after an update: {error}")
    except RollwrightError as error:
        return error
    return None


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


def check_weights(folder: Path) -> None:
    """Compare a folder's weights with its manifest. Hashes all of them.

    Raises:
        StorageError: a file is missing or damaged; names it.
    """
    files = read_manifest(folder)["files"]
    weights = {name: entry for name, entry in files.items() if WEIGHT_FILES.fullmatch(name)}
    check_files(folder, weights, MANIFEST)
