"""Compares the weights that servers hold with the checkpoint that they should serve.

Each worker computes checksums of its weights between two steps of the model, after the servers go
on (`in_server/rollwright_held_weights.py`). They are compared with the same checksums of the
checkpoint's tensors, which are computed here once for all servers. A wrong tensor, weights of
another version and swapped layers are found at every publication, without a forward pass.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from envs.types import PolicyError, RollwrightError
from training.ledger.checkpoint_files import safetensors_headers
from training.policy.adapters import ADAPTER_CONFIG
from training.serving.vllm.client import ServerClient, adapter_name
from training.serving.vllm.in_server.rollwright_checksums import as_matrix, checksum, probed_columns
from training.serving.vllm.publishing import Fault, failed_servers, load_seconds, split_answers

NAMED = 3
"""Number of tensors that an error names."""

SECOND = ".lora_B."
"""Part of the names of an adapter's second matrices."""

Place = tuple[int, int, int, int, bool]
"""First row, rows, first column, columns of a part of a tensor; True for `probed_columns` only."""
Sums = dict[str, dict[tuple[Place, str], set[str]]]
"""Checksums that a server's ranks hold, by the name of a tensor, place and data type."""


@dataclass(frozen=True, slots=True)
class ChecksumResult:
    """Result of one comparison in which a server was right."""

    compared: int
    """Tensors that every such server holds whole, as the checkpoint has them."""
    tensors: int
    """Tensors of the checkpoint."""
    failed: Mapping[str, RollwrightError] = field(default_factory=dict)
    """Servers that did not answer, or hold other weights (`PolicyError`), by address."""


async def compare_weights(clients: Sequence[ServerClient], version: int, folder: Path) -> ChecksumResult:
    """Compare the weights of every server that answers with a folder's.

    Args:
        folder: Checkpoint folder of a whole model.

    Raises:
        PolicyError: no server is right, and one holds other weights or cannot compute checksums.
        EngineError: every server failed.
    """
    shapes = {name: entry["shape"] for header in safetensors_headers(folder).values() for name, entry in header.items()}
    body = {"method": "rollwright_sum_weights", "kwargs": {"shapes": shapes, "seed": version}}
    answers, faults = await ask_ranks(clients, folder, body)
    held = {address: held_sums(ranks) for address, ranks in answers.items()}
    expected = await asyncio.to_thread(checkpoint_sums, folder, held.values(), version)
    for address, sums in held.items():
        if wrong := [name for name in shapes if any(sums[name][part] != {expected[name][part]} for part in sums[name])]:
            faults[address] = PolicyError(
                f"{address} does not hold the weights of v{version} ({folder}): {len(wrong)} of {len(shapes)} tensors "
                f"have another checksum ({', '.join(wrong[:NAMED])})"
            )
    failed = failed_servers(clients, version, list(faults.values()))
    right = [sums for address, sums in held.items() if address not in failed]
    whole = [name for name, shape in shapes.items() if all(is_whole(sums[name], shape) for sums in right)]
    return ChecksumResult(len(whole), len(shapes), failed)


async def compare_adapter(clients: Sequence[ServerClient], version: int, folder: Path) -> ChecksumResult:
    """Compare the adapter of every server that answers with a folder's.

    Raises:
        PolicyError: no server is right, and one holds another adapter or only a part of it.
        EngineError: every server failed.
    """
    weights = dict(tensors_of(folder))
    body = {"method": "rollwright_sum_adapter", "kwargs": {"name": adapter_name(version), "tensors": [*weights]}}
    answers, faults = await ask_ranks(clients, folder, body)
    scaled = await asyncio.to_thread(scale_adapter, folder, weights)
    for address, ranks in answers.items():
        wrong = [
            name
            for name, tensor in scaled.items()
            if any(rank["held"].get(name) != adapter_sum(tensor, rank["held"].get(name)) for rank in ranks)
        ]
        wrong += [layer for rank in ranks for layer in rank["differ"]]
        if wrong:
            faults[address] = PolicyError(
                f"{address} does not hold the adapter of v{version} ({folder}): {len(wrong)} of {len(scaled)} tensors "
                f"are missing or have another checksum ({', '.join(wrong[:NAMED])})"
            )
    return ChecksumResult(len(scaled), len(scaled), failed_servers(clients, version, list(faults.values())))


