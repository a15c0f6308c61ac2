"""Has vLLM servers join the trainer's broadcast of a version, before they are paused.

The version's manifest names the trainer's store (``sender``). Whatever goes wrong here is a warning
only: the servers then read the folder, which holds the same weights.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from envs.types import EngineError, PolicyError, RollwrightError
from training.ledger.checkpoint_files import MANIFEST, read_manifest
from training.serving.vllm.client import ServerClient

ASK_SECONDS = 30.0
"""Limit of the trainer's answer, and of a server's."""
JOIN_SECONDS = 30.0
"""Limit of the wait until all servers have joined."""
LOOK_SECONDS = 0.05
"""Pause between two questions whether a server has joined."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Joined:
    """Servers that have joined a broadcast; none by default."""

    name: str = ""
    servers: frozenset[str] = frozenset()
    """Addresses."""

    def name_for(self, client: ServerClient) -> str:
        """Return the broadcast's name for a server; empty if it reads the folder."""
        return self.name if client.address in self.servers else ""


async def join_broadcast(clients: Sequence[ServerClient], version: int, folder: Path) -> Joined:
    """Have the servers that answer join the broadcast of a version, if its trainer offers one.

    Raises:
        StorageError: the folder's manifest is damaged.
    """
    sender = str(read_manifest(folder).get("sender", "")) if (folder / MANIFEST).exists() else ""
    if not sender:
        return Joined()
    try:
        return await _join(sender, clients, version)
    except ConnectionRefusedError:
        logger.info("v%d: its trainer has ended; servers read its folder", version)
    except Exception as error:  # of libraries too: the folder holds the same weights
        logger.warning("v%d is not broadcast, servers read its folder: %s", version, error or type(error).__name__)
    return Joined()


async def _join(sender: str, clients: Sequence[ServerClient], version: int) -> Joined:
    lists = await asyncio.gather(*(_devices(client) for client in clients))
    workers = {client: devices for client, devices in zip(clients, lists, strict=True) if devices}
    types = {device for devices in workers.values() for device in devices}
    if len(types) != 1:
        raise EngineError(f"the servers that answer have the devices {sorted(types)}")
    size = 1 + sum(len(devices) for devices in workers.values())
    request = {"version": version, "size": size, "device": types.pop(), "seconds": JOIN_SECONDS}
    answer = await asyncio.to_thread(ask_sender, sender, request)
    if answer["fault"]:
        raise EngineError(f"the trainer: {answer['fault']}")
    place = {
        "address": sender.partition(" ")[0],
        "name": answer["name"],
        "size": size,
        "backend": answer["backend"],
        "seconds": JOIN_SECONDS,
    }
    first, joining = 1, []
    for client, devices in workers.items():
        joining.append(_join_server(client, {**place, "first_rank": first}))
        first += len(devices)
    tasks = [asyncio.ensure_future(one) for one in joining]
    try:
        async with asyncio.timeout(2 * JOIN_SECONDS):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # the others ask no more once one has failed
        await asyncio.gather(*tasks, return_exceptions=True)
    return Joined(answer["name"], frozenset(client.address for client in workers))


async def _devices(client: ServerClient) -> list[str]:
    """Return the device type of each of a server's workers; empty if it does not answer."""
    try:
        return list(
            (await client.post("/collective_rpc", ASK_SECONDS, json={"method": "rollwright_device"}))["results"]
        )
    except EngineError:
        return []  # the switch tells


async def _join_server(client: ServerClient, place: dict[str, Any]) -> None:
    body = {"method": "rollwright_join", "kwargs": place}
    while True:
        workers = (await client.post("/collective_rpc", ASK_SECONDS, json=body))["results"]
        if faults := [worker["fault"] for worker in workers if worker["fault"]]:
            raise PolicyError(f"{client.address} cannot join: {faults[0]}")
        if all(worker["done"] for worker in workers):
            return
        await asyncio.sleep(LOOK_SECONDS)


def ask_sender(sender: str, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the trainer for a broadcast; return its answer: ``fault``, ``backend`` and ``name``.

    Raises:
        ConnectionRefusedError: nothing listens there any more.
        OSError, RuntimeError: it does not answer.
    """
    from training.serving.vllm.in_server.rollwright_broadcast import connect

    address, _, key = sender.partition(" ")
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), ASK_SECONDS).close()  # torch would try again, and print its stack
    store = connect(address, ASK_SECONDS)
    number = store.add("requests", 1)
    store.set(f"request/{number}", json.dumps({**request, "key": key}))
    store.wait([f"answer/{number}"], timedelta(seconds=ASK_SECONDS))
    answer: dict[str, Any] = json.loads(store.get(f"answer/{number}"))
    return answer


async def count_received(clients: Sequence[ServerClient], version: int, joined: Joined) -> int:
    """Return how many servers loaded what was broadcast; warn of those that read the folder."""
    received = 0
    body = {"method": "rollwright_broadcast_fault", "kwargs": {"name": joined.name}}
    for client in clients:
        if not joined.name_for(client):
            continue
        try:
            faults = (await client.post("/collective_rpc", ASK_SECONDS, json=body))["results"]
        except RollwrightError as error:
            faults = [str(error)]
        received += not any(faults)
        for fault in filter(None, faults):
            logger.warning("%s read v%d from its folder: %s", client.address, version, fault)
    return received
