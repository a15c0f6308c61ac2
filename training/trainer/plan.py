"""Divides rows into minibatches and micro-batches. Pure.

A minibatch is one optimiser step; a micro-batch is one forward pass of one process.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np


class Slot(NamedTuple):
    """Place in a micro-batch, filled with a row."""

    row: int
    """Index of the row in the batch."""
    counts: bool = True
    """False for filler: a row of weight 0 that gives all processes equally many micro-batches."""


class _Unit(NamedTuple):
    """Rows of one sequence, which are trained together."""

    length: int
    """Tokens of the sequence: of its longest row."""
    rows: tuple[int, ...]
    """Shortest first."""
    episode: Hashable = None
    """Episode of the rows, where its units are to be neighbours."""


def plan_minibatches(
    lengths: Sequence[int],
    minibatch_rows: int,
    micro_rows: int,
    processes: int,
    seed: int,
    version: int,
    micro_tokens: int = 0,
    sequences: Sequence[Hashable] | None = None,
    episodes: Sequence[Hashable] | None = None,
) -> list[list[list[Slot]]]:
    """Return ``[minibatch][micro-batch][slot]``; process r takes micro-batches r, r + processes, ….

    Rows are shuffled by (seed, version) into minibatches of equal size, within one sequence. The
    number of minibatches is rounded, because a leftover minibatch of a few rows would take a full
    optimiser step on noise. Inside a minibatch rows of similar length share a micro-batch, so that
    processes compute equally long. The number of micro-batches is a multiple of ``processes``.

    Args:
        micro_rows: Largest number of sequences of a micro-batch.
        micro_tokens: Largest number of tokens of a micro-batch; a longer sequence is alone. 0: only
            ``micro_rows`` limits it.
        sequences: Name of each row's sequence; rows of one name share its tokens and stay together.
            ``None``: each row is a sequence.
        episodes: Name of each row's episode. Within a budget of tokens, its rows are neighbours,
            since windows of one episode share pictures (`pictures`). ``None``: not.
    """
    if not lengths:
        return []
    units = _units(lengths, range(len(lengths)) if sequences is None else sequences)
    if episodes is not None and micro_tokens:
        units = [unit._replace(episode=episodes[unit.rows[0]]) for unit in units]
    shuffled = [units[index] for index in np.random.default_rng([seed, version]).permutation(len(units))]
    number = max(1, round(len(lengths) / minibatch_rows))
    # Of rows that are sequences of their own, exactly the parts of `np.array_split`.
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(len(lengths)), number)])
    starts = np.cumsum([0, *(len(unit.rows) for unit in shuffled[:-1])])
    minibatches: list[list[_Unit]] = [[] for _ in range(number)]
    for unit, minibatch in zip(shuffled, np.searchsorted(ends, starts, side="right"), strict=True):
        minibatches[minibatch].append(unit)
    return [_micro_batches(part, micro_rows, processes, micro_tokens) for part in minibatches if part]


def _units(lengths: Sequence[int], sequences: Sequence[Hashable]) -> list[_Unit]:
    rows: dict[Hashable, list[int]] = {}
    for row, name in enumerate(sequences):
        rows.setdefault(name, []).append(row)
    ordered = [tuple(sorted(members, key=lambda row: (lengths[row], row))) for members in rows.values()]
    return [_Unit(lengths[members[-1]], members) for members in ordered]


def _micro_batches(units: list[_Unit], micro_rows: int, processes: int, micro_tokens: int) -> list[list[Slot]]:
    by_length = sorted(units, key=lambda unit: unit[:2])
    if micro_tokens:
        parts = _within_budget(_neighbours(by_length), micro_rows, micro_tokens)
        parts += [[]] * (-len(parts) % processes)
    else:
        per_process = -(-len(units) // (micro_rows * processes))
        split = np.array_split(np.arange(len(units)), per_process * processes)
        parts = [[by_length[index] for index in part] for part in split]
    filler = [Slot(by_length[0].rows[0], counts=False)]
    return [[Slot(row) for unit in part for row in unit.rows] or filler for part in parts]


def _neighbours(by_length: Sequence[_Unit]) -> list[_Unit]:
    """Return the units of each episode by their steps, episodes in the order of their longest."""
    longest = {unit.episode: place for place, unit in enumerate(by_length)}
    return sorted(by_length, key=lambda unit: () if unit.episode is None else (longest[unit.episode], unit.rows))


def _within_budget(by_length: Sequence[_Unit], micro_rows: int, micro_tokens: int) -> list[list[_Unit]]:
    """Pack sequences longest first: processes compute micro-batches of similar cost together."""
    parts: list[list[_Unit]] = []
    for unit in reversed(by_length):
        if (
            parts
            and len(parts[-1]) < micro_rows
            and sum(packed.length for packed in parts[-1]) + unit.length <= micro_tokens
        ):
            parts[-1].append(unit)
        else:
            parts.append([unit])
    return parts