async def ask_ranks(
    clients: Sequence[ServerClient], folder: Path, body: Mapping[str, Any]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Fault]]:
    """Return the answers of the ranks of servers that answer, and each server's fault, by
    address."""

    async def ask(client: ServerClient) -> list[dict[str, Any]] | RollwrightError:
        try:
            return list((await client.post("/collective_rpc", load_seconds(folder), json=body))["results"])
        except RollwrightError as error:
            return error

    return split_answers(clients, await asyncio.gather(*map(ask, clients)))


def scale_adapter(folder: Path, weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, float]]:
    """Return an adapter's tensors, and by what servers multiply each when they load it.

    That is 1 for the first matrix of a layer, and alpha / rank for the second (LoRA, Hu et al.
    2021), or alpha / sqrt(rank) with ``use_rslora`` (Kalajdzievski 2023).
    """
    from peft.utils.other import get_pattern_key  # imported here, since it takes seconds

    config = json.loads((folder / ADAPTER_CONFIG).read_bytes())
    scaled = {}
    for name, tensor in weights.items():
        factor = 1.0
        if SECOND in name:
            layer = name.removeprefix("base_model.model.").partition(SECOND)[0]
            ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
            rank = ranks.get(get_pattern_key(ranks, layer), config["r"])
            alpha = alphas.get(get_pattern_key(alphas, layer), config["lora_alpha"])
            factor = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        scaled[name] = tensor, factor
    return scaled


def adapter_sum(scaled: tuple[torch.Tensor, float], held: Sequence[str] | None) -> list[str]:
    """Return data type and checksum that a tensor has in a server, by what the server answered."""
    tensor, factor = scaled
    dtype = held[0] if held else "float32"
    return [dtype, checksum(tensor.to(getattr(torch, dtype)) * factor)]


def held_sums(ranks: Iterable[Mapping[str, Any]]) -> Sums:
    """Return the checksums that the ranks of one server hold."""
    sums: Sums = defaultdict(lambda: defaultdict(set))
    for rank in ranks:
        for piece in rank["pieces"]:
            place = (piece["row"], piece["rows"], piece["column"], piece["columns"], piece["packed"])
            sums[piece["name"]][place, piece["dtype"]].add(piece["sum"])
    return sums


def checkpoint_sums(folder: Path, held: Iterable[Sums], seed: int) -> dict[str, dict[tuple[Place, str], str]]:
    """Return the checksums of a folder's tensors for all places that servers hold. Blocks."""
    places: dict[str, set[tuple[Place, str]]] = defaultdict(set)
    for sums in held:
        for name, parts in sums.items():
            places[name] |= parts.keys()
    return {
        name: {(place, dtype): place_sum(tensor, place, dtype, seed) for place, dtype in places[name]}
        for name, tensor in tensors_of(folder)
    }


def tensors_of(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of a checkpoint folder, one after the other."""
    for name, header in safetensors_headers(folder).items():
        with safe_open(folder / name, framework="pt", device="cpu") as opened:
            for key in header:
                yield key, opened.get_tensor(key)


def place_sum(tensor: torch.Tensor, place: Place, dtype: str, seed: int) -> str:
    """Return the checksum of a part of a tensor, in the data type of the servers."""
    row, rows, column, columns, packed = place
    part = as_matrix(tensor)[row : row + rows, column : column + columns]
    if packed:
        part = part[:, probed_columns(columns, seed)]
    return checksum(part.to(getattr(torch, dtype)))


def is_whole(parts: Iterable[tuple[Place, str]], shape: Sequence[int]) -> bool:
    """Return True if the parts of a tensor are all of it."""
    areas = {place[:4] for place, _ in parts}
    return sum(rows * columns for _, rows, _, columns in areas) == math.prod(shape)
