"""Finds a LoRA adapter's tensors in a running vLLM worker, and computes their checksums there.

vLLM keeps a whole copy of each adapter in host memory, with its scaling multiplied into the second
matrices, and copies it (divided between the ranks of tensor parallelism) into a place of the
buffers with which the model computes. The whole copy gets checksums; the buffers are compared with
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from rollwright_checksums import checksum  # type: ignore[import-not-found]
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.utils import parse_fine_tuned_lora_name
from vllm.lora.worker_manager import WorkerLoRAManager

_load = WorkerLoRAManager._load_adapter


def remember_names() -> None:
    """Have vLLM keep the name of each adapter that it loads; its workers know numbers alone."""

    def load_adapter(manager: Any, request: Any) -> Any:
        adapter = _load(manager, request)
        adapter.rollwright_name = request.lora_name
        return adapter

    WorkerLoRAManager._load_adapter = load_adapter


def sum_adapter(worker_manager: Any, name: str, tensors: Sequence[str]) -> dict[str, Any]:
    """Return the checksums of an adapter's tensors as this rank holds them.

    Args:
        worker_manager: vLLM's manager of a worker's adapters.
        name: Name under which the adapter was loaded.
        tensors: Names of the tensors in the adapter's file.

    Returns:
        ``held``: dtype and checksum of each tensor that is held, by name; ``differ``: layers whose
        buffers do not hold what the adapter does.
    """
    manager = worker_manager._adapter_manager
    loaded = [
        adapter for adapter in manager.list_adapters().values() if getattr(adapter, "rollwright_name", "") == name
    ]
    if not loaded:
        return {"held": {}, "differ": []}
    adapter = loaded[-1]
    joined = {
        part: (whole, place) for whole, parts in manager.packed_modules.items() for place, part in enumerate(parts)
    }
    mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
    renames = mapper.get_rename_mapper() if mapper is not None else None
    held = {}
    for tensor in tensors:
        module, is_first = parse_fine_tuned_lora_name(tensor, renames)
        whole, place = joined.get(module, (module, 0))
        matrices = _matrices(adapter.get_lora(whole), is_first)
        if place < len(matrices) and (matrix := matrices[place]) is not None:
            held[tensor] = [str(matrix.dtype).removeprefix("torch."), checksum(matrix)]
    return {"held": held, "differ": list(_other_buffers(manager, adapter))}


def _matrices(layer: Any, is_first: bool) -> list[torch.Tensor | None]:
    """Return the first or second matrices of a layer, one for each of the tensors joined in it."""
    if layer is None:
        return []
    matrices = layer.lora_a if is_first else layer.lora_b
    return list(matrices) if isinstance(matrices, list | tuple) else [matrices]


def _other_buffers(manager: Any, adapter: Any) -> Iterator[str]:
    """Yield the layers whose buffers hold something else than an adapter that is in use."""
    if adapter.id not in manager.lora_index_to_id:
        return
    slot = manager.lora_index_to_id.index(adapter.id)
    for name, module in manager.modules.items():
        if not isinstance(module, BaseLinearLayerWithLoRA):
            continue
        layer = adapter.get_lora(name)
        for is_first, buffers in ((True, module.lora_a_stacked), (False, module.lora_b_stacked)):
            matrices = _matrices(layer, is_first) or [None] * len(buffers)
            if module.tp_size > 1 and layer is not None:
                divide = module.slice_lora_a if is_first else module.slice_lora_b
                matrices = divide(matrices) if len(buffers) > 1 else [divide(matrices[0])]
            if len(matrices) == len(buffers) and not all(
                map(_holds, (buffer[slot, 0] for buffer in buffers), matrices)
            ):
                yield name
                break


def _holds(buffer: torch.Tensor, matrix: torch.Tensor | None) -> bool:
    """Return True if a buffer holds a matrix and zeros beside it."""
    expected = torch.zeros_like(buffer)
    if matrix is not None:
        expected[: matrix.shape[0], : matrix.shape[1]] = matrix
    return torch.equal(buffer, expected)


remember_names()
