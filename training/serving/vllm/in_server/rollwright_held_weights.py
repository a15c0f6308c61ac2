"""Finds a checkpoint's tensors in a running vLLM model, and computes their checksums there.

vLLM renames tensors, joins some of them in one matrix (query, key and value; gate and up), and
gives each rank of tensor parallelism its rows or columns. On the CPU it also packs matrices in an
order of its own and may drop the plain ones. Those are read by a product with unit vectors, which
gives columns exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rollwright_checksums import as_matrix, checksum, probed_columns  # type: ignore[import-not-found]
from vllm.model_executor.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

_STACKED = {"q": 0, "k": 1, "v": 2}
"""Place of a tensor in vLLM's joined matrix."""


@dataclass(frozen=True)
class HeldPiece:
    """HeldPart of a checkpoint's tensor that a rank holds, and its checksum."""

    name: str
    """Name of the tensor in the checkpoint."""
    row: int
    rows: int
    column: int
    columns: int
    """Place in the tensor as a matrix: its first dimension, and all others."""
    packed: bool
    """True if only the columns `probed_columns` of the part are summed."""
    dtype: str
    sum: str


@dataclass(frozen=True)
class HeldPart:
    """HeldPart of a tensor as a matrix, and the first row that it has in the rank's parameter."""

    row: int
    rows: int
    column: int
    columns: int
    held_row: int


def sum_weights(model: torch.nn.Module, shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, Any]:
    """Return the checksums of a checkpoint's tensors as this rank holds them.

    Args:
        shapes: Shape of each tensor of the checkpoint, by name.
        seed: Chooses the columns of packed matrices.

    Returns:
        ``pieces``: fields of each `HeldPiece`; ``unknown``: names that this model does not hold in
        a known way.
    """
    packed = _packed_layers(model)
    pieces: list[dict[str, Any]] = []
    unknown = []
    for name, shape in shapes.items():
        of_name = [asdict(piece) for piece in _pieces(model, packed, name, shape, seed)]
        pieces += of_name
        if not of_name:
            unknown.append(name)
    return {"pieces": pieces, "unknown": unknown}


def _packed_layers(model: torch.nn.Module) -> dict[int, list[Any]]:
    """Return the layers with a packed copy, by the address of their plain weight.

    The head of a model with tied embeddings has a packed copy of the embedding.
    """
    layers: dict[int, list[Any]] = {}
    layer: Any
    for layer in model.modules():
        if _packs(layer) and layer.weight.numel():
            layers.setdefault(layer.weight.data_ptr(), []).append(layer)
    return layers


def _packs(layer: Any) -> bool:
    """Return True if a layer multiplies by a packed copy of its weight."""
    plain = torch.nn.functional.linear
    return getattr(layer, "cpu_linear", plain) is not plain


def _pieces(
    model: torch.nn.Module, packed: Mapping[int, list[Any]], name: str, shape: Sequence[int], seed: int
) -> Iterator[HeldPiece]:
    """Yield the pieces of one tensor; none where the model does not hold it in a known way."""
    place = _locate(model, name)
    if place is None:
        return
    layer, attribute, shard = place
    held = getattr(layer, attribute)
    rows = shape[0] if shape else 1
    for part in _parts(layer, attribute, shard, rows, torch.Size(shape).numel() // rows):
        where = (part.row, part.rows, part.column, part.columns)
        held_rows = slice(part.held_row, part.held_row + part.rows)
        if held.numel() and (values := as_matrix(held)[held_rows]).shape == (part.rows, part.columns):
            yield HeldPiece(name, *where, False, _dtype(held), checksum(values))
        layers = packed.get(held.data_ptr(), []) if held.numel() else [layer] if _packs(layer) else []
        for packing in layers if attribute == "weight" else []:
            yield HeldPiece(
                name, *where, True, _dtype(held), checksum(_unpacked(packing, part.columns, seed)[held_rows])
            )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _locate(model: torch.nn.Module, name: str) -> tuple[Any, str, Any] | None:
    """Return the layer, the attribute and the place in a joined matrix of a checkpoint's tensor.

    Renames as vLLM's loader does: each module that has a mapping applies it to the rest of the
    name.
    """
    module: Any = model
    path, shard = name, None
    while True:
        while "base_layer" in module._modules:  # of adapters
            module = module._modules["base_layer"]
        if (mapper := getattr(module, "hf_to_vllm_mapper", None)) is not None:
            mapped = mapper._map_name_with_shard(path)
            if mapped is None:
                return None
            path, shard = mapped[0], shard if mapped[1] is None else mapped[1]
        first, _, rest = path.partition(".")
        if not rest:
            parameter = getattr(module, first, None)
            known = isinstance(parameter, torch.Tensor) and (shard is None or isinstance(shard, int | str))
            return (module, first, _STACKED.get(str(shard), shard)) if known else None
        child = module._modules.get(first)
        if child is None:
            return None
        module, path = child, rest


def _parts(layer: Any, attribute: str, shard: int | None, rows: int, columns: int) -> Iterator[HeldPart]:
    """Yield the parts of a tensor that this rank holds."""
    if isinstance(layer, VocabParallelEmbedding):
        own = layer.shard_indices
        yield HeldPart(own.org_vocab_start_index, own.num_org_elements, 0, columns, 0)
    elif isinstance(layer, RowParallelLinear) and attribute == "weight":
        width = layer.input_size_per_partition
        yield HeldPart(0, rows, layer.tp_rank * width, width, 0)
    elif isinstance(layer, ColumnParallelLinear):
        before = held_before = 0
        for index, size in enumerate(layer.output_partition_sizes):
            copies = layer.num_kv_head_replicas if index and isinstance(layer, QKVParallelLinear) else 1
            start = layer.tp_rank // copies * size
            if shard is None:
                yield HeldPart(before + start, size, 0, columns, held_before)
            elif shard == index:
                yield HeldPart(start, size, 0, columns, held_before)
            before, held_before = before + size * layer.tp_size // copies, held_before + size
    elif shard is None:
        yield HeldPart(0, rows, 0, columns, 0)


def _unpacked(layer: Any, width: int, seed: int) -> torch.Tensor:
    """Return the compared columns of the matrix by which a layer multiplies."""
    columns = probed_columns(width, seed)
    units = torch.zeros(len(columns), width, dtype=layer.weight.dtype)
    units[range(len(columns)), columns] = 1
    return layer.cpu_linear(units, layer.weight, None).t()  # type: ignore[no-any-return]
