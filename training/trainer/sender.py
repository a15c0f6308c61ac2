"""Broadcasts the newest version's weights from the trainer's first process to vLLM's servers.

The weights are a copy in host memory, so that training goes on meanwhile. Whoever publishes asks
through the sender's `TCPStore`: it counts up ``requests`` and writes ``request/N``. The sender
writes ``answer/N`` with the name of the broadcast, and takes part in it (`rollwright_broadcast`).
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from training.serving.config import LOOPBACK
from training.serving.vllm.in_server.rollwright_broadcast import Backend, Broadcast, c10d, local_address

LOOK_SECONDS = 0.1
"""Pause between two checks for a request."""
TAKE_SECONDS = 60.0
"""Limit of the wait until the servers are paused and take what is sent."""

logger = logging.getLogger(__name__)


class WeightSender:
    """Offers one version at a time. Close it at the end."""

    def __init__(self, servers: str, owner: str, device: torch.device) -> None:
        """Listen on this machine's address on the way to the servers.

        Args:
            servers: Host of the servers.
            owner: HOST:PORT of the flow's process, on whose machine servers at a loopback address
                are; empty: this machine.
            device: The trainer's device.
        """
        host = owner.rpartition(":")[0] if servers in LOOPBACK and owner else servers
        own = local_address(host)
        listener = socket.create_server((own, 0), family=socket.AF_INET6 if ":" in own else socket.AF_INET)
        port = listener.getsockname()[1]
        self.address = f"{own}:{port}"
        self._device = device
        self._key = secrets.token_hex(4)
        """Tells this sender from one that had its address before."""
        self.name = f"{self.address} {self._key}"
        """Entry ``sender`` of a manifest."""
        self._sent = threading.Event()
        """Set once the offered version was sent."""
        self._offer: tuple[int, Mapping[str, Tensor], str] = (-1, {}, "it has no version yet")
        """Version, its tensors, and why they cannot be sent."""
        # The store closes the listener.
        self._store = c10d.TCPStore(
            own, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="weight-sender", daemon=True)
        self._thread.start()

    def offer(self, version: int, model: Any, weights: Mapping[str, Tensor], folder: Path) -> None:
        """Keep a copy of a version's weights in host memory, in place of the version before.

        Args:
            model: Model that was saved.
            weights: Its tensors, by their names in the model.
            folder: Checkpoint that was written of them; the copy has its names.
        """
        self._offer = version, {}, "it copies it"  # frees the version before
        self._sent.clear()
        copies: dict[str, Tensor] = {}
        try:
            stored = revert_weight_conversion(model, dict(weights))
            fault = difference(stored, folder)
            copies = {} if fault else {name: _to_host(value) for name, value in stored.items()}
        except Exception as error:  # such as no memory: the version has its folder
            fault = f"{type(error).__name__}: {error}"
        if fault:
            logger.warning("v%d is not broadcast: %s", version, fault)
        self._offer = version, copies, fault

    def wait(self, seconds: float) -> None:
        """Wait until the offered version was sent once, or for ``seconds``."""
        if not self._offer[2]:
            self._sent.wait(seconds)

    def close(self) -> None:
        """Take no more requests. A broadcast that has begun goes on."""
        self._closed.set()
        self._thread.join()

    def _serve(self) -> None:
        number = 1
        while not self._closed.is_set():
            if not self._store.check([f"request/{number}"]):
                self._closed.wait(LOOK_SECONDS)
                continue
            request = {"version": None, "device": "", "key": "", **json.loads(self._store.get(f"request/{number}"))}
            version, tensors, fault = self._offer
            if version != request["version"]:
                fault = f"it has v{version}, and not v{request['version']}"
            if request["key"] != self._key:
                fault = "it is of another run, or was started again"
            backend: Backend = "nccl" if {self._device.type, request["device"]} == {"cuda"} else "gloo"
            name = f"broadcast/{self._key}/{number}"
            self._store.set(f"answer/{number}", json.dumps({"fault": fault, "backend": backend, "name": name}))
            if not fault:  # in a thread of its own, since servers that do not come are waited for
                arguments = (name, request, backend, tensors)
                threading.Thread(target=self._send, args=arguments, name="broadcast", daemon=True).start()
            number += 1

    def _send(self, name: str, request: dict[str, Any], backend: Backend, tensors: Mapping[str, Tensor]) -> None:
        begun = time.monotonic()
        try:
            broadcast = Broadcast(self.address, name, 0, request["size"], backend, self._device, request["seconds"])
            try:
                broadcast.send(tensors, TAKE_SECONDS)
            finally:
                broadcast.close()
        except Exception as error:  # the servers read the folder; training goes on
            logger.warning("v%d: its broadcast failed: %s", request["version"], error)
        else:
            seconds = time.monotonic() - begun
            if request["version"] == self._offer[0]:
                self._sent.set()
            print(f"trainer: v{request['version']} was broadcast by {backend} in {seconds:.2f} s", flush=True)


def difference(stored: Mapping[str, Tensor], folder: Path) -> str:
    """Describe how tensors differ from a checkpoint's in name, data type or shape; empty if not."""
    written: dict[str, tuple[str, list[int]]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                written[name] = part.get_dtype(), part.get_shape()
    held = {name: (_SAFETENSORS.get(value.dtype, ""), list(value.shape)) for name, value in stored.items()}
    names = sorted(name for name in written.keys() | held.keys() if written.get(name) != held.get(name))
    if not names:
        return ""
    return f"{names[0]} is {held.get(names[0])} in the trainer, and {written.get(names[0])} in its checkpoint"


_SAFETENSORS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def _to_host(tensor: Tensor) -> Tensor:
    """Copy a tensor to host memory, pinned if there is a GPU."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available())
    return copy.copy_(tensor.detach())
