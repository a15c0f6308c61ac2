"""Checkpoint folders as vLLM's workers read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

Shapes = dict[str, tuple[int, ...]]
"""Shape of each tensor, by name."""


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
