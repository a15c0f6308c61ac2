"""Reads the columns of a DOM snapshot from CBOR: ten or so of a number for each node or box, some
of rows of numbers.

At most looks most columns are what they were at the look before, to the byte: those are not read
again. Rows (attributes, styles) are read once each time that they differ, and rectangles not one by
one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.cdp import Integers, Rectangles, Rows
from envs.cdp.envelopes import ARRAY, BREAK, DOUBLE, ENVELOPE, ENVELOPE_TAG, HEADER, loads

SNAPSHOT = "DOMSnapshot.captureSnapshot"

COLUMN, COLUMNS = range(256, 2**15), 2**18
"""Bytes of a column that is cached, and of all that are cached of a page (some thousand nodes).
Decoded they take ten times as much."""

RECTANGLE = np.dtype([("before", ">u8"), ("values", [("type", "u1"), ("value", ">f8")], 4), ("after", "u1")])
"""An array of four numbers in its envelope."""

BEFORE = int.from_bytes(ENVELOPE + (RECTANGLE.itemsize - HEADER).to_bytes(4, "big") + ARRAY, "big")
"""First eight bytes of such an array."""

STRINGS = b"\x40"
"""Least first byte of a value that is no integer."""


class Tables:
    """Reads the snapshots of one page, one after the other."""

    def __init__(self) -> None:
        self._before: dict[bytes, Any] = {}
        self._columns: dict[bytes, Any] = {}
        self._room = 0
        self._decoders = {ENVELOPE_TAG: self._column}

    def read(self, raw: bytes) -> dict[str, Any]:
        """Decode a snapshot.

        The next snapshot may share its parts: do not change them.

        Raises:
            CBORError: The snapshot is incomplete.
        """
        self._before, self._columns, self._room = self._columns, {}, COLUMNS
        snapshot: dict[str, Any] = loads(raw, self._decoders)
        self._before = {}
        return snapshot

    def _column(self, raw: bytes, _immutable: bool) -> Any:
        if not raw.startswith(ARRAY):
            return loads(raw, self._decoders)
        if len(raw) not in COLUMN:
            return self._array(raw)
        column = self._before.get(raw)
        if column is None:
            column = self._array(raw)
        if self._room > 0:
            self._columns[raw] = column
            self._room -= len(raw)
        return column

    def _array(self, raw: bytes) -> Any:
        if raw.startswith(ENVELOPE, 1) and raw.startswith(ARRAY, 1 + HEADER):
            table = _rectangles(raw) or _rows(raw)
            if table is not None:
                return table
        values = loads(raw, self._decoders)
        return Integers(values) if raw[1:2] < STRINGS else values


def _rectangles(raw: bytes) -> Rectangles | None:
    """Decode rows of four floats; ``None`` if they are something else."""
    number, rest = divmod(len(raw) - 2, RECTANGLE.itemsize)
    if rest:
        return None
    rows = np.frombuffer(raw, RECTANGLE, number, 1)
    parts = rows["values"]
    if (rows["before"] != BEFORE).any() or (parts["type"] != DOUBLE).any():
        return None
    return Rectangles(parts["value"].astype(np.float64))


def _rows(raw: bytes) -> Rows | None:
    """Decode rows of integers; ``None`` if not every envelope is a row."""
    first, *rows = raw[1:-1].split(ENVELOPE)
    distinct = {row: number for number, row in enumerate(dict.fromkeys(rows))}
    if first or any(int.from_bytes(row[:4], "big") != len(row) - 4 for row in distinct):
        return None
    place = np.fromiter(map(distinct.__getitem__, rows), np.int64, len(rows))
    return Rows(loads(ARRAY + b"".join([row[4:] for row in distinct]) + BREAK, {}), place)
