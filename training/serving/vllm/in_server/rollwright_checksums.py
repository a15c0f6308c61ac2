"""Checksums of weights, computed alike in vLLM's workers and in the run that publishes to them.

Imports torch only. A checksum is a sum of the tensor's 64-bit words, each times a number of its
place, modulo 2^64: one pass at the speed of memory, on CPUs and GPUs with the same result. It finds
faults, not forgeries.
"""

from __future__ import annotations

import random
from functools import lru_cache

import torch

CHUNK = 2**20
"""Elements that are summed at a time, unless one row has more."""
COLUMNS = 64
"""Most columns of a packed matrix that are compared; each publication takes others."""
WORD_BYTES = 8
_ODD = 0x9E3779B97F4A7C15 - 2**64
_MIX = 0xBF58476D1CE4E5B9 - 2**64
"""Multipliers of the SplitMix64 generator (Steele, Lea and Flood 2014), as signed integers."""
_MASK = 2**64 - 1


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a matrix of its first dimension and all others; a vector is one column."""
    return tensor.reshape(tensor.shape[0] if tensor.ndim else 1, -1)


def checksum(tensor: torch.Tensor) -> str:
    """Return the checksum of a tensor's values in row-major order, as hexadecimal digits.

    It depends on shape and data type. Both zeros count as the same value, because a product with a
    packed matrix loses the sign of zero.
    """
    matrix = as_matrix(tensor.detach())
    total = 0
    for rows in torch.split(matrix, max(1, CHUNK // max(1, matrix.shape[1]))):
        words = _words((rows + 0).reshape(-1))
        total = (total * (_ODD & _MASK) + int((words * _multipliers(len(words), words.device)).sum())) & _MASK
    return f"{total:016x}"


def _words(values: torch.Tensor) -> torch.Tensor:
    """Return a vector's bytes as 64-bit integers, filled up with zeros."""
    rest = -len(values) % (WORD_BYTES // values.element_size())
    return (torch.cat([values, values.new_zeros(rest)]) if rest else values).view(torch.int64)


@lru_cache(maxsize=8)
def _multipliers(count: int, device: torch.device) -> torch.Tensor:
    """Return an odd number for each place; products overflow on purpose."""
    mixed = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _ODD
    mixed = (mixed ^ (mixed >> 29)) * _MIX
    return (mixed ^ (mixed >> 32)) | 1


def probed_columns(width: int, seed: int) -> list[int]:
    """Return the columns of a packed matrix that are compared: all of a narrow one.

    >>> probed_columns(3, seed=0)
    [0, 1, 2]
    >>> len(probed_columns(1000, seed=1))
    64
    """
    return sorted(random.Random(seed).sample(range(width), min(width, COLUMNS)))
