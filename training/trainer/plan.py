"""Divides rows into minibatches and micro-batches. Pure.

A minibatch is one optimiser step; a micro-batch is one forward pass of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Slot(NamedTuple):
    """Place in a micro-batch, filled with a row."""

    row: int
    """Index of the row in the batch."""
    counts: bool = True
    """False for filler: a row of weight 0 that gives all processes equally many micro-batches."""


def plan_minibatches(
    lengths: Sequence[int],
    minibatch_rows: int,
    micro_rows: int,
    processes: int,
    seed: int,
    version: int,
    micro_tokens: int = 0,
) -> list[list[list[Slot]]]:
    """Return ``[minibatch][micro-batch][slot]``; process r takes micro-batches r, r + processes, ….

    Rows are shuffled by (seed, version) into minibatches of equal size, within one row. The number
    of minibatches is rounded, because a leftover minibatch of a few rows would take a full
    optimiser step on noise. Inside a minibatch rows of similar length share a micro-batch, which
    reduces padding. The number of micro-batches is a multiple of ``processes``.

    Args:
        micro_tokens: Largest number of tokens of a micro-batch, padding included; a longer row is
            alone. 0: only ``micro_rows`` limits it.
    """
    if not lengths:
        return []
    shuffled = np.random.default_rng([seed, version]).permutation(len(lengths))
    minibatches = np.array_split(shuffled, max(1, round(len(lengths) / minibatch_rows)))
    return [
        _micro_batches([int(row) for row in rows], lengths, micro_rows, processes, micro_tokens) for rows in minibatches
    ]


def _micro_batches(
    rows: list[int], lengths: Sequence[int], micro_rows: int, processes: int, micro_tokens: int
) -> list[list[Slot]]:
    by_length = sorted(rows, key=lambda row: (lengths[row], row))
    if micro_tokens:
        return _within_budget(by_length, lengths, micro_rows, processes, micro_tokens)
    per_process = -(-len(rows) // (micro_rows * processes))
    parts = np.array_split(np.asarray(by_length), per_process * processes)
    return [[Slot(int(row)) for row in part] or [Slot(by_length[0], counts=False)] for part in parts]


def _within_budget(
    by_length: Sequence[int], lengths: Sequence[int], micro_rows: int, processes: int, micro_tokens: int
) -> list[list[Slot]]:
    """Pack rows longest first, so that processes compute micro-batches of similar cost together."""
    parts: list[list[int]] = []
    for row in reversed(by_length):
        longest = lengths[parts[-1][0]] if parts else 0
        if parts and len(parts[-1]) < micro_rows and longest * (len(parts[-1]) + 1) <= micro_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    micros = [[Slot(row) for row in part] for part in parts]
    return micros + [[Slot(by_length[0], counts=False)]] * (-len(micros) % processes)
