"""Methods of vLLM's workers that prepare a new version while the model still generates.

A worker reads and hashes a folder, or joins the trainer's broadcast, in a thread; each method
answers at once, and is called again until it is done.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rollwright_broadcast import Broadcast  # type: ignore[import-not-found]
from rollwright_files import check_files  # type: ignore[import-not-found]

_reader = ThreadPoolExecutor(max_workers=1)
_readings: dict[str, Future[None]] = {}
"""The newest reading, by folder and hashes."""
_joinings: dict[str, Future[None]] = {}
"""The newest joining, by the broadcast's name."""
_joined: dict[str, Broadcast] = {}
"""The broadcast that this worker has joined and not received yet, by its name."""
_faults: dict[str, str] = {}
"""Reason for which the newest broadcast was not received, by its name."""


class Receiver:
    """Part of `Extension`; vLLM adds its methods to each worker."""

    def rollwright_read_files(self, path: str, sha256: dict[str, str]) -> dict[str, Any]:
        """Start to read and hash a folder's weights. One worker of a machine reads.

        Returns:
            Whether it is ``done``, and its ``fault`` if there was one.
        """
        if self.local_rank:  # type: ignore[attr-defined]
            return {"done": True, "fault": ""}
        return _work(_readings, json.dumps([path, sha256]), _reader, lambda: check_files(Path(path), sha256))

    def rollwright_device(self) -> str:
        """Return the type of this worker's device."""
        return str(self.device.type)  # type: ignore[attr-defined]

    def rollwright_join(self, name: str, first_rank: int, **place: Any) -> dict[str, Any]:
        """Start to join a broadcast.

        Args:
            first_rank: Rank of this server's first worker in it.
            place: Further arguments of `Broadcast`.

        Returns:
            Whether it is ``done``, and its ``fault`` if there was one.
        """
        if name in _joined:
            _joinings.pop(name, None)
            return {"done": True, "fault": ""}  # and waits for another worker of the server
        device, rank = self.device, first_rank + self.rank  # type: ignore[attr-defined]
        # A thread of its own: one that waits for a process that never comes holds no later one up.
        return _work(_joinings, name, ThreadPoolExecutor(1), lambda: _join(name, rank, device, place))

    def rollwright_broadcast_fault(self, name: str) -> str:
        """Return why this worker read the folder and not the broadcast; empty if it did not."""
        return _faults.get(name, "")


def take_broadcast(name: str) -> Broadcast:
    """Return a broadcast that this worker has joined; the caller closes it.

    Raises:
        ValueError: it has not.
    """
    if name not in _joined:
        raise ValueError(f"this worker has not joined the broadcast {name}")
    return _joined.pop(name)


def note_fault(name: str, fault: str) -> None:
    """Note why a broadcast was not received; empty: it was."""
    _faults.clear()
    _faults[name] = fault


def _work(
    begun: dict[str, Future[None]], key: str, threads: ThreadPoolExecutor, work: Callable[[], None]
) -> dict[str, Any]:
    if key not in begun:
        begun.clear()
        begun[key] = threads.submit(work)
    if not begun[key].done():
        return {"done": False, "fault": ""}
    error = begun.pop(key).exception()
    return {"done": True, "fault": str(error) if error else ""}


def _join(name: str, rank: int, device: torch.device, place: dict[str, Any]) -> None:
    broadcast = Broadcast(name=name, rank=rank, device=device, **place)
    if name not in _joinings:  # another one was begun meanwhile
        broadcast.close()
        return
    for old in list(_joined):
        _joined.pop(old).close()  # it was never received
    _joined[name] = broadcast
