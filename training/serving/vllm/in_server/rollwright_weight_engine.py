"""vLLM weight-transfer engine that loads a checkpoint folder from disk ("disk").

vLLM imports this module because ``--worker-extension-cls`` names `Extension`; the import registers
the engine, and ``--weight-transfer-config '{"backend": "disk"}'`` selects it. One update is
``/start_weight_update``, ``/update_weights`` with the folder, ``/finish_weight_update`` with the
version. The folder is checked first: names and shapes. Only then the model is touched, so a bad
folder leaves the old weights serving. Files are hashed before the server is paused, by the run if
it is on the same machine, else by a thread of one worker (`Extension.rollwright_read_files`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rollwright_held_adapters import sum_adapter  # type: ignore[import-not-found]
from rollwright_held_weights import sum_weights  # type: ignore[import-not-found]
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.platforms import current_platform

Shapes = dict[str, tuple[int, ...]]
"""Shape of each tensor, by name."""
SHOWN = 3
"""Number of names that an error lists."""


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


class DiskWeightEngine(WeightTransferEngine[DiskInitInfo, DiskUpdateInfo]):  # type: ignore[misc]
    """Loads a checkpoint folder into the running model, on the CPU or on GPUs."""

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
        """Check the folder, then load it.

        Raises:
            ValueError: the folder is outside the root, incomplete, damaged or of another model; the
                served model stays unchanged.
        """
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        files = self._checked(Path(update_info.path).resolve())
        initialize_layerwise_reload(self.model)
        try:
            self.model.load_weights(stored_tensors(files))
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
            pack_tied_matrices(self.model)
        self._applied = True

    def _checked(self, folder: Path) -> list[Path]:
        if self._root is None or self._shapes is None:
            raise ValueError("no weight update before /init_weight_transfer_engine")
        if not folder.is_relative_to(self._root):
            raise ValueError(f"{folder} is not below {self._root}, the root of this server's weights")
        files = weight_files(folder)
        shapes = stored_shapes(files)
        if shapes != self._shapes:
            raise ValueError(f"{folder} is of another model: {difference(self._shapes, shapes)}")
        return files

    def finish_weight_update(self) -> None:
        if not self._applied:
            raise RuntimeError("/finish_weight_update without /update_weights")

    def shutdown(self) -> None:
        """Do nothing; the engine holds no resources."""


def weight_files(folder: Path) -> list[Path]:
    """Return a checkpoint folder's safetensors files: those in its index, else all."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    if files := sorted(folder.glob("*.safetensors")):
        return files
    raise ValueError(f"{folder} has no *.safetensors")


def stored_shapes(files: list[Path]) -> Shapes:
    """Return the shape of every tensor by name. Reads only the headers."""
    shapes: Shapes = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return shapes


def stored_tensors(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor), one after the other."""
    for file in files:
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)


def difference(expected: Shapes, actual: Shapes) -> str:
    """Describe in one line how two sets of named shapes differ."""
    missing = sorted(expected.keys() - actual.keys())
    unknown = sorted(actual.keys() - expected.keys())
    reshaped = sorted(name for name in expected.keys() & actual.keys() if expected[name] != actual[name])
    parts = [("missing", missing), ("unknown", unknown)]
    lines = [f"{len(names)} {what} ({', '.join(names[:SHOWN])})" for what, names in parts if names]
    lines += [f"{name} is {actual[name]}, expected {expected[name]}" for name in reshaped[:SHOWN]]
    return "; ".join(lines)


def check_files(folder: Path, sha256: dict[str, str]) -> None:
    """Read a folder's weight files, which brings them to the page cache, and compare their hashes.

    Raises:
        ValueError: a file is not listed, or holds other bytes.
    """
    for file in weight_files(folder):
        if file.name not in sha256:
            raise ValueError(f"{file} is not listed in its manifest")
        if file_sha256(file) != sha256[file.name]:
            raise ValueError(f"{file} does not hold what its manifest says (sha256)")


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


_reader = ThreadPoolExecutor(max_workers=1)
_readings: dict[str, Future[None]] = {}
"""The newest reading, by folder and hashes."""


class Extension:
    """Adds methods to each worker; ``--worker-extension-cls`` makes it import this module."""

    def rollwright_read_files(self, path: str, sha256: dict[str, str]) -> dict[str, Any]:
        """Start to read and hash a folder's weights in a thread, while the model goes on.

        The same call again says whether it is ``done``, and its ``fault`` if there was one. One
        worker of a machine reads.
        """
        if self.local_rank:  # type: ignore[attr-defined]
            return {"done": True, "fault": ""}
        key = json.dumps([path, sha256])
        if key not in _readings:
            _readings.clear()
            _readings[key] = _reader.submit(check_files, Path(path), sha256)
        if not _readings[key].done():
            return {"done": False, "fault": ""}
        error = _readings.pop(key).exception()
        return {"done": True, "fault": str(error) if error else ""}

    def rollwright_sum_weights(self, shapes: dict[str, list[int]], seed: int) -> dict[str, Any]:
        """Return the checksums of the weights that this worker holds, see `sum_weights`."""
        return dict(sum_weights(self.model_runner.get_model(), shapes, seed))  # type: ignore[attr-defined]

    def rollwright_sum_adapter(self, name: str, tensors: list[str]) -> dict[str, Any]:
        """Return the checksums of an adapter that this worker holds, see `sum_adapter`."""
        return dict(sum_adapter(self.model_runner.lora_manager, name, tensors))  # type: ignore[attr-defined]


if "disk" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("disk", DiskWeightEngine)
