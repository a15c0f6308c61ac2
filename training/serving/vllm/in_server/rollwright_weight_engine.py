"""vLLM weight-transfer engine that loads a folder, or what the trainer broadcasts ("disk").

vLLM imports this module because ``--worker-extension-cls`` names `Extension`; the import registers
the engine, and ``--weight-transfer-config '{"backend": "disk"}'`` selects it. One update is
``/start_weight_update``, ``/update_weights`` with the folder, ``/finish_weight_update`` with the
version. Names and shapes are checked first. Only then the model is touched, so a bad folder leaves
the old weights serving. Files are hashed before the server is paused, by the run if it is on the
same machine, else by a thread of one worker. A broadcast is joined before, too; one that breaks off
leaves half of a version in the model, and the folder is loaded over it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rollwright_spinning  # type: ignore[import-not-found]  # noqa: F401
import torch
from rollwright_files import Shapes, stored_shapes, stored_tensors, weight_files  # type: ignore[import-not-found]
from rollwright_held_adapters import sum_adapter  # type: ignore[import-not-found]
from rollwright_held_weights import sum_weights  # type: ignore[import-not-found]
from rollwright_receiver import Receiver, note_fault, take_broadcast  # type: ignore[import-not-found]
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.platforms import current_platform

SHOWN = 3
"""Number of names that an error lists."""
BEGIN_SECONDS = 10.0
"""Limit of the wait for a broadcast's beginning. The server is paused, and another one may be
ill."""

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass
class DiskInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Body of ``/init_weight_transfer_engine``."""

    root: str
    """Folder below which all readable checkpoints lie."""


@dataclass
class DiskUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Body of ``/update_weights``."""

    path: str
    """Checkpoint folder with ``*.safetensors``, tensors under their Hugging Face names."""
    broadcast: str = ""
    """Name of the broadcast of the same tensors that this worker has joined; empty: none."""


class DiskWeightEngine(WeightTransferEngine[DiskInitInfo, DiskUpdateInfo]):  # type: ignore[misc]
    """Loads a checkpoint folder, or a broadcast, into the running model, on the CPU or on GPUs."""

    init_info_cls = DiskInitInfo
    update_info_cls = DiskUpdateInfo

    _root: Path | None = None
    _shapes: Shapes | None = None
    _applied = False

    def init_transfer_engine(self, init_info: DiskInitInfo) -> None:
        """Store the root and, the first time, the shapes of the server's first checkpoint."""
        self._root = Path(init_info.root).resolve()
        if self._shapes is None:
            self._shapes = stored_shapes(weight_files(Path(self.model_config.model)))

    def start_weight_update(self) -> None:
        self._applied = False

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load weights; unlike the base class, synchronise only an accelerator that exists."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: DiskUpdateInfo) -> None:
        """Load a version from the broadcast if there is one and it works, else from its folder.

        Raises:
            ValueError: the folder is outside the root, incomplete, damaged or of another model; the
                served model stays unchanged.
        """
        files = self._checked(Path(update_info.path).resolve())
        if not (update_info.broadcast and self._received(update_info.broadcast)):
            self._load(stored_tensors(files))
        self._applied = True

    def _received(self, name: str) -> bool:
        """Load what is broadcast, and return True if that succeeded."""
        fault = ""
        try:
            broadcast = take_broadcast(name)
            try:
                listing = broadcast.listing(BEGIN_SECONDS)
                self._check_shapes(name, {tensor: tuple(shape) for tensor, _, shape in listing})
                self._load(broadcast.tensors(listing))
            finally:
                broadcast.close()
        except Exception as error:  # whatever it is, the folder has the same tensors
            fault = f"{type(error).__name__}: {error}"
            logger.warning("the broadcast %s failed, the folder is read: %s", name, fault)
        note_fault(name, fault)
        return not fault

    def _load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        initialize_layerwise_reload(self.model)
        try:
            self.model.load_weights(tensors)
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
            pack_tied_matrices(self.model)

    def _checked(self, folder: Path) -> list[Path]:
        if self._root is None:
            raise ValueError("no weight update before /init_weight_transfer_engine")
        if not folder.is_relative_to(self._root):
            raise ValueError(f"{folder} is not below {self._root}, the root of this server's weights")
        files: list[Path] = weight_files(folder)
        self._check_shapes(str(folder), stored_shapes(files))
        return files

    def _check_shapes(self, name: str, shapes: Shapes) -> None:
        if shapes != self._shapes:
            raise ValueError(f"{name} is of another model: {difference(self._shapes or {}, shapes)}")

    def finish_weight_update(self) -> None:
        if not self._applied:
            raise RuntimeError("/finish_weight_update without /update_weights")

    def shutdown(self) -> None:
        """Do nothing; the engine holds no resources."""


def difference(expected: Shapes, actual: Shapes) -> str:
    """Describe in one line how two sets of named shapes differ."""
    missing = sorted(expected.keys() - actual.keys())
    unknown = sorted(actual.keys() - expected.keys())
    reshaped = sorted(name for name in expected.keys() & actual.keys() if expected[name] != actual[name])
    parts = [("missing", missing), ("unknown", unknown)]
    lines = [f"{len(names)} {what} ({', '.join(names[:SHOWN])})" for what, names in parts if names]
    lines += [f"{name} is {actual[name]}, expected {expected[name]}" for name in reshaped[:SHOWN]]
    return "; ".join(lines)


def pack_tied_matrices(model: torch.nn.Module) -> None:
    """Repack the copies that vLLM's CPU backend keeps of a layer's ``weight``.

    Linear layers are packed when they are loaded. The head of a model with tied embeddings is not
    loaded by its own name, so its packed copy would stay that of the old weights, without any
    error.
    """
    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if hasattr(layer, "cpu_linear") and weight is not None and weight.numel():
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


class Extension(Receiver):  # type: ignore[misc]
    """Adds methods to each worker; ``--worker-extension-cls`` makes it import this module."""

    def rollwright_sum_weights(self, shapes: dict[str, list[int]], seed: int) -> dict[str, Any]:
        """Return the checksums of the weights that this worker holds, see `sum_weights`."""
        return dict(sum_weights(self.model_runner.get_model(), shapes, seed))  # type: ignore[attr-defined]

    def rollwright_sum_adapter(self, name: str, tensors: list[str]) -> dict[str, Any]:
        """Return the checksums of an adapter that this worker holds, see `sum_adapter`."""
        return dict(sum_adapter(self.model_runner.lora_manager, name, tensors))  # type: ignore[attr-defined]


if "disk" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("disk", DiskWeightEngine)
