"""Token ids of a prompt, as compact text in JSON.

A prompt has thousands of ids. As base64 of 32-bit numbers, JSON parsers pass over the ids of steps
that are not needed, and a step's ids are read in microseconds.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer


def write_ids(ids: Sequence[int]) -> str:
    """Return base64 of ids as little-endian 32-bit numbers.

    >>> write_ids([1, 151000])
    'AQAAANhNAgA='
    """
    numbers = array("i", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers).decode()


def read_ids(text: str) -> array[int]:
    """Return the ids that `write_ids` wrote.

    Raises:
        ValueError: The text is not base64 of 32-bit numbers.

    >>> read_ids("AQAAANhNAgA=").tolist()
    [1, 151000]
    """
    numbers = array("i")
    numbers.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _validated(value: Any) -> Any:
    return tuple(read_ids(value)) if isinstance(value, str) else value


TokenIds = Annotated[
    tuple[int, ...], BeforeValidator(_validated), PlainSerializer(write_ids, return_type=str, when_used="json")
]
"""Ids that are numbers in Python and `write_ids` in JSON."""
