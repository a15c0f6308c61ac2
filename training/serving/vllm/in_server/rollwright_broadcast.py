"""Broadcast of a version's weights from the trainer to vLLM's workers: NCCL on GPUs, gloo on CPUs.

Imports torch only; the trainer and the servers both use it. The trainer is rank 0. It hosts a
`torch.distributed.TCPStore`, by which the processes of a broadcast find each other. The messages
are the length of a list, the list (JSON: name, data type and shape of each tensor), and then the
tensors in its order, all as bytes: gloo does not know bfloat16. Like all of `torch.distributed` it
asks for no password, and belongs on a network where only your machines are.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

import torch

c10d: Any = torch.distributed  # its stubs lack the groups' options
Backend = Literal["nccl", "gloo"]
Listing = list[tuple[str, str, list[int]]]
"""Name, data type and shape of each tensor."""
BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
MESSAGE_SECONDS = 30.0
"""Limit of one tensor's transfer, once all processes take part."""


class Broadcast:
    """One broadcast, as one of its processes sees it. Close it at the end."""

    def __init__(
        self, address: str, name: str, rank: int, size: int, backend: Backend, device: torch.device, seconds: float
    ) -> None:
        """Join the broadcast; returns once all processes have.

        Args:
            address: HOST:PORT of the trainer's store.
            name: Name of the broadcast, which is used once.
            rank: 0 for the trainer.
            size: Number of processes.
            device: Device of this process; gloo moves host memory.
            seconds: Limit.

        Raises:
            RuntimeError: the store or another process cannot be reached in time.
        """
        limit = timedelta(seconds=seconds)
        store = c10d.PrefixStore(name, connect(address, seconds))
        self.device = device if backend == "nccl" else torch.device("cpu")
        # Training and generation go on, on the stream of their own.
        self._stream = torch.cuda.Stream(device) if backend == "nccl" else None  # type: ignore[no-untyped-call]
        if backend == "nccl":
            torch.cuda.set_device(device)  # of this thread
            meet(store, size, limit)  # NCCL's own wait for the others has no limit
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = limit
            before = os.environ.get(BLOCKING)
            os.environ[BLOCKING] = "1"  # without it a watchdog ends the process after a failure
            try:
                self._group = c10d.ProcessGroupNCCL(store, rank, size, options)
            finally:
                os.environ.pop(BLOCKING) if before is None else os.environ.update({BLOCKING: before})
        else:
            options = c10d.ProcessGroupGloo._Options()
            own = local_address(address.rpartition(":")[0])
            options._devices = [c10d.ProcessGroupGloo.create_device(hostname=own)]
            options._timeout = limit
            self._group = c10d.ProcessGroupGloo(store, rank, size, options)
        try:
            with torch.cuda.stream(self._stream):  # NCCL connects at the first message
                self._move(torch.zeros(1, dtype=torch.uint8, device=self.device), seconds)
        except BaseException:
            self.close()
            raise

    def send(self, tensors: Mapping[str, torch.Tensor], seconds: float) -> None:
        """Send tensors to all others, which have ``seconds`` until they take the first message.

        Raises:
            RuntimeError: another process did not take part, or ended.
        """
        listing: Listing = [(name, str(one.dtype)[6:], list(one.shape)) for name, one in tensors.items()]
        content = torch.frombuffer(bytearray(json.dumps(listing).encode()), dtype=torch.uint8)
        with torch.cuda.stream(self._stream):
            self._move(torch.tensor([len(content)], device=self.device).view(torch.uint8), seconds)
            self._move(content.to(self.device))
            for tensor in tensors.values():
                self._move(_as_bytes(tensor).to(self.device, non_blocking=True))

    def listing(self, seconds: float) -> Listing:
        """Receive the list of the tensors that `tensors` then yields."""
        length = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._move(length.view(torch.uint8), seconds)
        content = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
        self._move(content)
        return [(name, dtype, shape) for name, dtype, shape in json.loads(content.cpu().numpy().tobytes())]

    def tensors(self, listing: Listing) -> Iterator[tuple[str, torch.Tensor]]:
        """Receive the tensors of a list, and yield each one with its name."""
        for name, dtype, shape in listing:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            self._move(_as_bytes(tensor))
            yield name, tensor

    def close(self) -> None:
        """End the group; what another process still waits for fails there."""
        self._group.abort()

    def _move(self, content: torch.Tensor, seconds: float = MESSAGE_SECONDS) -> None:
        if content.numel():
            options = c10d.BroadcastOptions()
            options.rootRank, options.rootTensor = 0, 0
            options.timeout = timedelta(seconds=seconds)
            self._group.broadcast([content], options).wait(timedelta(seconds=seconds))


def meet(store: Any, size: int, limit: timedelta) -> None:
    """Wait until all processes of a broadcast are there.

    Raises:
        RuntimeError: they are not in time.
    """
    if store.add("there", 1) == size:
        store.set("all", "")
    store.wait(["all"], limit)


def connect(address: str, seconds: float) -> Any:
    """Connect to the trainer's store at HOST:PORT.

    Raises:
        RuntimeError: it cannot be reached in time.
    """
    host, _, port = address.rpartition(":")
    return c10d.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=seconds))


def local_address(host: str) -> str:
    """Return this machine's address on the way to a host. Sends nothing."""
    (family, _, _, _, target), *_ = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect(target)
        return str(way.getsockname()[0])


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
